"""Operators whose output extents follow from elements: which are non-zero, wanted or distinct."""

from __future__ import annotations

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.common import Movement, axis_of, check, static, supported
from npusim.ops.registry import (
    Arrays,
    Attrs,
    Inputs,
    Operator,
    Types,
    Work,
    operator,
    schema,
    widen,
)


@operator("NonZero")
class NonZero(Operator):
    """Indices of the elements other than zero: [rank, number]."""

    data_inputs = (0,)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        found = int(np.count_nonzero(static(x, 0, "data")))
        return [TensorType((len(x.type(0).shape), found), DType.INT64)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        if not x[0].ndim:  # numpy refuses a scalar; ONNX gives no row, once or not at all
            return [np.zeros((0, int(x[0] != 0)), np.int64)]
        return [np.array(np.nonzero(x[0]), np.int64)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=x[0].size)


@operator("Compress")
class Compress(Movement):
    """Entries of `axis` (of the flattened tensor when None) where the condition is true."""

    attrs = schema(axis=None)
    data_inputs = (1,)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, wanted = x.type(0), static(x, 1, "condition")
        shape = list(t.shape) if attrs["axis"] is not None else [t.size]
        axis = axis_of(attrs["axis"] or 0, len(shape))
        check(
            wanted.ndim == 1 and not wanted[shape[axis] :].any(),
            f"a condition of shape {wanted.shape} for {shape[axis]} entries",
            "a vector that is true for entries that exist",
        )
        shape[axis] = int(np.count_nonzero(wanted))
        return [TensorType(tuple(shape), t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        data = x[0] if attrs["axis"] is not None else x[0].reshape(-1)
        return [np.take(data, np.flatnonzero(x[1]), attrs["axis"] or 0)]


@operator("Unique")
class Unique(Operator):
    """Distinct elements (or slices along `axis`), where each was first, which each is, how many."""

    attrs = schema(axis=None, sorted=1)
    data_inputs = (0,)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        supported(attrs["sorted"] in (0, 1), f"sorted={attrs['sorted']}", "0 or 1")
        data = widen(static(x, 0, "data"))
        assert data is not None  # static has checked
        y, first, which, _ = _distinct(data, attrs)
        types = [TensorType(y.shape, x.type(0).dtype)]
        lengths = (len(first), len(which), len(first))
        types += [TensorType((n,), DType.INT64) for n in lengths]
        return types[:n_outputs]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return list(_distinct(x[0], attrs))[: len(out)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=x[0].size * max(1, x[0].size.bit_length()))  # a sort


def _distinct(
    data: np.ndarray, attrs: Attrs
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Values, first positions, position of each among the values, counts."""
    axis = attrs["axis"]
    if axis is None:
        data = data.reshape(-1)
    y, first, which, counts = np.unique(data, True, True, True, axis=axis or 0)
    if not attrs["sorted"]:
        order = np.argsort(first)
        place = np.argsort(order)
        first, counts, which = first[order], counts[order], place[which.reshape(-1)]
        y = np.take(data, first, axis or 0)
    return y, first, which.reshape(-1), counts
