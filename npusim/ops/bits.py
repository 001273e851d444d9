"""Operators on the bits of elements."""

from __future__ import annotations

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.common import Movement, check, elementwise
from npusim.ops.registry import Arrays, Attrs, Inputs, Types, operator, schema


def _bit_shift(x: np.ndarray, by: np.ndarray, direction: str) -> np.ndarray:
    """LEFT fills with zeros, RIGHT with the sign; by the width or more, nothing of x stays."""
    check(direction in ("LEFT", "RIGHT"), f"direction {direction!r}", "LEFT, RIGHT", "repair it")
    width = 8 * x.dtype.itemsize
    past = (by < 0) | (by >= width)
    steps = np.where(past, 0, by).astype(x.dtype)
    if direction == "LEFT":
        return np.where(past, 0, np.left_shift(x, steps)).astype(x.dtype)
    return np.where(past, np.where(x < 0, -1, 0), np.right_shift(x, steps)).astype(x.dtype)


elementwise("BitShift", _bit_shift, attrs=schema(direction=...))


@operator("BitCast")
class BitCast(Movement):
    """The same bytes read as another element type of the same size."""

    attrs = schema(to=...)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, to = x.type(0), DType.of(attrs["to"])
        check(
            t.dtype.size == to.size,
            f"{t.dtype.value} ({t.dtype.size} B) read as {to.value} ({to.size} B)",
            "types of one size",
            "correct the attribute 'to'",
        )
        return [TensorType(t.shape, to)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [np.ascontiguousarray(x[0]).view(DType.of(attrs["to"]).np).reshape(x[0].shape)]
