"""Pooling of a profile, forward and backward."""

from __future__ import annotations

from math import isqrt
from typing import Any

from npusim.explore.replay.launches import Launch, operand, replays
from npusim.explore.replay.windows import window_attrs
from npusim.frontends.recorded import RecordedOp, RecordedTensor
from npusim.ir import DType
from npusim.program.kernel import KernelArgs, OperandSpec


def _side(size: int, out: int) -> int:
    """Window of an AvgPool, which profiles do not keep: all of the image onto one output; 3 where
    the size stays; else 5 with stride 3 (the auxiliary head of Inception)."""
    if out == 1:
        return size
    return 3 if out == size else 5


@replays("AvgPool", "AvgPoolV2")
def average_pool(op: RecordedOp) -> Launch:
    """Window and strides as the profile keeps them; where it does not, see `_side`."""
    x, out = operand(op.inputs[0]), operand(op.outputs[0])
    if op.attrs:
        attrs = _kept_image_window(op, x, out) | {"count_include_pad": 0}
        return _windowed("AveragePool", x, out, attrs)
    kernel = tuple(_side(n, o) for n, o in zip(x.shape[2:], out.shape[2:], strict=True))
    attrs = _pool_attrs(x.shape[2:], out.shape[2:], kernel)
    attrs |= {"count_include_pad": 0}
    return _windowed("AveragePool", x, out, attrs)


@replays("MaxPool", "MaxPoolV3")
def max_pool(op: RecordedOp) -> Launch:
    """Window and strides as the profile keeps them, for NHWC: (1, kh, kw, 1).

    Where it does not: 3 × 3, or all of the image onto one output.
    """
    x, out = operand(op.inputs[0]), operand(op.outputs[0])
    if not op.attrs:
        side = x.shape[2:] if out.shape[2:] == (1, 1) else (3, 3)
        return _windowed("MaxPool", x, out, _pool_attrs(x.shape[2:], out.shape[2:], side))
    return _windowed("MaxPool", x, out, _kept_image_window(op, x, out))


def _kept_image_window(op: RecordedOp, x: OperandSpec, out: OperandSpec) -> dict[str, Any]:
    """The kept window (1, kh, kw, 1), or (1, 1, kh, kw), of images; `global_pooling` overrules it.

    Raises:
        ValueError: neither takes the images to the results.
    """
    size, results = x.shape[2:], out.shape[2:]
    kernels, steps = _kept(op, "ksize", 4), _kept(op, "strides", 4)
    first = 1 if kernels[3] == steps[3] == 1 else 2
    kernel, strides = kernels[first : first + 2], steps[first : first + 2]
    past = [n - k >= s for n, k, s in zip(size, kernel, strides, strict=True)]
    if results == (1, 1) and any(past):
        kernel = size
    return _kept_window(size, results, kernel, strides)


@replays("MaxPool3D")
def max_pool_3d(op: RecordedOp) -> Launch:
    """Window and strides as the profile keeps them, for NDHWC: (1, kd, kh, kw, 1)."""
    x, out = operand(op.inputs[0]), operand(op.outputs[0])
    kernel, strides = _kept(op, "ksize", 5)[1:4], _kept(op, "strides", 5)[1:4]
    attrs = _kept_window(x.shape[2:], out.shape[2:], kernel, strides)
    return Launch("Pool3D", KernelArgs("MaxPool", (x,), (out,), tuple(sorted(attrs.items()))))


def _kept(op: RecordedOp, name: str, rank: int) -> tuple[int, ...]:
    """An attribute of so many integers.

    Raises:
        ValueError: the profile does not keep it.
    """
    found = dict(op.attrs).get(name)
    if not isinstance(found, tuple) or len(found) != rank:
        raise ValueError(f"no {name} of {rank} integers")
    return found


