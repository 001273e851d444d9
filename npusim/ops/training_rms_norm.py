"""RmsNorm and its kin, as CANN names them: statistics in fp32, a reciprocal deviation per row."""

from __future__ import annotations

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.common import check
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema


def _deviations(x: Inputs, gamma: int) -> TensorType:
    """One value per row: the axes that gamma does not have, then ones."""
    shape, inner = x.type(0).shape, x.type(gamma).shape
    check(
        bool(inner) and shape[-len(inner) :] == inner,
        f"gamma of shape {inner} for rows of {shape}",
        "the last axes of x",
    )
    return TensorType((*shape[: -len(inner)], *(1,) * len(inner)), DType.FLOAT32)


def _normalised(x: np.ndarray, gamma: np.ndarray, epsilon: float) -> list[np.ndarray]:
    """x · rstd · gamma, and rstd = 1/√(mean(x²) + ε)."""
    axes = tuple(range(x.ndim - gamma.ndim, x.ndim))
    rstd = 1 / np.sqrt(np.square(x).mean(axes, keepdims=True) + np.float32(epsilon))
    return [x * rstd * gamma, rstd]


class _RmsNorm(Operator):
    """Base: `passes` vector operations per element of x."""

    attrs = schema(epsilon=1e-6)
    passes = 6

    @classmethod
    def work(cls, x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=cls.passes * x[0].size)


@operator("RmsNorm")
class RmsNorm(_RmsNorm):
    """x, gamma → y, rstd."""

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        return [x.type(0), _deviations(x, 1)][:n_outputs]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return _normalised(x[0], x[1], attrs["epsilon"])[: len(out)]


@operator("AddRmsNorm")
class AddRmsNorm(_RmsNorm):
    """x1, x2, gamma → y, rstd, x1 + x2."""

    passes = 7

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        return [x.type(0), _deviations(x, 2), x.type(0)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        total = x[0] + x[1]
        return [*_normalised(total, x[2], attrs["epsilon"]), total]


@operator("RmsNormGrad")
class RmsNormGrad(_RmsNorm):
    """dy, x, rstd, gamma → dx, gradient of gamma in fp32."""

    attrs = schema()
    passes = 12

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        return [x.type(0), TensorType(x.type(3).shape, DType.FLOAT32)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        dy, data, rstd, gamma = x
        outer = tuple(range(dy.ndim - gamma.ndim))
        inner = tuple(range(dy.ndim - gamma.ndim, dy.ndim))
        rstd = rstd.reshape(*dy.shape[: len(outer)], *(1,) * gamma.ndim)
        standard = data * rstd
        g = dy * gamma
        dx = (g - standard * (g * standard).mean(inner, keepdims=True)) * rstd
        return [dx, (dy * standard).sum(outer)]
