"""Convolution and its transpose: windows gathered (im2col), then one matrix product per group."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.common import check
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema
from npusim.ops.window import WINDOW_ATTRS, Window

BYTES = (DType.INT8, DType.UINT8)  #: what integer products take


def conv_window(size: tuple[int, ...], kernel: tuple[int, ...], attrs: Attrs) -> Window:
    """The window of a Conv on an input of spatial extent `size`, after it is spread."""
    spread = attrs.get("spread") or (1,) * len(size)
    return Window.of(
        tuple((n - 1) * s + 1 for n, s in zip(size, spread, strict=True)), kernel, attrs
    )


def spread_image(x: np.ndarray, spread: Sequence[int] | None) -> np.ndarray:
    """`x` [N, C, *size, …] with spread-1 zeros between neighbours of each spatial dimension."""
    if not spread or set(spread) == {1}:
        return x
    last = 2 + len(spread)
    extents = [(n - 1) * s + 1 for n, s in zip(x.shape[2:last], spread, strict=True)]
    y = np.zeros((*x.shape[:2], *extents, *x.shape[last:]), x.dtype)
    at: tuple[Any, ...] = (slice(None), slice(None), *(slice(None, None, s) for s in spread))
    y[at] = x
    return y


def _check_kernel(x: TensorType, w: TensorType, attrs: Attrs) -> None:
    check(
        len(x.shape) == len(w.shape) >= 3,
        f"input {x.shape} with weights {w.shape}",
        "both [N, C, spatial …], of one rank",
    )
    kernel = attrs["kernel_shape"]
    check(
        kernel is None or tuple(kernel) == w.shape[2:],
        f"kernel_shape {kernel} with weights {w.shape}",
        f"kernel_shape {w.shape[2:]}",
    )


def _check_bias(x: Inputs, channels: int) -> None:
    if x.has(2):
        shape = x.type(2).shape
        check(shape == (channels,), f"bias of shape {shape}", f"({channels},)")


def _add_bias(y: np.ndarray, x: Arrays) -> np.ndarray:
    if len(x) > 2 and x[2] is not None:
        y += x[2].reshape(-1, *(1,) * (y.ndim - 2))
    return y


@operator("Conv")
class Conv(Operator):
    """Convolution of any spatial rank, with groups, strides, dilations and padding.

    Of int8 or uint8 the sums are int32, as in CANN's Conv2D; `offset_x` pads the image then.
    `spread` is npusim's own: the input counts with spread-1 zeros between its pixels. That is what
    a ConvTranspose becomes.
    """

    attrs = schema(**WINDOW_ATTRS, group=1, spread=None, offset_x=0)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, w, group = x.type(0), x.type(1), attrs["group"]
        _check_kernel(t, w, attrs)
        check(
            t.shape[1] == w.shape[1] * group and w.shape[0] % group == 0,
            f"{t.shape[1]} channels with weights {w.shape} and group {group}",
            "channels = group × weights' second dimension; group divides the output channels",
        )
        _check_bias(x, w.shape[0])
        window = conv_window(t.shape[2:], w.shape[2:], attrs)
        dtype = DType.INT32 if t.dtype in BYTES else t.dtype
        return [TensorType((t.shape[0], w.shape[0], *window.out), dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        if x[0].dtype.itemsize == 1:
            return [_of_bytes(x, attrs, out)]
        data, w, group = x[0], x[1], attrs["group"]
        window = conv_window(data.shape[2:], w.shape[2:], attrs)
        padded = window.padded(spread_image(data, attrs.get("spread")))
        if window.pointwise:
            y = _pointwise(window.view(padded, (0,) * len(window.kernel)), w, group)
        elif w.shape[1] == 1 and group > 1:
            y = _depthwise(padded, w, window)
        else:
            y = _im2col(padded, w, window, group)
        return [_add_bias(y.reshape(len(data), len(w), *window.out), x)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        if attrs.get("spread"):  # products with the zeros between do not count
            return Work(macs=x[0].size * x[1].shape[0] * prod(x[1].shape[2:]))
        return Work(macs=out[0].size * prod(x[1].shape[1:]))


def _of_bytes(x: Arrays, attrs: Attrs, out: Types) -> np.ndarray:
    """int32 sums, which fp64 holds exactly."""
    offset = attrs.get("offset_x", 0)
    data, w = x[0].astype(np.float64) - offset, x[1].astype(np.float64)
    (y,) = Conv.compute([data, w, *x[2:]], attrs, out)
    padding = offset * w.sum(axis=tuple(range(1, w.ndim)))
    y += padding.reshape(-1, *(1,) * (w.ndim - 2))
    return y.astype(np.int64).astype(np.int32)


def _grouped(w: np.ndarray, group: int) -> np.ndarray:
    """Weights as one contiguous matrix [Co/group, C/group × taps] per group."""
    return np.ascontiguousarray(w).reshape(group, w.shape[0] // group, prod(w.shape[1:]))


def _pointwise(x: np.ndarray, w: np.ndarray, group: int) -> np.ndarray:
    n, c = x.shape[:2]
    return np.matmul(_grouped(w, group), x.reshape(n, group, c // group, prod(x.shape[2:])))


def _depthwise(padded: np.ndarray, w: np.ndarray, window: Window) -> np.ndarray:
    """One input channel per group: a multiply-add per tap, over all channels at once."""
    n, c = padded.shape[:2]
    kernel = w.reshape(c, w.shape[0] // c, window.taps, *(1,) * len(window.out))
    shape = (n, c, kernel.shape[1], *window.out)
    y, product = np.zeros(shape, padded.dtype), np.empty(shape, padded.dtype)
    for i, position in enumerate(window.positions()):
        view = window.view(padded, position)[:, :, None]
        y += np.multiply(view, kernel[:, :, i], out=product)
    return y


def _im2col(padded: np.ndarray, w: np.ndarray, window: Window, group: int) -> np.ndarray:
    """Image by image: gather every tap's view into columns, then multiply."""
    n, c = padded.shape[:2]
    pixels = prod(window.out)
    weights = _grouped(w, group)
    y = np.empty((n, group, weights.shape[1], pixels), padded.dtype)
    columns = np.empty((c, window.taps, *window.out), padded.dtype)
    matrix = columns.reshape(group, c // group * window.taps, pixels)
    for image, result in zip(padded, y, strict=True):
        for i, position in enumerate(window.positions()):
            columns[:, i] = window.view(image, position)
        np.matmul(weights, matrix, out=result)
    return y


@operator("ConvTranspose")
class ConvTranspose(Operator):
    """The transpose of a convolution: every input element adds a scaled kernel to the output."""

    attrs = schema(**WINDOW_ATTRS, group=1, output_padding=None, output_shape=None)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, w, group = x.type(0), x.type(1), attrs["group"]
        _check_kernel(t, w, attrs)
        check(
            t.shape[1] == w.shape[0] and w.shape[0] % group == 0,
            f"{t.shape[1]} channels with weights {w.shape} and group {group}",
            "channels = weights' first dimension, a multiple of group",
        )
        _check_bias(x, w.shape[1] * group)
        _, sizes = transposed_extent(t.shape[2:], w.shape[2:], attrs)
        return [TensorType((t.shape[0], w.shape[1] * group, *sizes), t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        data, w, group = x[0], x[1], attrs["group"]
        n, size, kernel = len(data), data.shape[2:], w.shape[2:]
        begin, sizes = transposed_extent(size, kernel, attrs)
        scatter = _scatter_window(size, kernel, attrs)
        weights = np.ascontiguousarray(w).reshape(group, w.shape[0] // group, -1)
        columns = np.matmul(weights.swapaxes(1, 2), data.reshape(n, group, -1, prod(size)))
        columns = columns.reshape(n, w.shape[1] * group, *kernel, *size)
        full = [max(f, b + s) for f, b, s in zip(scatter.size, begin, sizes, strict=True)]
        y = np.zeros((*columns.shape[:2], *full), data.dtype)
        for position in scatter.positions():
            target = scatter.view(y, position)
            target += columns[(slice(None), slice(None), *position)]
        crop: tuple[Any, ...] = tuple(slice(b, b + s) for b, s in zip(begin, sizes, strict=True))
        return [_add_bias(y[(..., *crop)], x)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(macs=x[0].size * prod(x[1].shape[1:]))


def _scatter_window(size: tuple[int, ...], kernel: tuple[int, ...], attrs: Attrs) -> Window:
    """The unpadded convolution, from the full output to `size`, whose transpose this is."""
    ones = (1,) * len(size)
    strides, dilations = attrs["strides"] or ones, attrs["dilations"] or ones
    full = tuple(
        (n - 1) * s + (k - 1) * d + 1
        for n, s, k, d in zip(size, strides, kernel, dilations, strict=True)
    )
    return Window.of(full, kernel, {**attrs, "auto_pad": "VALID", "pads": None})


def transposed_extent(
    size: tuple[int, ...], kernel: tuple[int, ...], attrs: Attrs
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Cropping before the output, and the output's extent."""
    rank = len(size)
    scatter = _scatter_window(size, kernel, attrs)
    extra = attrs["output_padding"] or (0,) * rank
    full = [f + e for f, e in zip(scatter.size, extra, strict=True)]
    mode, sizes = attrs["auto_pad"], attrs["output_shape"]
    if sizes is None and mode.startswith("SAME"):
        sizes = [n * s for n, s in zip(size, scatter.strides, strict=True)]
    if sizes is None:
        pads = attrs["pads"] if attrs["pads"] and mode == "NOTSET" else (0,) * (2 * rank)
        begin = tuple(pads[:rank])
        sizes = [f - b - e for f, b, e in zip(full, begin, pads[rank:], strict=True)]
    else:
        total = [max(f - s, 0) for f, s in zip(full, sizes, strict=True)]
        begin = tuple(t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in total)
    return begin, tuple(sizes)
