"""Batch and layer normalisation of a profile, forward and backward."""

from __future__ import annotations

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
)
def batch_norm(op: RecordedOp) -> Launch:
    """Operands stand as CANN's operators have them."""
    inputs = tuple(operand(t) for t in op.inputs)
    outputs = tuple(_output(t) for t in op.outputs)
    return Launch("BatchNorm", KernelArgs(op.op_type, inputs, outputs))


#: Elements of the longest row that the library's LayerNorm keeps whole in UB: some of 20 B each.
LONGEST_ROW = 8192


@replays("LayerNorm", "LayerNormV3")
def layer_norm(op: RecordedOp) -> Launch:
    """x, scale, offset → y, and one mean and one variance per row (fp32 in V3 and of long rows)."""
    x, *affine = (operand(t) for t in op.inputs[:3])
    y = operand(op.outputs[0])
    short = op.op_type == "LayerNorm" and x.shape[-1] <= LONGEST_ROW and len(op.outputs) == 3
    if short or x.layout is Layout.FRACTAL_NZ:
        outs = (y, *(operand(t) for t in op.outputs[1:3]))
        return Launch("RowTiles", KernelArgs("LayerNorm", (x, *affine), outs))
    kept = OperandSpec((*x.shape[:-1], 1), DType.FLOAT32)
    attrs = (("axis", -1), ("epsilon", 1e-5))
    outs = (y, *[kept] * (len(op.outputs) - 1))
    return Launch("Norm", KernelArgs("LayerNormalization", (x, *affine), outs, attrs))


@replays("RmsNorm")
def rms_norm(op: RecordedOp) -> Launch:
    """x, scale → y; the reciprocal deviations (4 B a row) are left out."""
    x, scale, y = (operand(t) for t in (*op.inputs[:2], op.outputs[0]))
    attrs = (("axis", -1), ("epsilon", 1e-6))
    return Launch("Norm", KernelArgs("RMSNormalization", (x, scale), (y,), attrs))


@replays("LayerNormXBackpropV2")
def layer_norm_backprop(op: RecordedOp) -> Launch:
    """dy, x, variance, mean, scale → dx, standardised x."""
    inputs, outputs = (tuple(operand(t) for t in side) for side in (op.inputs, op.outputs))
    return Launch("RowTiles", KernelArgs(op.op_type, inputs, outputs))


@replays("LayerNormBetaGammaBackpropV2")
def layer_norm_parameters(op: RecordedOp) -> Launch:
    """dy, standardised x → gradients of scale and offset."""
    inputs, outputs = (tuple(operand(t) for t in side) for side in (op.inputs, op.outputs))
    return Launch("ColumnSums", KernelArgs(op.op_type, inputs, outputs))


def _output(t: RecordedTensor) -> OperandSpec:
    """As recorded; the mask's `uint` is bytes."""
    return operand(t, DType.UINT8) if t.dtype.lower() in ("uint", "uint8") else operand(t)
