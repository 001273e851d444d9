"""Linear algebra beyond products of matrices."""

from __future__ import annotations

import numpy as np

from npusim.ir import TensorType
from npusim.ops.common import check
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator


@operator("Det")
class Det(Operator):
    """Determinant of each square matrix in the last two dimensions."""

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t = x.type(0)
        square = len(t.shape) > 1 and t.shape[-1] == t.shape[-2]
        check(square, f"Det of {t.shape}", "[… n, n]")
        return [TensorType(t.shape[:-2], t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [np.asarray(np.linalg.det(x[0]))]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=2 * x[0].size * x[0].shape[-1] // 3)  # an LU factorisation
