"""Convolution on the device layouts themselves: NC1HWC0 activations, FRACTAL_Z weights; or C04.

The same arithmetic as `conv.Conv`, without turning tensors into NCHW and back; channel blocks of
16 move as whole 64-byte (fp32) pieces. A convolution comes as a list of pieces that depend on
nothing of each other, so that threads may share them out; what a piece is depends on shapes only,
so that the numbers do not depend on the threads. `gemm_weights` is the only layout change, done
once per weight by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np

from npusim.ir import DType, EpilogueStep, TensorType
from npusim.ir.layout import C04
from npusim.ops.registry import get_operator, round_to, widen
from npusim.ops.window import Window

Work = Callable[[], None]
Steps = Sequence[tuple[EpilogueStep, np.ndarray | None]]

PIECE = 1 << 18  #: elements that a piece reads and writes, about: they stay in a processor's cache
PIXELS = 98  #: a piece has no fewer: BLAS arranges the weights anew for each
MACS = 1 << 23  #: of a piece, about, where there are few
FEW = 4  #: pieces: enough for as many threads
WHOLE = 1 << 25  #: multiply-accumulates from which BLAS shares a product out better than pieces do


@dataclass(frozen=True)
class Pieces:
    """Work in pieces that depend on nothing of each other.

    Attributes:
        whole: a single piece, in which BLAS does best with all its threads.
    """

    work: Sequence[Work]
    whole: bool = False


@dataclass(frozen=True)
class Part:
    """A part of a result (N, Co1, Ho, Wo, C0)."""

    images: slice
    blocks: slice
    rows: slice

    @property
    def channels(self) -> slice:
        """Columns of a matrix that are the blocks of channels."""
        first, last = self.blocks.start, self.blocks.stop
        return slice(first and first * 16, last and last * 16)

    def of(self, a: np.ndarray, whole: tuple[int, ...]) -> np.ndarray:
        """The same part of an operand that is broadcast to `whole`."""
        at = (self.images, self.blocks, self.rows)
        if a.ndim < len(whole):
            return a
        return a[tuple(s if a.shape[i] == whole[i] else slice(None) for i, s in enumerate(at))]

    def steps(self, steps: Steps, whole: tuple[int, ...]) -> Steps:
        """Epilogue steps with this part of their operands."""
        return [(s, a if a is None else self.of(a, whole)) for s, a in steps]


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


def gemm_weights_few(fractal_z: np.ndarray, taps: int, channels: int) -> np.ndarray:
    """The same of FRACTAL_Z_C04 (K1, Co1, 16 co, C0): (taps·channels, Co1·16), fp32."""
    _, co1, co0, _ = fractal_z.shape
    wide = widen(fractal_z)
    assert wide is not None
    rows = wide.transpose(0, 3, 1, 2).reshape(-1, co1 * co0)[: taps * C04]
    return np.ascontiguousarray(rows.reshape(taps, C04, -1)[:, :channels]).reshape(-1, co1 * co0)


def conv_blocked(
    x: np.ndarray,
    weights: np.ndarray,
    bias: np.ndarray | None,
    window: Window,
    steps: Steps,
    out: np.ndarray,
    group: int = 1,
) -> Pieces:
    """A convolution with a fused epilogue, fp32 inside.

    Args:
        x: (N, C1, H, W, C0); weights: from `gemm_weights`; bias: (Co,).
        steps: epilogue steps with their operand in NC1HWC0.
        out: (N, Co1, Ho, Wo, 16), which the pieces write; no part of `x` or of an operand.
        group: groups, each of whole blocks of channels.
    """
    wide = widen(bias)
    ho, wo = window.out
    k, co = weights.shape
    filters = np.split(weights, group, 1)
    row = wo * (k * group + co)

    def product(image: np.ndarray, strip: Window, part: Part) -> np.ndarray:
        """(N·rows·Wo, Co) of a part."""
        if group == 1:
            return _columns(image, strip).reshape(-1, k) @ weights[:, part.channels]
        images = np.split(image, group, 1)
        each = zip(images, filters, strict=True)
        return np.concatenate([_columns(i, strip).reshape(-1, k) @ f for i, f in each], 1)

    def piece(part: Part) -> None:
        image, strip = _strip(x[part.images, ..., : k // window.taps], window, part.rows)
        y = product(image, strip, part)
        if wide is not None:
            own = wide[part.channels]
            y[:, : len(own)] += own
        # Steps in front of the first operand that is an image run on the dense matrix.
        images = (i for i, (_, a) in enumerate(steps) if a is not None and a.size > 1)
        dense = next(images, len(steps))
        y = apply_steps(y, steps[:dense])
        z = y.reshape(len(image), strip.out[0], wo, -1, 16).transpose(0, 3, 1, 2, 4)
        z = apply_steps(z, part.steps(steps[dense:], out.shape))
        store(z, part.of(out, out.shape))

    macs = len(x) * ho * wo * k * co
    if macs >= WHOLE and group == 1:
        everything = slice(None)
        return Pieces([partial(piece, Part(everything, everything, everything))], whole=True)
    parts = _by_rows(len(x), ho, max(-(-PIXELS // wo), PIECE // row))
    if len(parts) < FEW and group == 1:
        count = min(FEW, macs // len(parts) // MACS)
        parts = [q for p in parts for q in _by_channels(p, co // 16, count)]
    return Pieces([partial(piece, p) for p in parts])


def _by_rows(n: int, height: int, rows: int) -> list[Part]:
    """About `rows` rows of the results each: of an image, or whole images."""
    everything = slice(None)
    if rows >= height:
        images = max(1, rows // height)
        return [Part(slice(i, i + images), everything, everything) for i in range(0, n, images)]
    count = -(-height // rows)
    cuts = [height * i // count for i in range(count + 1)]
    return [
        Part(slice(i, i + 1), everything, slice(a, b)) for i in range(n) for a, b in pairwise(cuts)
    ]


def _by_channels(part: Part, co1: int, count: int) -> list[Part]:
    """A part in at most `count` parts of the blocks of channels."""
    step = -(-co1 // max(1, count))
    return [replace(part, blocks=slice(i, i + step)) for i in range(0, co1, step)]


def _strip(x: np.ndarray, window: Window, rows: slice) -> tuple[np.ndarray, Window]:
    """What the rows `rows` of the result see of the image, fp32, and their window on that."""
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
    wide = widen(x[:, :, seen])
    assert wide is not None
    return wide, strip


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


def _columns(x: np.ndarray, window: Window) -> np.ndarray:
    """img2col: (N, Ho, Wo, taps·C), K in (tap, channel) order.

    The image is turned into channels-last once; a row of taps is then one contiguous piece.
    """
    n, c1, h, w, c0 = x.shape
    (ho, wo), (kh, kw) = window.out, window.kernel
    (sh, sw), (dh, dw) = window.strides, window.dilations
    if window.taps == 1 and not any(window.begin):
        view = x[:, :, : (ho - 1) * sh + 1 : sh, : (wo - 1) * sw + 1 : sw]
        if view.shape[2:4] == (ho, wo):
            return np.ascontiguousarray(view.transpose(0, 2, 3, 1, 4))
    top, left = window.begin
    image = np.zeros((n, *extent(window), c1, c0), x.dtype)
    image[:, top : top + h, left : left + w] = x.transpose(0, 2, 3, 1, 4)
    row, col, _, _ = image.strides[1:]
    shape = (n, ho, wo, kh, kw, c1 * c0)
    strides = (image.strides[0], row * sh, col * sw, row * dh, col * dw, image.itemsize)
    taps = np.lib.stride_tricks.as_strided(image, shape, strides, writeable=False)
    return np.ascontiguousarray(taps)


def apply_steps(y: np.ndarray, steps: Steps) -> np.ndarray:
    """Epilogue steps on fp32 values, in place where that can be."""
    rest = list(steps)
    while rest:
        bounds = _bounds(rest[:2])
        if bounds is not None:
            np.clip(y, *bounds, out=y)
            del rest[:2]
        else:
            y = _apply(y, *rest.pop(0))
    return y


def _bounds(steps: Steps) -> tuple[np.ndarray, np.ndarray] | None:
    """The two bounds where the steps are those of a Clip (the upper one wins in both)."""
    if [s.op_type for s, _ in steps] != ["Max", "Min"]:
        return None
    low, high = (widen(a) for _, a in steps)
    if low is None or high is None or low.size != 1 or high.size != 1:
        return None
    return low.reshape(()), high.reshape(())


def _apply(y: np.ndarray, step: EpilogueStep, operand: np.ndarray | None) -> np.ndarray:
    if step.op_type == "Relu":
        return np.maximum(y, 0, out=y)
    wide = widen(operand)
    if wide is not None and wide.size == 1:
        wide = wide.reshape(())
    if wide is not None and step.op_type in ("Add", "Sum"):
        return np.add(wide, y, out=y if wide.ndim == 0 else None)
    op = get_operator(step.op_type)
    args = [y] if wide is None else [y, wide]
    return op.compute(args, {**op.attrs, **dict(step.attrs)}, ())[0]


def store(y: np.ndarray, out: np.ndarray) -> None:
    """Round to the type of `out`, and put there."""
    out[...] = round_to(y, TensorType(out.shape, DType.of(out.dtype)))
