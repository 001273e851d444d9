"""Gated activations of two halves: SwiGlu, forward and backward, under CANN's names."""

from __future__ import annotations

import numpy as np

from npusim.ir import TensorType
from npusim.ops.common import axis_of, check
from npusim.ops.elementary import sigmoid
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema


def _halved(t: TensorType, axis: int) -> TensorType:
    """The type of one half along the axis."""
    axis = axis_of(axis, len(t.shape))
    check(t.shape[axis] % 2 == 0, f"axis {axis} of {t.shape} in halves", "an even extent")
    shape = (*t.shape[:axis], t.shape[axis] // 2, *t.shape[axis + 1 :])
    return TensorType(shape, t.dtype)


@operator("SwiGlu")
class SwiGlu(Operator):
    """x = (a, b) along `dim` → a·σ(a)·b."""

    attrs = schema(dim=-1)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        return [_halved(x.type(0), attrs["dim"])]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        a, b = np.split(x[0], 2, attrs["dim"])
        return [a * sigmoid(a) * b]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=6 * out[0].size)


@operator("SwiGluGrad")
class SwiGluGrad(Operator):
    """dy, x = (a, b) along `dim` → gradients of a and b, side by side as in x."""

    attrs = schema(dim=-1)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        half = _halved(x.type(1), attrs["dim"])
        check(x.type(0).shape == half.shape, f"dy of shape {x.type(0).shape}", str(half.shape))
        return [x.type(1)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        a, b = np.split(x[1], 2, attrs["dim"])
        s = sigmoid(a)
        slope = s + a * s * (1 - s)
        return [np.concatenate([x[0] * b * slope, x[0] * a * s], attrs["dim"])]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=16 * x[0].size)
