"""Comparisons, booleans, bits and selection."""

from __future__ import annotations

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.common import elementwise
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, broadcast, operator

elementwise("Not", np.logical_not, dtype=DType.BOOL)
elementwise("And", np.logical_and, dtype=DType.BOOL)
elementwise("Or", np.logical_or, dtype=DType.BOOL)
elementwise("Xor", np.logical_xor, dtype=DType.BOOL)
elementwise("Equal", np.equal, dtype=DType.BOOL)
elementwise("Greater", np.greater, dtype=DType.BOOL)
elementwise("GreaterOrEqual", np.greater_equal, dtype=DType.BOOL)
elementwise("Less", np.less, dtype=DType.BOOL)
elementwise("LessOrEqual", np.less_equal, dtype=DType.BOOL)
elementwise("BitwiseAnd", np.bitwise_and)
elementwise("BitwiseOr", np.bitwise_or)
elementwise("BitwiseXor", np.bitwise_xor)
elementwise("BitwiseNot", np.bitwise_not)


@operator("Where")
class Where(Operator):
    """Elements of the second input where the first is true, else of the third."""

    elementwise = True

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        shape = broadcast(*(x.type(i).shape for i in range(3)))
        return [TensorType(shape, x.type(1).dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [np.asarray(np.where(x[0], x[1], x[2]))]
