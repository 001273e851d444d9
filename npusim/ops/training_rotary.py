"""Rotary position embedding, forward and backward, under CANN's names (mode "half")."""

from __future__ import annotations

import numpy as np

from npusim.ir import TensorType
from npusim.ops.common import check
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator


class _Rotary(Operator):
    """Base: x, cos, sin → like x; cos and sin are 1 along the axes that share them."""

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        data, cos, sin = (x.type(i) for i in range(3))
        fits = len(cos.shape) == len(data.shape) and all(
            n in (1, m) for n, m in zip(cos.shape, data.shape, strict=True)
        )
        check(
            fits and cos.shape == sin.shape and cos.shape[-1] == data.shape[-1],
            f"cos {cos.shape} and sin {sin.shape} for {data.shape}",
            "one shape that broadcasts to x, with its last axis",
        )
        check(data.shape[-1] % 2 == 0, f"a last axis of {data.shape[-1]}", "two halves")
        return [data]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=5 * x[0].size)


@operator("RotaryPositionEmbedding")
class RotaryPositionEmbedding(_Rotary):
    """x·cos + rotate(x)·sin, rotate((a, b)) = (-b, a)."""

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        data, cos, sin = x
        a, b = np.split(data, 2, -1)
        return [data * cos + np.concatenate([-b, a], -1) * sin]


@operator("RotaryPositionEmbeddingGrad")
class RotaryPositionEmbeddingGrad(_Rotary):
    """dy·cos + (b, -a), (a, b) = dy·sin: the transposed rotation."""

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        dy, cos, sin = x
        a, b = np.split(dy * sin, 2, -1)
        return [dy * cos + np.concatenate([b, -a], -1)]
