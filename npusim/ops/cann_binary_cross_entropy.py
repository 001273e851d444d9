"""BinaryCrossEntropy as CANN has it: of probabilities, with weights and a reduction."""

from __future__ import annotations

import numpy as np

from npusim.ir import TensorType
from npusim.ops.common import check
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema

EPSILON = 1e-12  #: logarithms are of nothing smaller


@operator("BinaryCrossEntropy")
class BinaryCrossEntropy(Operator):
    """x, y[, weight] → -w·(y·ln x + (1 - y)·ln(1 - x)); `reduction` none, sum or mean."""

    attrs = schema(reduction="mean")

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, kind = x.type(0), attrs["reduction"]
        check(kind in ("none", "sum", "mean"), f"reduction {kind!r}", "none, sum or mean")
        for i in (1, 2):
            if x.has(i):
                check(x.type(i) == t, f"operand {i}: {x.type(i)}", f"{t}")
        return [t if kind == "none" else TensorType((), t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        p = np.maximum(x[0], np.float32(EPSILON))
        q = np.maximum(1 - p, np.float32(EPSILON))
        loss = -(x[1] * np.log(p) + (1 - x[1]) * np.log(q))
        if len(x) > 2 and x[2] is not None:
            loss = loss * x[2]
        if attrs["reduction"] == "none":
            return [loss]
        return [np.asarray(loss.sum() if attrs["reduction"] == "sum" else loss.mean())]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=12 * x[0].size)
