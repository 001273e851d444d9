"""TopK: the k extreme elements along an axis, and where they are."""

from __future__ import annotations

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.common import axis_of, check, static
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema


@operator("TopK")
class TopK(Operator):
    """Values, and their places as int64; of equal ones the first comes first.

    Unsorted results, which ONNX leaves open, are sorted too.
    """

    attrs = schema(axis=-1, largest=1, sorted=1)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, k = x.type(0), int(static(x, 1, "k").item())
        axis, shape = axis_of(attrs["axis"], len(t.shape)), list(t.shape)
        check(0 <= k <= shape[axis], f"k = {k} of {shape[axis]}", f"0 … {shape[axis]}")
        shape[axis] = k
        return [TensorType(tuple(shape), t.dtype), TensorType(tuple(shape), DType.INT64)][
            :n_outputs
        ]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        data, axis = x[0], axis_of(attrs["axis"], x[0].ndim)
        if attrs["largest"]:  # from behind, so that of equal elements the first stays first
            order = np.argsort(np.flip(data, axis), axis, kind="stable")
            order = data.shape[axis] - 1 - np.flip(order, axis)
        else:
            order = np.argsort(data, axis, kind="stable")
        order = np.take(order, np.arange(out[0].shape[axis]), axis)
        return [np.take_along_axis(data, order, axis), order][: len(out)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        extent = x[0].shape[attrs["axis"]]
        return Work(vector_ops=x[0].size * max(1, extent.bit_length()))
