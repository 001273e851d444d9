"""Operators of a profile that CANN alone has: losses, norms, selections, full connections."""

from __future__ import annotations

from npusim.explore.replay.launches import Launch, operand, replays
from npusim.frontends.recorded import RecordedOp
from npusim.ir import DType, Layout
from npusim.program.kernel import KernelArgs, OperandSpec


@replays("InstanceNorm", kernels=("InstanceNorm",))
def instance_norm(op: RecordedOp) -> Launch:
    """x, scale, offset → y, mean, variance: over all axes after the second.

    Profiles give the statistics the shape of another data format; the program does not see it.
    """
    x, *affine = (operand(t) for t in op.inputs[:3])
    kept = OperandSpec((*x.shape[:2], *[1] * (len(x.shape) - 2)), x.dtype)
    attrs = (("epsilon", float(op.attr("epsilon", 1e-6))),)
    return Launch("InstanceNorm", KernelArgs("InstanceNorm", (x, *affine), (x, kept, kept), attrs))


@replays("LpNorm", kernels=("LpNorm",))
def lp_norm(op: RecordedOp) -> Launch:
    """Axes, p and epsilon are the profile's."""
    x, out = operand(op.inputs[0]), operand(op.outputs[0])
    attrs = {
        "axes": tuple(op.attr("axes", ())),
        "epsilon": float(op.attr("epsilon", 1e-12)),
        "keepdims": int(bool(op.attr("keep_dims", op.attr("keepdim", False)))),
        "p": op.attr("p", 2),
    }
    return Launch("LpNorm", KernelArgs("LpNorm", (x,), (out,), tuple(attrs.items())))


@replays("L2Loss", kernels=("LpNorm",))
def l2_loss(op: RecordedOp) -> Launch:
    """Everything to one number."""
    x = operand(op.inputs[0])
    return Launch("LpNorm", KernelArgs("L2Loss", (x,), (OperandSpec((), x.dtype),)))


@replays("TopKD")
def top_k(op: RecordedOp) -> Launch:
    """x, assist → values, columns."""
    x, assist, values = (operand(t) for t in (*op.inputs[:2], op.outputs[0]))
    outs = (values, OperandSpec(values.shape, DType.INT32))
    return Launch("TopKD", KernelArgs("TopKD", (x, assist), outs, (("k", values.shape[-1]),)))


@replays("BinaryCrossEntropy", kernels=("BinaryCrossEntropy",))
def binary_cross_entropy(op: RecordedOp) -> Launch:
    """Probabilities, labels[, weights] → losses, or one number."""
    inputs = tuple(operand(t) for t in op.inputs)
    out = operand(op.outputs[0])
    kind = op.attr("reduction", "none" if out.shape == inputs[0].shape else "mean")
    attrs = (("reduction", kind),)
    return Launch("BinaryCrossEntropy", KernelArgs(op.op_type, inputs, (out,), attrs))


@replays("FullyConnection", kernels=("FullyConnection",))
def fully_connection(op: RecordedOp) -> Launch:
    """Rows, weights (K1, N1, 16, C0), bias (1, N1, 1, 1, 16) → fractals of results.

    The profile names the bias's type; results of int8 are its int32 sums.
    """
    x, w, bias = (operand(t) for t in op.inputs[:3])
    k1, n1, n0, c0 = w.shape
    weights = OperandSpec((n1 * n0, k1 * c0, 1, 1), w.dtype, Layout.FRACTAL_Z)
    *batch, _, m1, m0, _ = op.outputs[0].shape
    out = OperandSpec((*batch, m1 * m0, n1 * n0), bias.dtype, Layout.FRACTAL_NZ)
    if x.layout is Layout.NC1HWC0:
        out = OperandSpec((x.shape[0], n1 * n0), bias.dtype, Layout.FRACTAL_NZ)
    return Launch("FullyConnection", KernelArgs(op.op_type, (x, weights, bias), (out,)))


@replays("Iou", kernels=("Iou",))
def iou(op: RecordedOp) -> Launch:
    """Boxes, ground truths → one row of overlaps a ground truth."""
    boxes, truths = operand(op.inputs[0]), operand(op.inputs[1])
    out = OperandSpec((truths.shape[0], boxes.shape[0]), boxes.dtype)
    attrs = (("eps", float(op.attr("eps", 1.0))), ("mode", op.attr("mode", "iou")))
    return Launch("Iou", KernelArgs("Iou", (boxes, truths), (out,), attrs))
