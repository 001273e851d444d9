"""Batch and layer normalisation of a profile, forward and backward."""

from __future__ import annotations

from math import prod

from npusim.explore.replay.launches import Launch, operand, replays
from npusim.frontends.recorded import RecordedOp, RecordedTensor
from npusim.ir import DType, Layout
from npusim.program.kernel import KernelArgs, OperandSpec


@replays(
    "BNTrainingReduce",
    "BNTrainingUpdate",
    "FusionOp_BNTrainingUpdate_ReLUV2",
    "FusionOp_BNTrainingUpdate_Add_ReLUV2",
    "BNTrainingUpdateGrad",
    "BNTrainingReduceGrad",
    kernels=("BatchNorm",),
)
def batch_norm(op: RecordedOp) -> Launch:
    """Operands stand as CANN's operators have them."""
    inputs = tuple(operand(t) for t in op.inputs)
    outputs = tuple(_output(t) for t in op.outputs)
    return Launch("BatchNorm", KernelArgs(op.op_type, inputs, outputs))


#: Elements of the longest row that the library's LayerNorm keeps whole in UB: some of 20 B each.
LONGEST_ROW = 8192


@replays("LayerNorm", "LayerNormV3", "LayerNormV4", kernels=("RowTiles", "Norm"))
def layer_norm(op: RecordedOp) -> Launch:
    """x, scale, offset → y, and one mean and one variance per row (fp32 in V3 and of long rows).

    LayerNormV4 has the normalised shape, whole numbers, as its second input.
    """
    given = op.inputs
    if op.op_type == "LayerNormV4":
        given = tuple(t for i, t in enumerate(op.inputs) if i != 1)
    x, *affine = (operand(t) for t in given[:3])
    y = operand(op.outputs[0])
    short = op.op_type == "LayerNorm" and x.shape[-1] <= LONGEST_ROW and len(op.outputs) == 3
    if short or x.layout is Layout.FRACTAL_NZ:
        outs = (y, *(operand(t) for t in op.outputs[1:3]))
        return Launch("RowTiles", KernelArgs("LayerNorm", (x, *affine), outs))
    kept = OperandSpec((*x.shape[:-1], 1), DType.FLOAT32)
    attrs = (("axis", -1), ("epsilon", 1e-5))
    outs = (y, *[kept] * (len(op.outputs) - 1))
    return Launch("Norm", KernelArgs("LayerNormalization", (x, *affine), outs, attrs))


#: Elements of a row above which CANN splits it (UB_FACTOR_B16 of its tiling): two passes over x.
SPLIT_ROW = 12288


@replays("RmsNorm")
def rms_norm(op: RecordedOp) -> Launch:
    """x, gamma → y, a reciprocal deviation per row (fp32, whatever a table says of outputs)."""
    x, gamma = (operand(t) for t in op.inputs[:2])
    if prod(gamma.shape) > SPLIT_ROW:
        attrs = (("axis", -len(gamma.shape)), ("epsilon", 1e-6))
        return Launch("Norm", KernelArgs("RMSNormalization", (x, gamma), (x,), attrs))
    return Launch("RmsNorm", KernelArgs("RmsNorm", (x, gamma), (x, _per_row(x, gamma))))


@replays("AddRmsNorm")
def add_rms_norm(op: RecordedOp) -> Launch:
    """x1, x2, gamma → y, reciprocal deviations, x1 + x2."""
    x, other, gamma = (operand(t) for t in op.inputs[:3])
    outs = (x, _per_row(x, gamma), x)
    return Launch("RmsNorm", KernelArgs("AddRmsNorm", (x, other, gamma), outs))


@replays("RmsNormGrad", kernels=("RmsNormGrad",))
def rms_norm_grad(op: RecordedOp) -> Launch:
    """dy, x, reciprocal deviations, gamma → dx, gradient of gamma (fp32)."""
    dy, x, _, gamma = (operand(t) for t in op.inputs[:4])
    inputs = (dy, x, _per_row(x, gamma), gamma)
    outs = (dy, OperandSpec(gamma.shape, DType.FLOAT32))
    return Launch("RmsNormGrad", KernelArgs("RmsNormGrad", inputs, outs))


def _per_row(x: OperandSpec, gamma: OperandSpec) -> OperandSpec:
    """An fp32 value per row as long as gamma."""
    inner = len(gamma.shape)
    return OperandSpec((*x.shape[:-inner], *(1,) * inner), DType.FLOAT32)


@replays("LayerNormXBackpropV2", kernels=("RowTiles",))
def layer_norm_backprop(op: RecordedOp) -> Launch:
    """dy, x, variance, mean, scale → dx, standardised x."""
    inputs, outputs = (tuple(operand(t) for t in side) for side in (op.inputs, op.outputs))
    return Launch("RowTiles", KernelArgs(op.op_type, inputs, outputs))


@replays("LayerNormGradV3", kernels=("LayerNormGrad",))
def layer_norm_grad(op: RecordedOp) -> Launch:
    """dy, x, reciprocal deviations, means, scale → dx, gradients of scale and offset (fp32)."""
    dy, x, _, _, gamma = (operand(t) for t in op.inputs[:5])
    rows, vector = _per_row(x, gamma), OperandSpec(gamma.shape, DType.FLOAT32)
    args = KernelArgs(op.op_type, (dy, x, rows, rows, gamma), (dy, vector, vector))
    return Launch("LayerNormGrad", args)


@replays("LayerNormBetaGammaBackpropV2", kernels=("ColumnSums",))
def layer_norm_parameters(op: RecordedOp) -> Launch:
    """dy, standardised x → gradients of scale and offset."""
    inputs, outputs = (tuple(operand(t) for t in side) for side in (op.inputs, op.outputs))
    return Launch("ColumnSums", KernelArgs(op.op_type, inputs, outputs))


def _output(t: RecordedTensor) -> OperandSpec:
    """As recorded; the mask's `uint` is bytes."""
    return operand(t, DType.UINT8) if t.dtype.lower() in ("uint", "uint8") else operand(t)
