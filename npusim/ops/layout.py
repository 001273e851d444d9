"""TransData: another device layout of the same tensor. On logical arrays, the identity."""

from __future__ import annotations

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema


@operator("TransData")
class TransData(Operator):
    """A layout change (inserted by the compiler; CANN's name).

    `to`: the element type that it converts to on the way, where a Cast has joined it.
    """

    attrs = schema(to=None)
    moves_data = True

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t = x.type(0)
        return [TensorType(t.shape, t.dtype if attrs["to"] is None else DType.of(attrs["to"]))]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        assert x[0] is not None
        return [x[0]]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work()