def _kept_window(
    size: tuple[int, ...], out: tuple[int, ...], kernel: tuple[int, ...], strides: tuple[int, ...]
) -> dict[str, Any]:
    """Attributes of a window whose pads follow from the sizes, spread evenly.

    Raises:
        ValueError: the window does not take `size` to `out`.
    """
    total = [(o - 1) * s + k - n for n, o, k, s in zip(size, out, kernel, strides, strict=True)]
    if any(t <= -s for t, s in zip(total, strides, strict=True)):
        raise ValueError(f"a window of {kernel} with strides {strides} takes {size} to {out}")
    pads = [max(0, t) for t in total]
    begin = tuple(p // 2 for p in pads)
    end = tuple(p - b for p, b in zip(pads, begin, strict=True))
    return {"kernel_shape": kernel, "pads": (*begin, *end), "strides": strides}


def _windowed(op_type: str, x: OperandSpec, out: OperandSpec, attrs: dict[str, Any]) -> Launch:
    """A pool of images; over all of each where the window is the image."""
    if attrs["kernel_shape"] == x.shape[2:] and out.shape[2:] == (1, 1):
        return Launch("PoolFold", KernelArgs("Global" + op_type, (x,), (out,)))
    args = KernelArgs(op_type, (x,), (out,), tuple(sorted(attrs.items())))
    return Launch("PoolColumns", args)


def _pool_attrs(
    size: tuple[int, ...], out: tuple[int, ...], kernel: tuple[int, ...]
) -> dict[str, Any]:
    return {"kernel_shape": kernel, **dict(window_attrs(size, out, kernel))}


def _argmax_window(
    size: tuple[int, ...], out: tuple[int, ...], mask: RecordedTensor
) -> tuple[tuple[str, Any], ...]:
    """A square window: the mask has its taps.

    Raises:
        ValueError: the taps are not those of a square.
    """
    side = isqrt(mask.shape[2])
    if side * side != mask.shape[2]:
        raise ValueError(f"a mask of {mask.shape[2]} taps")
    return tuple(sorted(_pool_attrs(size, out, (side, side)).items()))


def _mask(t: RecordedTensor) -> OperandSpec:
    """(N, C1, taps, blocks, 16) of bits per channel: profilers call the type uint8."""
    n, c1, taps, blocks, lanes = t.shape
    return OperandSpec((n, c1, taps, blocks * lanes), DType.UINT16)


@replays("MaxPoolWithArgmax", kernels=("PoolArgmax",))
def max_pool_with_argmax(op: RecordedOp) -> Launch:
    """x → maxima, mask."""
    x, y = operand(op.inputs[0]), operand(op.outputs[0])
    attrs = _argmax_window(x.shape[2:], y.shape[2:], op.outputs[1])
    outs = (y, _mask(op.outputs[1]))
    return Launch("PoolArgmax", KernelArgs("MaxPoolWithArgmax", (x,), outs, attrs))


@replays("MaxPoolGradWithArgmax", kernels=("PoolArgmax",))
def max_pool_grad(op: RecordedOp) -> Launch:
    """x, dy, mask → dx."""
    x, dy, dx = (operand(t) for t in (*op.inputs[:2], op.outputs[0]))
    attrs = _argmax_window(x.shape[2:], dy.shape[2:], op.inputs[2])
    inputs = (x, dy, _mask(op.inputs[2]))
    return Launch("PoolArgmax", KernelArgs("MaxPoolGradWithArgmax", inputs, (dx,), attrs))


def _blocked(t: RecordedTensor) -> OperandSpec:
    """An image that profilers list with five dimensions, whatever they call its format."""
    return operand(RecordedTensor("NC1HWC0", t.dtype, t.shape))


@replays("MaxPoolWithArgmaxV1")
def max_pool_with_argmax_v1(op: RecordedOp) -> Launch:
    """x → maxima, mask."""
    x, y = _blocked(op.inputs[0]), _blocked(op.outputs[0])
    attrs = _argmax_window(x.shape[2:], y.shape[2:], op.outputs[1])
    outs = (y, _mask(op.outputs[1]))
    return Launch("PoolArgmaxV1", KernelArgs("MaxPoolWithArgmax", (x,), outs, attrs))


@replays("MaxPoolGradWithArgmaxV1")
def max_pool_grad_with_argmax_v1(op: RecordedOp) -> Launch:
    """x, dy, mask → dx; the mask is listed as (N, C, taps, taps, …) and follows from dy."""
    x, dy, dx = (_blocked(t) for t in (*op.inputs[:2], op.outputs[0]))
    taps, outputs = op.inputs[2].shape[2], dy.shape[2] * dy.shape[3]
    blocks = -(-outputs // 16) + 1
    n, c1 = x.storage_shape[:2]
    mask = RecordedTensor("NC1HWC0", "uint16", (n, c1, taps, blocks, 16))
    attrs = _argmax_window(x.shape[2:], dy.shape[2:], mask)
    inputs = (x, dy, _mask(mask))
    return Launch("PoolArgmaxV1", KernelArgs("MaxPoolGradWithArgmax", inputs, (dx,), attrs))


@replays("AvgPool3DD", kernels=("BlockDepthwise",))
def average_pool_3d(op: RecordedOp) -> Launch:
    """x, filter → y: window and strides as the profile keeps them, (kd, kh, kw)."""
    x, out = operand(op.inputs[0]), operand(op.outputs[0])
    filters = OperandSpec(op.inputs[1].shape, x.dtype)
    kernel, strides = _kept(op, "ksize", 3), _kept(op, "strides", 3)
    attrs = _kept_window(x.shape[2:], out.shape[2:], kernel, strides)
    args = KernelArgs("AvgPool3DD", (x, filters), (out,), tuple(sorted(attrs.items())))
    return Launch("BlockDepthwise", args)


@replays("AvgPoolGradVm", kernels=("BlockDepthwise",))
def average_pool_grad(op: RecordedOp) -> Launch:
    """dy, means, filter (C1, kh, kw, 1, 16, 16) → dx; a whole image takes its mean everywhere."""
    dy, means, dx = (operand(t) for t in (*op.inputs[:2], op.outputs[0]))
    filters = OperandSpec(op.inputs[2].shape, dy.dtype)
    kernel, image = tuple(op.inputs[2].shape[1:3]), dx.shape[2:]
    attrs = _pool_attrs(image, dy.shape[2:], kernel) | {"image_shape": image}
    inputs = (dy, means) if kernel == image and dy.shape[2:] == (1, 1) else (dy, means, filters)
    args = KernelArgs("AvgPoolGradVm", inputs, (dx,), tuple(sorted(attrs.items())))
    return Launch("BlockDepthwise", args)
