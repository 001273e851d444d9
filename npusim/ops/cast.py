"""Conversion of element types."""

from __future__ import annotations

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ir import convert as convert_float
from npusim.ir.narrow import narrowed
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, operator, schema


def convert(x: np.ndarray, to: DType, saturate: bool = True, mode: str = "up") -> np.ndarray:
    """`x` in another element type; floats truncate to integers, which wrap; fp16 saturates.

    `saturate` and the rounding mode are of narrow types (`npusim.ir.narrow.narrowed`).
    """
    if to.is_narrow:
        return narrowed(x, to.np, saturate, mode)
    if x.dtype.kind == "f" and to.np.kind in "iu" and to.size < 8:
        return x.astype(np.int64).astype(to.np)
    return convert_float(x, to)


@operator("Cast")
class Cast(Operator):
    """Attribute `to` is a DType or its name (the ONNX frontend translates ONNX's number)."""

    attrs = schema(to=..., saturate=1, round_mode="up")
    elementwise = True

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        return [TensorType(x.type(0).shape, DType.of(attrs["to"]))]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        # Not out[0]: in a fused chain that is the type at the chain's end.
        to = DType.of(attrs["to"])
        return [convert(x[0], to, bool(attrs["saturate"]), attrs["round_mode"])]


@operator("CastLike")
class CastLike(Operator):
    """The first input in the element type of the second."""

    attrs = schema(saturate=1, round_mode="up")

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        return [TensorType(x.type(0).shape, x.type(1).dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [convert(x[0], out[0].dtype, bool(attrs["saturate"]), attrs["round_mode"])]
