"""Convolution on the device layouts themselves: NC1HWC0 activations, FRACTAL_Z weights; or C04.

The same arithmetic as `conv.Conv`, without turning tensors into NCHW and back. Arrays have
NC1HWC0's axes; where all channels of a pixel are together in memory, pixels are a matrix as they
are, and fp32 products are written where the result is kept. A convolution comes as a list of
pieces; all that follows from shapes is done before they run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from npusim.ir.layout import C04, channels_last
from npusim.ops.blocked_epilogue import Finish, fp32
from npusim.ops.parts import Part, Pieces, Steps, Work, by_images, by_rows
from npusim.ops.scratch import Scratch, copy_runs, framed, runs
from npusim.ops.window import Window

Columns = Callable[[Scratch], np.ndarray]

PIECE = 1 << 20  #: elements that a piece reads and writes, about: numpy's loops are long enough
PIXELS = 98  #: a piece has no fewer: BLAS arranges the weights anew for each
WHOLE = 1 << 25  #: multiply-accumulates from which BLAS shares a product out better than pieces do


@dataclass(frozen=True)
class Filters:
    """Filters in the order of their arithmetic, made once per weight.

    Attributes:
        matrix: (taps·channels, Co1·16), fp32, in (tap, channel) order.
        bias: (Co1·16,), fp32.
        channels: of a filter; those that fill up the last block count, but not where an image's few
            are in one block.
    """

    matrix: np.ndarray
    bias: np.ndarray
    channels: int

    @staticmethod
    def of(by_tap: np.ndarray, bias: np.ndarray | None) -> Filters:
        """Of weights (taps, C1, C0, Co1·16) and of the bias (Co,)."""
        taps, c1, c0, co = by_tap.shape
        matrix = np.empty((taps * c1 * c0, co), np.float32)
        matrix.reshape(by_tap.shape)[...] = by_tap
        return Filters(matrix, filled(bias, co), c1 * c0)


def filled(bias: np.ndarray | None, channels: int) -> np.ndarray:
    """(channels,) fp32: the bias, or none, and zeros for the channels that fill up a block."""
    out = np.zeros(channels, np.float32)
    if bias is not None:
        out[: bias.size] = fp32(bias).reshape(-1)
    return out


def filters(
    fractal_z: np.ndarray, taps: int, channels: int, bias: np.ndarray | None = None
) -> Filters:
    """Of FRACTAL_Z (C1·taps, Co1, 16 co, C0 ci)."""
    k1, co1, co0, c0 = fractal_z.shape
    by_tap = fp32(fractal_z).reshape(k1 // taps, taps, co1 * co0, c0).transpose(1, 0, 3, 2)
    return Filters.of(by_tap[:, :, :channels], bias)


def filters_few(
    fractal_z: np.ndarray, taps: int, channels: int, bias: np.ndarray | None = None
) -> Filters:
    """Of FRACTAL_Z_C04 (K1, Co1, 16 co, C0)."""
    _, co1, co0, _ = fractal_z.shape
    rows = fp32(fractal_z).transpose(0, 3, 1, 2).reshape(-1, co1 * co0)[: taps * C04]
    return Filters.of(rows.reshape(taps, 1, C04, -1)[:, :, :channels], bias)


def conv_blocked(
    x: np.ndarray, weights: Filters, window: Window, steps: Steps, out: np.ndarray, group: int = 1
) -> Pieces:
    """A convolution with a fused epilogue, fp32 inside.

    Args:
        x: (N, C1, H, W, C0), read as the pieces run.
        steps: epilogue steps with their operand in NC1HWC0.
        out: (N, Co1, Ho, Wo, 16), which the pieces write; no part of `x` or of an operand.
        group: groups, each of whole blocks of channels.
    """
    ho, wo = window.out
    k, co = weights.matrix.shape
    macs = ho * wo * k * co  # of an image
    whole = len(x) * macs >= WHOLE and group == 1
    seen = x[..., : weights.channels]
    bias = np.tile(weights.bias, wo)

    def piece(part: Part) -> Work:
        image, strip = strip_of(seen[part.images], window, part.rows)
        finish = Finish(bias, steps, part, out)
        columns = _columns(image, strip, group)

        def work(scratch: Scratch) -> None:
            y = finish.room(scratch)
            _product(columns(scratch), weights.matrix, y)
            finish(y)

        return work

    if whole:
        return Pieces([piece(p) for p in by_images(len(x), -(-WHOLE // macs))], whole)
    rows = max(-(-PIXELS // wo), PIECE // (wo * (k * group + co)))
    return Pieces([piece(p) for p in by_rows(len(x), ho, rows)])


def _product(columns: np.ndarray, weights: np.ndarray, out: np.ndarray) -> None:
    """(groups, pixels, K) by (K, Co) into (…, pixels·Co)."""
    group, pixels, k = columns.shape
    if group == 1:
        np.matmul(columns[0], weights, out=out.reshape(pixels, -1))
    else:
        by_group = weights.reshape(k, group, -1).transpose(1, 0, 2)
        target = out.reshape(pixels, group, -1).transpose(1, 0, 2)
        np.matmul(columns, by_group, out=target)


def strip_of(x: np.ndarray, window: Window, rows: slice) -> tuple[np.ndarray, Window]:
    """What the rows `rows` of the result see of the image, and their window on that."""
    first, last, _ = rows.indices(window.out[0])
    (height, width), (sh, _), (top, left) = window.size, window.strides, window.begin
    start = first * sh - top
    stop = start + (last - first - 1) * sh + (window.kernel[0] - 1) * window.dilations[0] + 1
    seen = slice(min(max(0, start), height), min(max(0, stop), height))
    strip = Window(
        (seen.stop - seen.start, width),
        window.kernel,
        window.strides,
        window.dilations,
        (max(0, -start) if seen.start == 0 else 0, left),
        (0, 0),
        (last - first, window.out[1]),
    )
    return x[:, :, seen], strip


def extent(window: Window) -> tuple[int, int]:
    """Height and width of the padded image, as far as the taps reach and the image goes."""
    reach = (
        (o - 1) * s + (k - 1) * d + 1
        for o, s, k, d in zip(
            window.out, window.strides, window.kernel, window.dilations, strict=True
        )
    )
    height, width = (
        max(r, b + n) for r, b, n in zip(reach, window.begin, window.size, strict=True)
    )
    return height, width


def _columns(x: np.ndarray, window: Window, group: int) -> Columns:
    """img2col: what gives (groups, pixels, K) in fp32, K in (tap, channel) order."""
    n, c1, _, _, c0 = x.shape
    (ho, wo), (sh, sw) = window.out, window.strides
    seen = x[:, :, : (ho - 1) * sh + 1 : sh, : (wo - 1) * sw + 1 : sw]
    if window.taps > 1 or any(window.begin) or seen.shape[2:4] != (ho, wo):
        return _columns_of_taps(x, window, group)
    own = c1 // group * c0
    shape = (group, n * ho * wo, own)

    def columns(scratch: Scratch) -> np.ndarray:
        turned = channels_last(fp32(seen))
        if group == 1 and turned.flags.c_contiguous:
            return turned.reshape(shape)
        found = scratch.array((group, n, ho, wo, c1 // group, c0))
        by_group = turned.reshape(n, ho, wo, group, c1 // group, c0)
        copy_runs(found, by_group.transpose(3, 0, 1, 2, 4, 5))
        return found.reshape(shape)

    return columns


def _columns_of_taps(x: np.ndarray, window: Window, group: int) -> Columns:
    """Of a padded image in channels-last: a row of taps is one contiguous run."""
    n, c1, _, _, c0 = x.shape
    (ho, wo), (kh, kw) = window.out, window.kernel
    (sh, sw), (dh, dw) = window.strides, window.dilations
    height, width = extent(window)
    step = c1 * c0  # elements to the next pixel of the image
    own = step // group  # of them, a group's
    taps: tuple[int, ...] = (group, n, ho, wo, kh, kw * own)
    strides = [own, height * width * step, width * sh * step, sw * step, width * dh * step]
    if dw > 1 or group > 1:
        taps, strides = (*taps[:5], kw, own), [*strides, dw * step]
    seen = tuple(4 * i for i in strides)

    def columns(scratch: Scratch) -> np.ndarray:
        windows = runs(padded(x, window, scratch), taps, seen)
        found = scratch.array(taps)
        found.view(windows.dtype)[..., 0] = windows
        return found.reshape(group, n * ho * wo, -1)

    return columns


def padded(x: np.ndarray, window: Window, scratch: Scratch) -> np.ndarray:
    """The image in channels-last with its padding: (N, height, width, C1, C0), fp32."""
    n, c1, h, w, c0 = x.shape
    top, left = window.begin
    image = scratch.array((n, *extent(window), c1, c0))
    inside = framed(image, slice(top, top + h), slice(left, left + w))
    copy_runs(inside, channels_last(fp32(x)))
    return image
