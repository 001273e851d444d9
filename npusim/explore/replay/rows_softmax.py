"""Softmax and losses of a profile, forward and backward."""

from __future__ import annotations

from npusim.explore.replay.launches import Launch, operand, replays
from npusim.frontends.recorded import RecordedOp
from npusim.ir import DType, Layout
from npusim.program.kernel import KernelArgs, OperandSpec

#: Bytes of a row from which the library takes it in pieces (several rows of several fp32 buffers
#: do not fit UB).
LONG_ROW = 32 * 1024


@replays(
    "Softmax",
    "SoftmaxV2",
    "LogSoftmax",
    "LogSoftmaxV2",
    kernels=("Softmax", "RowTiles", "RowByRow", "LongRows"),
)
def softmax(op: RecordedOp) -> Launch:
    """Over the last axis. CANN's kernel takes rows one by one when they are no whole 32 B."""
    x, out = operand(op.inputs[0]), operand(op.outputs[0])
    kind = "LogSoftmax" if op.op_type.startswith("Log") else "Softmax"
    if x.layout is Layout.FRACTAL_NZ:
        return Launch("RowTiles", KernelArgs("SoftmaxV2", (x,), (out,)))
    if kind == "Softmax" and x.shape[-1] * x.dtype.size % 32:
        return Launch("RowByRow", KernelArgs("SoftmaxV2", (x,), (out,)))
    if kind == "LogSoftmax" and _is_long(x):
        return Launch("LongRows", KernelArgs("LogSoftmaxV2", (x,), (out,)))
    return Launch("Softmax", KernelArgs(kind, (x,), (out,), (("axis", -1),)))


def _is_long(x: OperandSpec) -> bool:
    return x.dtype is DType.FLOAT32 and x.shape[-1] * x.dtype.size > LONG_ROW


@replays("LogSoftmaxGrad", kernels=("RowTiles", "LongRows"))
def log_softmax_grad(op: RecordedOp) -> Launch:
    """dy, log softmax → dx."""
    dy, y, out = (operand(t) for t in (*op.inputs[:2], op.outputs[0]))
    name = "LongRows" if _is_long(dy) else "RowTiles"
    return Launch(name, KernelArgs("LogSoftmaxGrad", (dy, y), (out,)))


@replays("SoftmaxGrad", "SoftmaxGradExt", "ConfusionSoftmaxGrad", kernels=("RowTiles",))
def softmax_grad(op: RecordedOp) -> Launch:
    """Two tensors of rows; the scalar of SoftmaxGradExt is a constant of the launch."""
    y, dy, out = (operand(t) for t in (*op.inputs[:2], op.outputs[0]))
    return Launch("RowTiles", KernelArgs(op.op_type, (y, dy), (out,)))


@replays("SoftmaxCrossEntropyWithLogits", kernels=("RowByRow",))
def cross_entropy(op: RecordedOp) -> Launch:
    """Logits, labels → loss per row, gradient."""
    inputs, outputs = (tuple(operand(t) for t in side) for side in (op.inputs, op.outputs))
    return Launch("RowByRow", KernelArgs(op.op_type, inputs, outputs))
