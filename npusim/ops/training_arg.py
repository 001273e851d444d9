"""ArgMaxWithValue and ArgMinWithValue: the extreme element of each row and where it is."""

from __future__ import annotations

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator


class _ArgWithValue(Operator):
    """Base: along the last axis → indices (int32), values."""

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t = x.type(0)
        return [TensorType(t.shape[:-1], DType.INT32), TensorType(t.shape[:-1], t.dtype)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=2 * x[0].size)


@operator("ArgMaxWithValue")
class ArgMaxWithValue(_ArgWithValue):
    """The first largest."""

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [x[0].argmax(-1), x[0].max(-1)]


@operator("ArgMinWithValue")
class ArgMinWithValue(_ArgWithValue):
    """The first smallest."""

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [x[0].argmin(-1), x[0].min(-1)]
