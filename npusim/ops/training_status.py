"""The chip's overflow status, as training's loss scaling asks for it: eight fp32 numbers.

npusim's arithmetic raises no status: what is read and what is cleared are zeros.
"""

from __future__ import annotations

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator

WORDS = 8


class _Status(Operator):
    """Base: eight zeros."""

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        return [TensorType((WORDS,), DType.FLOAT32)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [np.zeros(WORDS, np.float32)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=WORDS)


@operator("NPUAllocFloatStatus")
class NPUAllocFloatStatus(_Status):
    """Memory for the status."""


@operator("NPUGetFloatStatus")
class NPUGetFloatStatus(_Status):
    """The status of every core, into the memory of NPUAllocFloatStatus."""


@operator("NPUClearFloatStatus")
class NPUClearFloatStatus(_Status):
    """Clear the status of every core."""
