"""Conversion of element types."""

from __future__ import annotations

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ir import convert as convert_float
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, operator, schema


def convert(x: np.ndarray, to: DType) -> np.ndarray:
    """`x` in another element type; floats truncate to integers, which wrap; fp16 saturates."""
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
        return [convert(x[0], DType.of(attrs["to"]))]


@operator("CastLike")
class CastLike(Operator):
    """The first input in the element type of the second."""

    attrs = schema(saturate=1, round_mode="up")

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        return [TensorType(x.type(0).shape, x.type(1).dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [convert(x[0], out[0].dtype)]
