"""Depthwise convolution on NC1HWC0 itself: one filter per channel, long rows at once.

A row is a line of pixels of one block of channels, or all channels of one pixel: what is longer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.ops.blocked import PIECE, channels_last, extent, strip_of
from npusim.ops.blocked_epilogue import Finish, fp32
from npusim.ops.parts import Part, Pieces, Steps, Work, by_blocks, by_rows
from npusim.ops.scratch import Scratch, copy_runs, framed
from npusim.ops.window import Window


@dataclass(frozen=True)
class DepthwiseFilters:
    """Filters in the order of their arithmetic, made once per weight.

    Attributes:
        taps: (kh, kw, C1, C0), fp32.
        bias: (C1, C0), fp32.
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
    start = np.zeros(taps.shape[2], np.float32)
    if bias is not None:
        start[:c] = fp32(bias).reshape(-1)
    return DepthwiseFilters(taps.reshape(kh, kw, -1, c0), start.reshape(-1, c0))


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
    if window.strides[1] > 1 or c1 >= wo:
        row = w * max(1, h // ho) + wo
        parts = by_rows(n, ho, max(1, PIECE // (row * c1 * c0)))
        return Pieces([_by_pixel(x, weights, window, p, Finish(steps, p, out)) for p in parts])
    lines = _Lines(
        np.tile(weights.taps[..., None, :], (1, 1, 1, wo, 1)).reshape(*window.kernel, c1, -1),
        np.tile(weights.bias[:, None], (1, 1, wo)),
    )
    parts = by_blocks(n, c1, max(1, PIECE // ((h * w + ho * wo) * c0)))
    return Pieces([_by_line(x, lines, window, p, Finish(steps, p, out)) for p in parts])


def _by_pixel(
    x: np.ndarray, weights: DepthwiseFilters, window: Window, part: Part, finish: Finish
) -> Work:
    """All channels of a pixel at once: the image in channels-last, and the result back."""
    image, strip = strip_of(x[part.images], window, part.rows)
    n, c1, _, _, c0 = image.shape
    (ho, wo), (sh, sw), (dh, dw) = strip.out, strip.strides, strip.dilations
    taps, bias = weights.taps.reshape(*window.kernel, -1), weights.bias.reshape(-1)
    shape = (n, ho, wo, *window.kernel, c1 * c0)

    def work(scratch: Scratch) -> None:
        whole, row, pixel, _, item = (padded := channels_last(image, strip, scratch)).strides
        strides = (whole, row * sh, pixel * sw, row * dh, pixel * dw, item)
        seen: np.ndarray = np.ndarray(shape, np.float32, padded, 0, strides)
        found = scratch.array((n, ho, wo, c1 * c0))
        np.einsum("nhwijc,ijc->nhwc", seen, taps, out=found)
        found += bias
        y = finish.room(scratch)
        copy_runs(y, found.reshape(n, ho, wo, c1, c0).transpose(0, 3, 1, 2, 4))
        finish(y)

    return work


@dataclass(frozen=True)
class _Lines:
    """Filters (kh, kw, C1, Wo·C0) and bias (C1, 1, Wo·C0) repeated along a line of pixels."""

    taps: np.ndarray
    bias: np.ndarray


def _by_line(x: np.ndarray, lines: _Lines, window: Window, part: Part, finish: Finish) -> Work:
    """A line of one block of channels at once, where the stride across is 1."""
    image, taps, bias = x[part.images, part.blocks], lines.taps[:, :, part.blocks], lines.bias
    bias = bias[part.blocks]
    n, c1, h, w, c0 = image.shape
    (ho, wo), (kh, kw), (dh, dw) = window.out, window.kernel, window.dilations
    (top, left), (height, width), sh = window.begin, extent(window), window.strides[0]
    rows, across = slice(top, top + h), slice(left, left + w)
    shape = (n, c1, ho, kh, kw, wo * c0)

    def work(scratch: Scratch) -> None:
        padded = scratch.array((n, c1, height, width, c0))
        copy_runs(framed(padded, 2, rows, across), fp32(image))
        whole, block, row, pixel, item = padded.strides
        strides = (whole, block, row * sh, row * dh, pixel * dw, item)
        seen: np.ndarray = np.ndarray(shape, np.float32, padded, 0, strides)
        y = finish.room(scratch)
        found = y.reshape(*y.shape[:3], -1)
        np.einsum("nchijx,ijcx->nchx", seen, taps, out=found)
        found += bias
        finish(y)

    return work
