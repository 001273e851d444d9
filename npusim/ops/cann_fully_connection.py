"""FullyConnection: CANN's matrix product with weights as a convolution stores them."""

from __future__ import annotations

from math import prod

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.common import check
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema


@operator("FullyConnection")
class FullyConnection(Operator):
    """x, w [N, K, 1, 1], bias [1, N, 1, 1] → x · wᵀ + bias.

    x is [B, M, K] or [M, K] (`axis` 2) → [B, M, N] or [M, N], or an image [M, C, H, W] with
    K = C·H·W (`axis` 1) → [M, N]. There K runs over blocks of C0 channels, rows, columns and the
    channels of a block, and w's K must run alike: C is a whole number of blocks. int8 gives int32.
    """

    attrs = schema(axis=1)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, n = x.type(0), x.type(1).shape[0]
        k = prod(t.shape[1:]) if len(t.shape) == 4 else t.shape[-1]
        check(
            x.type(1).shape[1] == k, f"weights {x.type(1).shape} for K = {k}", f"({n}, {k}, 1, 1)"
        )
        dtype = DType.INT32 if t.dtype is DType.INT8 else t.dtype
        return [TensorType((*t.shape[:1], n) if len(t.shape) == 4 else (*t.shape[:-1], n), dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        rows, w = x[0], x[1][:, :, 0, 0]
        if rows.ndim == 4:
            m, c, h, width = rows.shape
            c0 = 32 if rows.dtype == np.int8 else 16
            rows = rows.reshape(m, c // c0, c0, h, width).transpose(0, 1, 3, 4, 2).reshape(m, -1)
        if rows.dtype == np.int8:
            rows, w = rows.astype(np.int32), w.astype(np.int32)
        return [rows @ w.T + x[2].reshape(-1)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(macs=out[0].size * x[1].shape[1])
