"""Sequences in tensors: parts reversed, and caches written at a position of their own."""

from __future__ import annotations

import numpy as np

from npusim.ir import TensorType
from npusim.ops.common import Movement, axis_of, check, supported
from npusim.ops.registry import Arrays, Attrs, Inputs, Types, operator, schema


@operator("ReverseSequence")
class ReverseSequence(Movement):
    """The first entries of the time axis in reverse, as many as the second input says per batch."""

    attrs = schema(batch_axis=1, time_axis=0)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, lengths = x.type(0), x.type(1).shape
        batch, time = (axis_of(attrs[f"{a}_axis"], len(t.shape)) for a in ("batch", "time"))
        check(
            batch != time and lengths == (t.shape[batch],),
            f"lengths {lengths} for {t.shape}, batch axis {batch}, time axis {time}",
            "two axes, and one length a batch",
        )
        return [t]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        data, axes = x[0], (attrs["batch_axis"], attrs["time_axis"])
        rows = np.moveaxis(data, axes, (0, 1))
        lengths, at = x[1][:, None], np.arange(rows.shape[1])
        order = np.where(at < lengths, lengths - 1 - at, at)
        return [np.moveaxis(rows[np.arange(len(rows))[:, None], order], (0, 1), axes)]


@operator("TensorScatter")
class TensorScatter(Movement):
    """A cache with an update written along `axis`, from a position of each batch on."""

    attrs = schema(axis=-2, mode="linear")

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, update = x.type(0), x.type(1).shape
        axis = axis_of(attrs["axis"], len(t.shape))
        check(axis > 0, f"axis {axis}", "one behind the batch")
        fits = len(update) == len(t.shape) and update[axis] <= t.shape[axis]
        rest = (*t.shape[:axis], *t.shape[axis + 1 :]) == (*update[:axis], *update[axis + 1 :])
        check(fits and rest, f"an update {update} of a cache {t.shape}", "one that fits along axis")
        modes = ("linear", "circular")
        supported(attrs["mode"] in modes, f"mode={attrs['mode']!r}", ", ".join(modes))
        return [t]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        y, axis = x[0].copy(), axis_of(attrs["axis"], x[0].ndim)
        n, extent = x[1].shape[axis], y.shape[axis]
        starts = np.zeros(len(y), np.int64) if len(x) < 3 or x[2] is None else x[2]
        if attrs["mode"] == "linear" and len(y):
            last = int(starts.max()) + n
            check(starts.min() >= 0 and last <= extent, f"a write up to {last}", f"0 … {extent}")
        for row, update, start in zip(y, x[1], starts, strict=True):
            places = (int(start) + np.arange(n)) % extent
            row[(slice(None),) * (axis - 1) + (places,)] = update
        return [y]
