"""Convolution on the device layouts themselves: NC1HWC0 activations, FRACTAL_Z weights.

The same arithmetic as `conv.Conv`, without turning tensors into NCHW and back; channel blocks of
16 move as whole 64-byte (fp32) pieces. `gemm_weights` is the only layout change, done once per
weight by the caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd

import numpy as np

from npusim.ir import EpilogueStep
from npusim.ops.registry import get_operator, widen
from npusim.ops.window import Window


def gemm_weights(fractal_z: np.ndarray, taps: int, channels: int) -> np.ndarray:
    """FRACTAL_Z (C1·taps, Co1, 16 co, C0 ci) as a matrix (taps·C1·C0, Co1·16), fp32.

    Rows are in (tap, channel) order, as `_columns` gathers them. Where one block holds all of the
    `channels` (an image's three), the rows of its padding are left out.
    """
    k1, co1, co0, c0 = fractal_z.shape
    wide = widen(fractal_z)
    assert wide is not None
    by_tap = wide.reshape(k1 // taps, taps, co1 * co0, c0).transpose(1, 0, 3, 2)
    return np.ascontiguousarray(by_tap[:, :, :channels]).reshape(-1, co1 * co0)


def conv_blocked(
    x: np.ndarray,
    weights: np.ndarray,
    bias: np.ndarray | None,
    window: Window,
    steps: Sequence[tuple[EpilogueStep, np.ndarray | None]],
    group: int = 1,
) -> np.ndarray:
    """Convolution with a fused epilogue, fp32 inside.

    Args:
        x: (N, C1, H, W, C0); weights: from `gemm_weights`; bias: (Co,).
        steps: epilogue steps with their operand in NC1HWC0; group: each whole blocks of channels.

    Returns:
        (N, Co1, Ho, Wo, 16) fp32 (a strided view).
    """
    data = widen(x)
    assert data is not None
    n = len(data)
    ho, wo = window.out
    k, co = weights.shape
    parts = [
        _columns(images[..., : k // window.taps], window).reshape(n * ho * wo, k) @ filters
        for images, filters in zip(
            np.split(data, group, 1), np.split(weights, group, 1), strict=True
        )
    ]
    y = parts[0] if group == 1 else np.concatenate(parts, 1)
    if bias is not None:
        wide = widen(bias)
        assert wide is not None
        y[:, : len(wide)] += wide
    # Steps in front of the first operand that is an image run on the dense matrix.
    rest = list(steps)
    while rest and (rest[0][1] is None or rest[0][1].size == 1):
        y = _apply(y, rest.pop(0))
    out = y.reshape(n, ho, wo, co // 16, 16).transpose(0, 3, 1, 2, 4)
    for step in rest:
        out = _apply(out, step)
    return out


def depthwise_blocked(
    x: np.ndarray,
    weights: np.ndarray,
    bias: np.ndarray | None,
    window: Window,
    steps: Sequence[tuple[EpilogueStep, np.ndarray | None]],
) -> np.ndarray:
    """One filter per channel with a fused epilogue, fp32 inside.

    Args:
        x: (N, C1, H, W, C0); weights: (C, 1, kh, kw); bias: (C,).
        steps: epilogue steps with their operand in NC1HWC0.

    Returns:
        (N, C1, Ho, Wo, C0) fp32.
    """
    data = widen(x)
    assert data is not None
    n, c1, _, _, c0 = data.shape
    ho, wo = window.out
    taps = _per_channel(weights, c1 * c0).T.reshape(*window.kernel, c1, 1, c0)
    rows = np.tile(taps, (1, 1, 1, wo, 1)).reshape(*window.kernel, c1, wo * c0)
    y = np.zeros((n, c1, ho, wo * c0), np.float32)
    if bias is not None:
        y += np.tile(_per_channel(bias, c1 * c0).reshape(c1, 1, c0), (1, 1, wo))
    for columns, seen in _rows_of_taps(data, window):
        y += np.einsum("nchijx,ijcx->nchx", seen, rows[:, columns])
    out = y.reshape(n, c1, ho, wo, c0)
    for step in steps:
        out = _apply(out, step)
    return out


def _per_channel(a: np.ndarray, channels: int) -> np.ndarray:
    """(channels, …) fp32, with zeros for the channels that fill up the last block."""
    wide = widen(a)
    assert wide is not None
    flat = wide.reshape(len(wide), -1)
    return np.pad(flat, ((0, channels - len(flat)), (0, 0)))


def _rows_of_taps(x: np.ndarray, window: Window) -> Iterator[tuple[slice, np.ndarray]]:
    """(Columns of the kernel, what they see: (N, C1, Ho, kh, columns, Wo·C0)).

    Rows of outputs are contiguous in it: the image's columns are taken apart by the stride, and
    the taps that see the same of these parts go together.
    """
    n, c1, h, w, c0 = x.shape
    (ho, wo), (kh, kw) = window.out, window.kernel
    (sh, sw), (dh, dw) = window.strides, window.dilations
    top, left = window.begin
    height = max((ho - 1) * sh + (kh - 1) * dh + 1, top + h)
    width = max((wo - 1) * sw + (kw - 1) * dw + 1, left + w)
    image = x
    if (height, width) != (h, w):
        image = np.zeros((n, c1, height, width, c0), x.dtype)
        image[:, :, top : top + h, left : left + w] = x
    period = sw // gcd(sw, dw)  # of taps that see the same part
    for first in range(min(period, kw)):
        columns = slice(first, kw, period)
        at, part = divmod(first * dw, sw)
        source = np.ascontiguousarray(image[:, :, :, part::sw]).reshape(n, c1, height, -1)
        whole, block, row, item = source.strides
        shape = (n, c1, ho, kh, len(range(kw)[columns]), wo * c0)
        strides = (whole, block, row * sh, row * dh, period * dw // sw * c0 * item, item)
        start = source[..., at * c0 :]
        yield columns, np.lib.stride_tricks.as_strided(start, shape, strides, writeable=False)


_BOUNDS = {"Max": np.maximum, "Min": np.minimum}


def _apply(y: np.ndarray, step: tuple[EpilogueStep, np.ndarray | None]) -> np.ndarray:
    what, operand = step
    if what.op_type == "Relu":
        return np.maximum(y, 0, out=y)
    wide = widen(operand)
    if wide is not None and wide.size == 1:
        wide = wide.reshape(())
        if what.op_type in _BOUNDS:
            return _BOUNDS[what.op_type](y, wide, out=y)
    if wide is not None and what.op_type in ("Add", "Sum"):
        return np.add(wide, y)
    op = get_operator(what.op_type)
    args = [y] if wide is None else [y, wide]
    return op.compute(args, {**op.attrs, **dict(what.attrs)}, ())[0]


def _columns(x: np.ndarray, window: Window) -> np.ndarray:
    """img2col: (N·Ho·Wo, taps·C), K in (tap, channel) order.

    The image is turned into channels-last once; a row of taps is then one contiguous piece.
    """
    n, c1, h, w, c0 = x.shape
    (ho, wo), (kh, kw) = window.out, window.kernel
    (sh, sw), (dh, dw) = window.strides, window.dilations
    if window.taps == 1 and not any(window.begin):
        view = x[:, :, : (ho - 1) * sh + 1 : sh, : (wo - 1) * sw + 1 : sw]
        return np.ascontiguousarray(view.transpose(0, 2, 3, 1, 4))
    top, left = window.begin
    height = max((ho - 1) * sh + (kh - 1) * dh + 1, top + h)
    width = max((wo - 1) * sw + (kw - 1) * dw + 1, left + w)
    image = np.zeros((n, height, width, c1, c0), x.dtype)
    image[:, top : top + h, left : left + w] = x.transpose(0, 2, 3, 1, 4)
    row, col, _, _ = image.strides[1:]
    shape = (n, ho, wo, kh, kw, c1 * c0)
    strides = (image.strides[0], row * sh, col * sw, row * dh, col * dw, image.itemsize)
    taps = np.lib.stride_tricks.as_strided(image, shape, strides, writeable=False)
    return np.ascontiguousarray(taps)
