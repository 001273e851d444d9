"""Norms over any axes, as CANN has them: LpNorm, and L2Loss over everything."""

from __future__ import annotations

import numpy as np

from npusim.ir import TensorType
from npusim.ops.common import axes_of, check
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema


def norm_axes(attrs: Attrs, rank: int) -> tuple[int, ...]:
    """The axes of an LpNorm: all when none are given."""
    return axes_of(tuple(attrs["axes"]), rank) or tuple(range(rank))


@operator("LpNorm")
class LpNorm(Operator):
    """max(‖x‖_p, epsilon) over `axes`; p is 0 (how many are not zero), 1, 2."""

    attrs = schema(p=2, axes=(), keepdims=0, epsilon=1e-12)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t = x.type(0)
        check(attrs["p"] in (0, 1, 2), f"p = {attrs['p']}", "0, 1 or 2")
        axes = norm_axes(attrs, len(t.shape))
        kept = [(1 if attrs["keepdims"] else 0) if i in axes else n for i, n in enumerate(t.shape)]
        shape = tuple(n for i, n in enumerate(kept) if i not in axes or attrs["keepdims"])
        return [TensorType(shape, t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        axes, p = norm_axes(attrs, x[0].ndim), attrs["p"]
        terms = (x[0] != 0).astype(x[0].dtype) if p == 0 else np.abs(x[0]) ** p
        total = terms.sum(axes)
        root = np.sqrt(total) if p == 2 else total
        return [np.maximum(root, np.float32(attrs["epsilon"])).reshape(out[0].shape)]

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
