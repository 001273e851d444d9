"""Depthwise convolution on NC1HWC0 itself: one filter per channel, whole rows of pixels at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import gcd

import numpy as np

from npusim.ops.blocked import PIECE, Part, Pieces, Steps, apply_steps, extent, store
from npusim.ops.registry import widen
from npusim.ops.window import Window


def depthwise_taps(weights: np.ndarray, c0: int) -> np.ndarray:
    """Filters (C, 1, kh, kw) as (kh, kw, C1, C0), fp32."""
    kernel = weights.shape[2:]
    flat = _per_channel(weights, c0)
    return np.ascontiguousarray(flat.transpose(2, 0, 1)).reshape(*kernel, *flat.shape[:2])


def depthwise_blocked(
    x: np.ndarray,
    taps: np.ndarray,
    bias: np.ndarray | None,
    window: Window,
    steps: Steps,
    out: np.ndarray,
) -> Pieces:
    """A depthwise convolution with a fused epilogue, fp32 inside.

    Args:
        x: (N, C1, H, W, C0); taps: from `depthwise_taps`; bias: (C,).
        steps: epilogue steps with their operand in NC1HWC0.
        out: (N, C1, Ho, Wo, C0), which the pieces write; no part of `x` or of an operand.
    """
    n, c1, h, w, c0 = x.shape
    ho, wo = window.out
    start = None if bias is None else _per_channel(bias, c0).transpose(0, 2, 1)

    def piece(part: Part) -> None:
        data = widen(x[part.images, part.blocks])
        assert data is not None
        rows = np.tile(taps[:, :, part.blocks, None], (1, 1, 1, wo, 1))
        rows = rows.reshape(*window.kernel, -1, wo * c0)
        y: np.ndarray | None = None
        for columns, seen in _rows_of_taps(data, window):
            more = np.einsum("nchijx,ijcx->nchx", seen, rows[:, columns])
            y = more if y is None else np.add(y, more, out=y)
        assert y is not None
        if start is not None:
            y += np.tile(start[part.blocks], (1, wo, 1)).reshape(-1, 1, wo * c0)
        z = apply_steps(y.reshape(*y.shape[:3], wo, c0), part.steps(steps, out.shape))
        store(z, part.of(out, out.shape))

    block = (h * w + ho * wo) * c0
    return Pieces([partial(piece, p) for p in _by_blocks(n, c1, max(1, PIECE // block))])


def _by_blocks(n: int, c1: int, blocks: int) -> list[Part]:
    """About `blocks` blocks of channels each: of an image, or of whole images."""
    everything = slice(None)
    if blocks >= c1:
        images = max(1, blocks // c1)
        return [Part(slice(i, i + images), everything, everything) for i in range(0, n, images)]
    return [
        Part(slice(i, i + 1), slice(a, a + blocks), everything)
        for i in range(n)
        for a in range(0, c1, blocks)
    ]


def _per_channel(a: np.ndarray, c0: int) -> np.ndarray:
    """(C, …) as (C1, C0, rest) fp32, with zeros for the channels that fill up the last block."""
    wide = widen(a)
    assert wide is not None
    flat = wide.reshape(len(wide), -1)
    filled = np.pad(flat, ((0, -len(flat) % c0), (0, 0)))
    return filled.reshape(-1, c0, flat.shape[1])


def _rows_of_taps(x: np.ndarray, window: Window) -> Iterator[tuple[slice, np.ndarray]]:
    """(Columns of the kernel, what they see: (N, C1, Ho, kh, columns, Wo·C0)).

    Rows of outputs are contiguous in it: the image's columns are taken apart by the stride, and
    the taps that see the same of these parts go together.
    """
    n, c1, h, _, c0 = x.shape
    (ho, wo), (kh, kw) = window.out, window.kernel
    (sh, sw), (dh, dw) = window.strides, window.dilations
    top, left = window.begin
    height, width = extent(window)
    period = sw // gcd(sw, dw)  # of taps that see the same part
    for first in range(min(period, kw)):
        columns = slice(first, kw, period)
        at, part = divmod(first * dw, sw)
        source = np.zeros((n, c1, height, len(range(part, width, sw)), c0), x.dtype)
        skipped = (part - left) % sw  # columns of the image in front of the first that counts
        seen = x[:, :, :, skipped::sw]
        begin = (left + skipped - part) // sw
        source[:, :, top : top + h, begin : begin + seen.shape[3]] = seen
        flat = source.reshape(n, c1, height, -1)
        whole, block, row, item = flat.strides
        shape = (n, c1, ho, kh, len(range(kw)[columns]), wo * c0)
        strides = (whole, block, row * sh, row * dh, period * dw // sw * c0 * item, item)
        start = flat[..., at * c0 :]
        yield columns, np.lib.stride_tricks.as_strided(start, shape, strides, writeable=False)
