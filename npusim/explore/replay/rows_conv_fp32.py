"""Convolutions in fp32, in blocks of C0 = 8, as chips with FIXP run them: in HF32.

PyTorch on Ascend allows HF32 in convolutions unless it is told otherwise. Operands stand as the
operators have them: the gradients name a size (an int32 vector), and X before dY.
"""

from __future__ import annotations

from math import isqrt

from npusim.explore.replay.launches import Launch
from npusim.explore.replay.windows import window_attrs
from npusim.frontends.recorded import RecordedOp, RecordedTensor
from npusim.ir import DType, Layout
from npusim.program.kernel import KernelArgs, OperandSpec

_C0 = 8
_HF32 = ("hf32", 1)


def is_fp32(op: RecordedOp) -> bool:
    """An image of the row is fp32 in blocks of 8 channels."""
    return any(len(t.shape) == 5 and t.shape[-1] == _C0 for t in op.inputs)


def _image(t: RecordedTensor) -> OperandSpec:
    """An image; all of a row's tensors are fp32 (tables do not name the outputs' type)."""
    n, c1, h, w, c0 = t.shape
    return OperandSpec((n, c1 * c0, h, w), DType.FLOAT32, Layout.NC1HWC0_8)


def _weights(t: RecordedTensor, channels: int) -> OperandSpec:
    """(C1·kh·kw, Co1, 16, C0) for an image of so many channels; windows are square, else a row.

    Raises:
        ValueError: the weights do not fit the channels.
    """
    k1, co1, co0, c0 = t.shape
    c1 = channels // c0
    if k1 % c1:
        raise ValueError(f"FRACTAL_Z {t.shape} with {c1} channel blocks")
    taps = k1 // c1
    side = isqrt(taps)
    kh, kw = (side, side) if side * side == taps else (1, taps)
    return OperandSpec((co1 * co0, channels, kh, kw), DType.FLOAT32, Layout.FRACTAL_Z_8)


def _tensors(op: RecordedOp) -> list[RecordedTensor]:
    """The inputs without the size."""
    return [t for t in op.inputs if t.dtype not in ("int32", "int64")]


def fp32_forward(op: RecordedOp) -> Launch:
    """X, W[, bias] → Y."""
    x, out = _image(op.inputs[0]), _image(op.outputs[0])
    w = _weights(op.inputs[1], x.shape[1])
    bias = [OperandSpec(t.shape, DType(t.dtype)) for t in op.inputs[2:3]]
    attrs = (("group", 1), _HF32, *window_attrs(x.shape[2:], out.shape[2:], w.shape[2:]))
    return Launch("FixpConv2D", KernelArgs("Conv", (x, w, *bias), (out,), attrs))


def fp32_input_gradient(op: RecordedOp) -> Launch:
    """W, dY → dX."""
    weights, gradient = sorted(_tensors(op), key=lambda t: len(t.shape))
    dy, dx = _image(gradient), _image(op.outputs[0])
    w = _weights(weights, dx.shape[1])
    attrs = window_attrs(dx.shape[2:], dy.shape[2:], w.shape[2:])
    attrs = (_HF32, ("input_size", dx.shape[2:]), *attrs)
    args = KernelArgs("Conv2DBackpropInput", (dy, w), (dx,), attrs)
    return Launch("Conv2DBackpropInput", args)


def fp32_filter_gradient(op: RecordedOp) -> Launch:
    """X, dY → dW."""
    x, dy = (_image(t) for t in _tensors(op))
    dw = _weights(op.outputs[0], x.shape[1])
    kernel = dw.shape[2:]
    attrs = (_HF32, ("kernel_shape", kernel), *window_attrs(x.shape[2:], dy.shape[2:], kernel))
    args = KernelArgs("Conv2DBackpropFilter", (dy, x), (dw,), attrs)
    return Launch("Conv2DBackpropFilter", args)
