"""Operators of transformer blocks in a profile: gated activations, rotary positions."""

from __future__ import annotations

from npusim.explore.replay.launches import Launch, operand, replays
from npusim.frontends.recorded import RecordedOp
from npusim.program.kernel import KernelArgs


@replays("SwiGlu", "SwiGluGrad", kernels=("Gated",))
def swiglu(op: RecordedOp) -> Launch:
    """x of two halves → their product, or (dy, x) → the gradient of x, along the halved axis."""
    inputs, outputs = (tuple(operand(t) for t in side) for side in (op.inputs, op.outputs))
    whole = inputs[-1].shape
    half = outputs[0].shape if op.op_type == "SwiGlu" else inputs[0].shape
    halved = [i for i, (n, m) in enumerate(zip(whole, half, strict=True)) if n == 2 * m]
    if len(halved) != 1:
        raise ValueError(f"halves {half} of {whole}")
    attrs = (("dim", halved[0]),)
    return Launch("Gated", KernelArgs(op.op_type, inputs, outputs, attrs))


@replays("RotaryPositionEmbedding", "RotaryPositionEmbeddingGrad", kernels=("Rotary",))
def rotary(op: RecordedOp) -> Launch:
    """x, cos, sin → like x, mode "half". Gradients of the tables (x given too) are refused."""
    if len(op.inputs) != 3:
        raise ValueError("gradients of cos and sin")
    x, cos, sin = (operand(t) for t in op.inputs)
    return Launch("Rotary", KernelArgs(op.op_type, (x, cos, sin), (x,)))
