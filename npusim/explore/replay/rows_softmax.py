"""Softmax and losses of a profile, forward and backward."""

from __future__ import annotations

from npusim.explore.replay.launches import Launch, operand, replays
from npusim.frontends.recorded import RecordedOp
from npusim.ir import Layout
from npusim.program.kernel import KernelArgs


@replays("Softmax", "SoftmaxV2", "LogSoftmax", "LogSoftmaxV2")
def softmax(op: RecordedOp) -> Launch:
    """Over the last axis. CANN's kernel takes rows one by one when they are no whole 32 B."""
    x, out = operand(op.inputs[0]), operand(op.outputs[0])
    kind = "LogSoftmax" if op.op_type.startswith("Log") else "Softmax"
    if x.layout is Layout.FRACTAL_NZ:
        return Launch("RowTiles", KernelArgs("SoftmaxV2", (x,), (out,)))
    ragged = x.shape[-1] * x.dtype.size % 32 != 0
    attrs = (("axis", -1), ("row_by_row", int(ragged)))
    return Launch("Softmax", KernelArgs(kind, (x,), (out,), attrs))


@replays("SoftmaxGrad", "SoftmaxGradExt", "ConfusionSoftmaxGrad")
def softmax_grad(op: RecordedOp) -> Launch:
    """Two tensors of rows; the scalar of SoftmaxGradExt is a constant of the launch."""
    y, dy, out = (operand(t) for t in (*op.inputs[:2], op.outputs[0]))
    return Launch("RowTiles", KernelArgs(op.op_type, (y, dy), (out,)))


@replays("SoftmaxCrossEntropyWithLogits")
def cross_entropy(op: RecordedOp) -> Launch:
    """Logits, labels → loss per row, gradient."""
    inputs, outputs = (tuple(operand(t) for t in side) for side in (op.inputs, op.outputs))
    return Launch("RowTiles", KernelArgs(op.op_type, inputs, outputs))
