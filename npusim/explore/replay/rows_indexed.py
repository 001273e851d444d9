"""Indexed reads and sums of a profile."""

from __future__ import annotations

from npusim.explore.replay.launches import Launch, operand, replays
from npusim.frontends.recorded import RecordedOp
from npusim.program.kernel import KernelArgs


@replays("Gather", "GatherV2")
def gather(op: RecordedOp) -> Launch:
    """Rows of a table (axis 0)."""
    table, indices, out = (operand(t) for t in (*op.inputs[:2], op.outputs[0]))
    return Launch("Gather", KernelArgs("Gather", (table, indices), (out,), (("axis", 0),)))


@replays("UnsortedSegmentSum", kernels=("SegmentSum",))
def segment_sum(op: RecordedOp) -> Launch:
    """Rows added into segments."""
    data, indices, out = (operand(t) for t in (*op.inputs[:2], op.outputs[0]))
    attrs = (("num_segments", out.shape[0]),)
    return Launch("SegmentSum", KernelArgs(op.op_type, (data, indices), (out,), attrs))


@replays("OneHot", "OneHotD")
def one_hot(op: RecordedOp) -> Launch:
    """A row per index; the on and off values are scalars in GM, or attributes."""
    inputs = tuple(operand(t) for t in op.inputs)
    return Launch("OneHot", KernelArgs("OneHot", inputs, (operand(op.outputs[0]),)))
