"""Convolutions of a profile, their gradients and fused forms."""

from __future__ import annotations

from collections.abc import Sequence

from npusim.explore.replay.launches import Launch, filter_operand, operand, replays
from npusim.explore.replay.rows_conv_fp32 import (
    fp32_filter_gradient,
    fp32_forward,
    fp32_input_gradient,
    is_fp32,
)
from npusim.explore.replay.windows import Attrs, window_attrs
from npusim.frontends.recorded import RecordedOp, RecordedTensor
from npusim.ir import EpilogueStep
from npusim.program.kernel import KernelArgs, OperandSpec


@replays("Conv2D")
def conv2d(op: RecordedOp) -> Launch:
    """A convolution, with an optional bias; stride and padding are read off the sizes."""
    return fp32_forward(op) if is_fp32(op) else conv_steps(op, ())


def conv_steps(op: RecordedOp, steps: Sequence[tuple[str, Attrs]]) -> Launch:
    """A convolution with an optional bias, and elementwise steps on its result.

    Args:
        steps: operator and attributes; Add and Mul take the next operand.

    Raises:
        ValueError: operands are missing, or left over.
    """
    x, w, out, attrs = _forward(op)
    rest = [operand(t) for t in op.inputs[2:]]
    inputs: list[OperandSpec | None] = [x, w]
    taking = sum(kind in ("Add", "Mul") for kind, _ in steps)
    if len(rest) == taking + 1:
        inputs.append(OperandSpec((out.shape[1],), rest.pop(0).dtype))
    if len(rest) != taking:
        raise ValueError(f"{len(op.inputs)} operands for {taking} steps that take one")
    if rest and len(inputs) == 2:
        inputs.append(None)  # no bias
    epilogue = []
    for kind, settings in steps:
        if kind in ("Add", "Mul"):
            inputs.append(rest.pop(0))
            epilogue.append(EpilogueStep(kind, len(inputs) - 1))
        else:
            epilogue.append(EpilogueStep(kind, None, tuple(settings)))
    args = KernelArgs("Conv", tuple(inputs), (out,), (("group", 1), *attrs), tuple(epilogue))
    return Launch("Conv2D", args)


@replays("FusionOp_Conv2D_BNTrainingReduce", kernels=("Conv2DBNTrainingReduce",))
def conv_bn(op: RecordedOp) -> Launch:
    """A convolution with BN's sums."""
    x, w, out, attrs = _forward(op)
    sums = tuple(operand(t) for t in op.outputs[1:3])
    return Launch("Conv2DBNTrainingReduce", KernelArgs(op.op_type, (x, w), (out, *sums), attrs))


@replays(
    "Conv2DBackpropInput",
    "FusionOp_Conv2DBackpropInput_ReluGradV2",
    "FusionOp_Conv2DBackpropInput_AddN_ReluGradV2",
    kernels=("Conv2DBackpropInput",),
)
def input_gradient(op: RecordedOp) -> Launch:
    """dY, W, what is fused → dX."""
    if is_fp32(op):
        return fp32_input_gradient(op)
    dy, dx = operand(op.inputs[0]), operand(op.outputs[0])
    w = filter_operand(op.inputs[1], op.outputs[0])
    attrs = window_attrs(dx.shape[2:], dy.shape[2:], w.shape[2:])
    fused = tuple(operand(t) for t in op.inputs[2:])
    attrs = (("input_size", dx.shape[2:]), *attrs)
    return Launch("Conv2DBackpropInput", KernelArgs(op.op_type, (dy, w, *fused), (dx,), attrs))


@replays("Conv2DBackpropFilter", kernels=("Conv2DBackpropFilter",))
def filter_gradient(op: RecordedOp) -> Launch:
    """dY, X → dW in FRACTAL_Z."""
    if is_fp32(op):
        return fp32_filter_gradient(op)
    dy, x = operand(op.inputs[0]), operand(op.inputs[1])
    dw = filter_operand(op.outputs[0], op.inputs[1])
    kernel = dw.shape[2:]
    attrs = (("kernel_shape", kernel), *window_attrs(x.shape[2:], dy.shape[2:], kernel))
    return Launch("Conv2DBackpropFilter", KernelArgs(op.op_type, (dy, x), (dw,), attrs))


@replays("FusedDbnDw", kernels=("FusedDbnDw",))
def bn_and_filter_gradient(op: RecordedOp) -> Launch:
    """X, BN's gradient and its operands → gradient of BN's input, dW."""
    inputs = tuple(operand(t) for t in op.inputs)
    dy, dw = operand(op.outputs[0]), filter_operand(op.outputs[1], op.inputs[0])
    kernel = dw.shape[2:]
    attrs = (("kernel_shape", kernel), *window_attrs(inputs[0].shape[2:], dy.shape[2:], kernel))
    return Launch("FusedDbnDw", KernelArgs(op.op_type, inputs, (dy, dw), attrs))


def _forward(op: RecordedOp) -> tuple[OperandSpec, OperandSpec, OperandSpec, Attrs]:
    """Image, weights, result and attributes of a convolution."""
    x, out = operand(op.inputs[0]), operand(op.outputs[0])
    w = _filter(op.inputs[1], op.inputs[0], out.shape[1])
    return x, w, out, window_attrs(x.shape[2:], out.shape[2:], w.shape[2:])


def _filter(weights: RecordedTensor, image: RecordedTensor, co: int) -> OperandSpec:
    w = filter_operand(weights, image)
    return OperandSpec((co, *w.shape[1:]), w.dtype, w.layout)
