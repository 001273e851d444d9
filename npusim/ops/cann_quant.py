"""CANN's elementwise operators between quantised and real numbers.

ONNX's QuantizeLinear and its relatives become these, scales in a shape that broadcasts. All compute
in fp32; scales are parameters and keep their type in any precision mode.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.quantization import rounded
from npusim.ops.registry import (
    Arrays,
    Attrs,
    Inputs,
    Operator,
    Types,
    Work,
    broadcast,
    operator,
    schema,
)


class _Quantisation(Operator):
    """Base: elementwise, into the type `to`."""

    attrs = schema(to="float32")
    elementwise = True

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        shape = broadcast(*(t.shape for t in x.types if t is not None))
        return [TensorType(shape, DType.of(attrs["to"]))]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=3 * out[0].size)


@operator("AscendQuant")
class AscendQuant(_Quantisation):
    """x, scale[, offset] → round(x / scale) + offset in int8 or uint8, saturated."""

    attrs = schema(to="int8")

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [rounded(x[0] / x[1], x[2] if len(x) > 2 else None, DType.of(attrs["to"]))]


@operator("AscendAntiQuant")
class AscendAntiQuant(_Quantisation):
    """x of int8 or uint8, scale[, offset] → (x - offset) · scale."""

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        wide = x[0].astype(np.float32)
        if len(x) > 2:
            wide = wide - x[2].astype(np.float32)
        return [wide * x[1]]


@operator("AscendDequant")
class AscendDequant(_Quantisation):
    """int32 sums, scales → sums · (scale · scale …)."""

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [x[0].astype(np.float32) * reduce(np.multiply, x[1:])]


@operator("AscendRequant")
class AscendRequant(_Quantisation):
    """int32 sums, scales of both operands and of the result[, offset] → int8 or uint8.

    As a step of a product: one scale, left · right / result, and `offset`.
    """

    attrs = schema(to="int8", offset=0)

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        y = x[0].astype(np.float32) * (x[1] * x[2] / x[3] if len(x) > 2 else x[1])
        offset = x[4] if len(x) > 4 else np.array(attrs["offset"])
        return [rounded(y, offset, DType.of(attrs["to"]))]
