"""Indexed access: gathers and scatters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npusim.errors import GraphError
from npusim.ir import TensorType
from npusim.ops.common import Movement, axis_of, check, supported
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, operator, schema


def _checked(index: np.ndarray, extent: int) -> np.ndarray:
    """`index` counted from the front.

    Raises:
        GraphError: an index lies outside the dimension.
    """
    if index.size and not (-extent <= index.min() and index.max() < extent):
        raise GraphError(
            f"index {index.min()} … {index.max()} into a dimension of {extent}",
            f"{-extent} … {extent - 1}",
            "check the values fed to the model's index inputs (token ids, positions)",
        )
    return np.where(index < 0, index + extent, index)


@operator("Gather")
class Gather(Movement):
    """Entries of `axis` at the indices (embedding look-up)."""

    attrs = schema(axis=0)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, index = x.type(0), x.type(1)
        axis = axis_of(attrs["axis"], len(t.shape))
        return [TensorType(t.shape[:axis] + index.shape + t.shape[axis + 1 :], t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        axis = axis_of(attrs["axis"], x[0].ndim)
        return [np.asarray(np.take(x[0], _checked(x[1], x[0].shape[axis]), axis))]


@operator("GatherElements")
class GatherElements(Movement):
    """Per output element, the entry of `axis` that the index tensor names."""

    attrs = schema(axis=0)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, index = x.type(0), x.type(1)
        axis_of(attrs["axis"], len(t.shape))
        check(len(t.shape) == len(index.shape), f"indices {index.shape} into {t.shape}", "one rank")
        return [TensorType(index.shape, t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        axis = axis_of(attrs["axis"], x[0].ndim)
        data = x[0][_leading(x[1].shape, axis)]
        return [np.take_along_axis(data, _checked(x[1], x[0].shape[axis]), axis)]


def _leading(shape: tuple[int, ...], axis: int) -> tuple[slice, ...]:
    """The corner of an array that indices of `shape` address, all of `axis`."""
    return tuple(slice(None) if i == axis else slice(d) for i, d in enumerate(shape))


@operator("GatherND")
class GatherND(Movement):
    """Slices addressed by the index tuples in the last dimension of the indices."""

    attrs = schema(batch_dims=0)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, index, b = x.type(0), x.type(1), attrs["batch_dims"]
        check(
            bool(index.shape)
            and b + index.shape[-1] <= len(t.shape)
            and t.shape[:b] == index.shape[:b],
            f"indices {index.shape} into {t.shape} with batch_dims {b}",
            "equal batch dimensions, and index tuples no longer than the rank",
        )
        return [TensorType(index.shape[:-1] + t.shape[b + index.shape[-1] :], t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        data, index, b = x[0], x[1], attrs["batch_dims"]
        flat = data.reshape(-1, *data.shape[b:])
        tuples = index.reshape(len(flat), -1, index.shape[-1])
        rows = np.arange(len(flat))[:, None]
        parts = (_checked(tuples[..., i], data.shape[b + i]) for i in range(index.shape[-1]))
        return [flat[(rows, *parts)].reshape(out[0].shape)]


_COMBINE: dict[str, Callable[..., None] | None] = {
    "none": None,
    "add": np.add.at,
    "mul": np.multiply.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


class _Scatter(Operator):
    """Base of the scatters: a copy of the data with updates written or combined in."""

    attrs = schema(reduction="none")

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        x.type(1), x.type(2)
        supported(
            attrs["reduction"] in _COMBINE,
            f"reduction {attrs['reduction']!r}",
            ", ".join(_COMBINE),
        )
        return [x.type(0)]


def _scatter(
    data: np.ndarray, at: tuple[np.ndarray, ...], updates: np.ndarray, how: str
) -> np.ndarray:
    y = data.copy()
    combine = _COMBINE[how]
    if combine is None:
        y[at] = updates
    else:
        combine(y, at, updates)
    return y


@operator("ScatterElements")
class ScatterElements(_Scatter):
    """Updates written along `axis` at the positions in the index tensor."""

    attrs = schema(axis=0, reduction="none")

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        data, index, updates = x
        axis = axis_of(attrs["axis"], data.ndim)
        at = list(np.indices(index.shape, sparse=True))
        at[axis] = _checked(index, data.shape[axis])
        return [_scatter(data, tuple(at), updates, attrs["reduction"])]


@operator("ScatterND")
class ScatterND(_Scatter):
    """Updates written to the slices that the index tuples address."""

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        data, index, updates = x
        at = tuple(_checked(index[..., i], data.shape[i]) for i in range(index.shape[-1]))
        return [_scatter(data, at, updates, attrs["reduction"])]
