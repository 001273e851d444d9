"""InstanceNorm as CANN has it: with the statistics as outputs."""

from __future__ import annotations

import numpy as np

from npusim.ir import TensorType
from npusim.ops.common import check
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema


@operator("InstanceNorm")
class InstanceNorm(Operator):
    """x [N, C, …], scale [C], offset [C] → y, mean and variance [N, C, 1 …], in x's type."""

    attrs = schema(epsilon=1e-6)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t = x.type(0)
        check(len(t.shape) > 2, f"input of shape {t.shape}", "[N, C, …]")
        for i in (1, 2):
            given = x.type(i).shape
            check(given == t.shape[1:2], f"operand {i} of shape {given}", f"({t.shape[1]},)")
        kept = TensorType((*t.shape[:2], *[1] * (len(t.shape) - 2)), t.dtype)
        return [t, kept, kept]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        data, axes = x[0], tuple(range(2, x[0].ndim))
        channels = (-1, *[1] * len(axes))
        mean = data.mean(axes, keepdims=True)
        variance = np.square(data - mean).mean(axes, keepdims=True)
        y = (data - mean) / np.sqrt(variance + np.float32(attrs["epsilon"]))
        return [y * x[1].reshape(channels) + x[2].reshape(channels), mean, variance]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=18 * x[0].size)
