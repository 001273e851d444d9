"""Depthwise convolution on NC1HWC0 itself: one filter per channel, long rows at once.

A row is a line of pixels with all their channels; where the stride across is not 1, a pixel's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.ops.blocked import PIECE, filled, padded, strip_of
from npusim.ops.blocked_epilogue import Finish, fp32
from npusim.ops.parts import Part, Pieces, Steps, Work, by_rows
from npusim.ops.scratch import Scratch
from npusim.ops.window import Window


@dataclass(frozen=True)
class DepthwiseFilters:
    """Filters in the order of their arithmetic, made once per weight.

    Attributes:
        taps: (kh, kw, C1·C0), fp32.
        bias: (C1·C0,), fp32.
    """

    taps: np.ndarray
    bias: np.ndarray


def depthwise_filters(
    weights: np.ndarray, c0: int, bias: np.ndarray | None = None
) -> DepthwiseFilters:
    """Of weights (C, 1, kh, kw) and of the bias (C,)."""
    c, _, kh, kw = weights.shape
    taps = np.zeros((kh, kw, -(-c // c0) * c0), np.float32)
    taps[..., :c] = fp32(weights).reshape(c, kh, kw).transpose(1, 2, 0)
    return DepthwiseFilters(taps, filled(bias, taps.shape[2]))


def depthwise_blocked(
    x: np.ndarray, weights: DepthwiseFilters, window: Window, steps: Steps, out: np.ndarray
) -> Pieces:
    """A depthwise convolution with a fused epilogue, fp32 inside.

    Args:
        x: (N, C1, H, W, C0), read as the pieces run.
        steps: epilogue steps with their operand in NC1HWC0.
        out: (N, C1, Ho, Wo, C0), which the pieces write; no part of `x` or of an operand.
    """
    n, c1, h, w, c0 = x.shape
    ho, wo = window.out
    pixels = wo if window.strides[1] == 1 else 1
    taps, bias = np.tile(weights.taps, (1, 1, pixels)), np.tile(weights.bias, wo)

    def piece(part: Part) -> Work:
        image, strip = strip_of(x[part.images], window, part.rows)
        rows, (sh, sw), (dh, dw) = strip.out[0], strip.strides, strip.dilations
        shape = (len(image), rows, wo // pixels, *window.kernel, pixels * c1 * c0)
        finish = Finish(bias, steps, part, out)

        def work(scratch: Scratch) -> None:
            y = finish.room(scratch)
            source = padded(image, strip, scratch)
            whole, row, pixel, _, item = source.strides
            strides = (whole, row * sh, pixel * sw, row * dh, pixel * dw, item)
            seen: np.ndarray = np.ndarray(shape, np.float32, source, 0, strides)
            found = y.reshape(*shape[:3], -1)
            np.einsum("nhwijx,ijx->nhwx", seen, taps, out=found)
            finish(y)

        return work

    row = (w * max(1, h // ho) + wo) * c1 * c0
    return Pieces([piece(p) for p in by_rows(n, ho, max(1, PIECE // row))])
