"""Norms over any axes, as CANN has them: LpNorm, and L2Loss over everything."""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.ir import TensorType
from npusim.ops.common import axes_of, check
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema

_LARGEST, _SMALLEST = 2**31 - 1, -(2**31)  #: how CANN writes inf and -inf


def power(p: Any) -> float:
    """The order of a norm as a number: a whole one of at least 0, or an infinity.

    Raises:
        GraphError: it is none.
    """
    known = {"inf": np.inf, _LARGEST: np.inf, "-inf": -np.inf, _SMALLEST: -np.inf}
    order = known.get(p, p)
    whole = isinstance(order, int | float) and (order in (np.inf, -np.inf) or order >= 0)
    check(whole and (np.isinf(order) or order == int(order)), f"p = {p}", "0, 1, 2 …, inf, -inf")
    return float(order)


def norm_axes(attrs: Attrs, rank: int) -> tuple[int, ...]:
    """The axes of an LpNorm: all when none are given."""
    return axes_of(tuple(attrs["axes"]), rank) or tuple(range(rank))


@operator("LpNorm")
class LpNorm(Operator):
    """max(‖x‖_p, epsilon) over `axes`; p is 0 (how many are not zero), 1, 2 …, inf, -inf."""

    attrs = schema(p=2, axes=(), keepdims=0, epsilon=1e-12)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t = x.type(0)
        power(attrs["p"])
        axes = norm_axes(attrs, len(t.shape))
        kept = [(1 if attrs["keepdims"] else 0) if i in axes else n for i, n in enumerate(t.shape)]
        shape = tuple(n for i, n in enumerate(kept) if i not in axes or attrs["keepdims"])
        return [TensorType(shape, t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        axes, p, size = norm_axes(attrs, x[0].ndim), power(attrs["p"]), np.abs(x[0])
        if np.isinf(p):
            norm = size.max(axes) if p > 0 else size.min(axes)
        elif p == 0:
            norm = (size != 0).astype(size.dtype).sum(axes)
        else:
            norm = (size ** np.float32(p)).sum(axes) ** np.float32(1 / p)
        return [np.maximum(norm, np.float32(attrs["epsilon"])).reshape(out[0].shape)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=3 * x[0].size)


@operator("L2Loss")
class L2Loss(Operator):
    """Half the sum of the squares."""

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        return [TensorType((), x.type(0).dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [np.asarray(np.square(x[0]).sum() / 2)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=2 * x[0].size)
