"""Add and LayerNormalization in one, as CANN's AddLayerNorm."""

from __future__ import annotations

import numpy as np

from npusim.ir import TensorType
from npusim.ops.common import axis_of, check
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema


@operator("AddLayerNorm")
class AddLayerNorm(Operator):
    """x1, x2, gamma, beta → LayerNormalization of x1 + x2 over the axes from `axis` on[, x1 + x2].

    The sum is normalised as it is, and rounded only where it is an output.
    """

    attrs = schema(axis=-1, epsilon=1e-5)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, other = x.type(0), x.type(1)
        inner = t.shape[axis_of(attrs["axis"], len(t.shape)) :]
        check(t == other, f"addends {t.shape} and {other.shape}", "tensors of one type")
        for i in (2, 3):
            given = x.type(i).shape
            check(given == inner, f"operand {i} of shape {given}", f"{inner}, as normalised")
        return [t, t][:n_outputs]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        total = x[0] + x[1]
        axes = tuple(range(axis_of(attrs["axis"], total.ndim), total.ndim))
        y = total - total.mean(axes, keepdims=True)
        variance = np.square(y).mean(axes, keepdims=True)
        y /= np.sqrt(variance + y.dtype.type(attrs["epsilon"]))
        return [y * x[2] + x[3], total][: len(out)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=9 * out[0].size)
