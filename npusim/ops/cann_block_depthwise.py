"""Depthwise operators on the cube, as CANN has them: blocks of 16 channels, each with its filter.

A filter holds one 16 × 16 matrix a tap and block, of which an average uses the diagonal; the
operators take any.
"""

from __future__ import annotations

import numpy as np

from npusim.ir import TensorType
from npusim.ops.common import check
from npusim.ops.pool import pool_window
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema
from npusim.ops.window import WINDOW_ATTRS, Window

C0 = 16


def _blocked(x: np.ndarray) -> np.ndarray:
    """(N, C, …) as (N, C1, 16, …)."""
    return x.reshape(x.shape[0], -1, C0, *x.shape[2:])


def _times(x: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    """(N, C1, 16, …) by a matrix (C1, 16 out, 16 in) each."""
    return np.einsum("nkc...,koc->nko...", x, matrices)


@operator("AvgPool3DD")
class AvgPool3DD(Operator):
    """x (N, C, D, H, W), filter (kd·C1·kh·kw, 1, 16, 16) → y."""

    attrs = schema(**{**WINDOW_ATTRS, "kernel_shape": ...}, ceil_mode=0)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t = x.type(0)
        check(t.shape[1] % C0 == 0, f"{t.shape[1]} channels", "a multiple of 16")
        return [TensorType((*t.shape[:2], *pool_window(t, attrs).out), t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        data, filters = x
        window = Window.of(data.shape[2:], tuple(attrs["kernel_shape"]), attrs)
        kd, kh, kw = window.kernel
        by_tap = filters.reshape(kd, -1, kh, kw, C0, C0)
        padded = window.padded(data)
        total = np.zeros(out[0].shape, np.float32)
        for i, j, k in window.positions():
            seen = _blocked(window.view(padded, (i, j, k)))
            total += _times(seen, by_tap[i, :, j, k]).reshape(total.shape)
        return [total]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(macs=out[0].size * C0 * int(np.prod(attrs["kernel_shape"])))


@operator("AvgPoolGradVm")
class AvgPoolGradVm(Operator):
    """dy, mean (1 / taps of each output), filter (C1, kh, kw, 1, 16, 16) → dx of `image_shape`.

    Without a filter every matrix is the identity.
    """

    attrs = schema(**{**WINDOW_ATTRS, "kernel_shape": ...}, image_shape=...)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t = x.type(0)
        check(t.shape[1] % C0 == 0, f"{t.shape[1]} channels", "a multiple of 16")
        return [TensorType((*t.shape[:2], *attrs["image_shape"]), t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        dy, mean = x[:2]
        one = np.broadcast_to(np.eye(C0, dtype=np.float32), (dy.shape[1] // C0, C0, C0))
        size = tuple(attrs["image_shape"])
        given = {k: v for k, v in attrs.items() if k != "image_shape"}
        window = Window.of(size, tuple(attrs["kernel_shape"]), given)
        spread = _blocked((dy * mean).astype(np.float16).astype(np.float32))
        total = window.padded(np.zeros((*dy.shape[:2], *size), np.float32)).copy()
        for i, j in window.positions():
            view = window.view(total, (i, j))
            matrices = x[2][:, i, j, 0] if len(x) > 2 else one
            view += _times(spread, matrices).reshape(dy.shape)
        top, left = window.begin
        return [total[:, :, top : top + size[0], left : left + size[1]]]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(macs=out[0].size * C0 * int(np.prod(attrs["kernel_shape"])))
