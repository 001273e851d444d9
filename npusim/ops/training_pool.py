"""Max pooling with the mask of its maxima, and its gradient, as CANN stores them.

The mask holds one bit per channel of a block of 16, output position and tap: uint16
(N, C1, taps, positions padded); the first tap of a window that holds the maximum has it.
"""

from __future__ import annotations

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.common import check
from npusim.ops.pool import pool_window
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema
from npusim.ops.window import WINDOW_ATTRS, Window


def mask_type(shape: tuple[int, ...], window: Window) -> TensorType:
    """Type of the mask over an image of `shape` (N, C, H, W)."""
    positions = (-(-window.out[0] * window.out[1] // 16) + 1) * 16
    return TensorType((shape[0], -(-shape[1] // 16), window.taps, positions), DType.UINT16)


def _taps(padded: np.ndarray, window: Window) -> list[np.ndarray]:
    """What every tap sees: views (N, C, Ho, Wo)."""
    return [
        padded[:, :, window.along(0, i)][:, :, :, window.along(1, j)] for i, j in window.positions()
    ]


@operator("MaxPoolWithArgmax")
class MaxPoolWithArgmax(Operator):
    """x → maxima, mask. Channels in whole blocks of 16."""

    attrs = schema(**{**WINDOW_ATTRS, "kernel_shape": ...}, ceil_mode=0)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t = x.type(0)
        check(t.shape[1] % 16 == 0, f"{t.shape[1]} channels", "a multiple of 16, for the mask")
        window = pool_window(t, attrs)
        return [TensorType((*t.shape[:2], *window.out), t.dtype), mask_type(t.shape, window)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        window = Window.of(x[0].shape[2:], tuple(attrs["kernel_shape"]), attrs)
        taps = _taps(window.padded(x[0], -np.inf), window)
        y = np.maximum.reduce(taps)
        n, c, ho, wo = y.shape
        taken = np.zeros(y.shape, bool)
        mask = np.zeros(out[1].shape, np.uint16)
        weights = (1 << np.arange(16, dtype=np.uint32))[:, None, None]
        for t, seen in enumerate(taps):
            first = (seen == y) & ~taken
            taken |= first
            bits = (first.reshape(n, c // 16, 16, ho, wo) * weights).sum(2).astype(np.uint16)
            mask[:, :, t, : ho * wo] = bits.reshape(n, c // 16, -1)
        return [y, mask]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        taps = out[1].shape[2]
        return Work(vector_ops=2 * taps * out[0].size)


@operator("MaxPoolGradWithArgmax")
class MaxPoolGradWithArgmax(Operator):
    """x, dy, mask → dx: each gradient goes to the tap that held the maximum."""

    attrs = schema(**{**WINDOW_ATTRS, "kernel_shape": ...}, ceil_mode=0)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        return [x.type(0)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        data, dy, mask = x
        window = Window.of(data.shape[2:], tuple(attrs["kernel_shape"]), attrs)
        total = np.zeros_like(window.padded(data, 0.0))
        ho, wo = dy.shape[2:]
        lanes = np.arange(16)[:, None]
        for t, view in enumerate(_taps(total, window)):
            bits = mask[:, :, t, None, : ho * wo] >> lanes & 1
            view += dy * bits.reshape(dy.shape)
        top, left = window.begin
        return [total[:, :, top : top + data.shape[2], left : left + data.shape[3]]]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=3 * x[2].shape[2] * x[1].size)
