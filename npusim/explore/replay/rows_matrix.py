"""Matrix products and convolutions of a profile."""

from __future__ import annotations

from npusim.explore.replay.launches import Launch, filter_operand, operand, replays
from npusim.frontends.recorded import RecordedOp
from npusim.ir import EpilogueStep
from npusim.ir.layout import Layout
from npusim.program.kernel import KernelArgs, OperandSpec


def _transposes(a: OperandSpec, b: OperandSpec, out: OperandSpec) -> tuple[int, int]:
    """Which operands are stored transposed, read off the shapes (square cases: not).

    Raises:
        ValueError: no choice fits.
    """
    m, n = out.shape[-2:]
    for ta, tb in ((0, 0), (0, 1), (1, 0), (1, 1)):
        am, ak = a.shape[-2:][::-1] if ta else a.shape[-2:]
        bk, bn = b.shape[-2:][::-1] if tb else b.shape[-2:]
        if (am, bn) == (m, n) and ak == bk:
            return ta, tb
    raise ValueError(f"no product of {a.shape} and {b.shape} gives {out.shape}")


def _product(op: RecordedOp, steps: tuple[str, ...]) -> Launch:
    """A, B[, bias][, operands of the steps] → C."""
    a, b, out = operand(op.inputs[0]), operand(op.inputs[1]), operand(op.outputs[0])
    if len(a.shape) == 1 or len(b.shape) == 1:
        raise ValueError("a vector operand")
    ta, tb = _transposes(a, b, out)
    rest = [operand(t) for t in op.inputs[2:]]
    bias = None
    if rest and len(rest[0].shape) == 1 and rest[0].layout is Layout.ND:
        bias = rest.pop(0)
    inputs: list[OperandSpec | None] = [a, b, bias]
    epilogue = []
    for step in steps:
        if step == "Relu":
            epilogue.append(EpilogueStep("Relu"))
        elif step == "Scale":  # by a scalar: free in the conversion out of L0C
            rest = rest[1:]
        else:
            other = rest.pop(0)
            inputs.append(other)
            epilogue.append(EpilogueStep(step, len(inputs) - 1))
    attrs = (("transA", ta), ("transB", tb))
    return Launch("MatMul", KernelArgs("MatMul", tuple(inputs), (out,), attrs, tuple(epilogue)))


@replays("MatMul", "MatMulV2", "MatMulV3", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def matmul(op: RecordedOp) -> Launch:
    """Plain products, with an optional bias."""
    return _product(op, ())


@replays("FusionOp_MatMul_ReLU")
def matmul_relu(op: RecordedOp) -> Launch:
    """A product with bias and ReLU."""
    return _product(op, ("Relu",))


@replays("FusionOp_MatMul_AddN")
def matmul_addn(op: RecordedOp) -> Launch:
    """A product plus one tensor or more."""
    extra = len(op.inputs) - 2
    return _product(op, ("Add",) * extra)


@replays("Conv2D")
def conv2d(op: RecordedOp) -> Launch:
    """A convolution; stride and padding are read off the sizes."""
    x, out = operand(op.inputs[0]), operand(op.outputs[0])
    w = filter_operand(op.inputs[1], op.inputs[0])
    co = out.shape[1]
    w = OperandSpec((co, *w.shape[1:]), w.dtype, w.layout)
    attrs = conv_attrs(x.shape[2:], out.shape[2:], w.shape[2:])
    return Launch("Conv2D", KernelArgs("Conv", (x, w), (out,), attrs))


def conv_attrs(
    size: tuple[int, ...], out: tuple[int, ...], kernel: tuple[int, ...]
) -> tuple[tuple[str, object], ...]:
    """Strides and pads that take `size` to `out`: the smallest stride, pads spread evenly.

    Raises:
        ValueError: no stride up to 4 does.
    """
    strides, begin, end = [], [], []
    for n, o, k in zip(size, out, kernel, strict=True):
        for stride in range(1, 5):
            total = (o - 1) * stride + k - n
            if -stride < total <= 2 * (k - 1):
                strides.append(stride)
                begin.append(max(0, total) // 2)
                end.append(max(0, total) - max(0, total) // 2)
                break
        else:
            raise ValueError(f"no window of {k} takes {n} to {o}")
    pads = (*begin, *end)
    return (("group", 1), ("pads", pads), ("strides", tuple(strides)))
