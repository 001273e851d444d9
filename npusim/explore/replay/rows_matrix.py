"""Matrix products of a profile."""

from __future__ import annotations

from npusim.explore.replay.launches import Launch, operand, replays
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


def product(op: RecordedOp, steps: tuple[str, ...]) -> Launch:
    """A, B[, bias][, operands of the steps] → C[, D]: with D, C is what the steps begin with."""
    a, b, out = operand(op.inputs[0]), operand(op.inputs[1]), operand(op.outputs[0])
    if len(a.shape) == 1 or len(b.shape) == 1:
        raise ValueError("a vector operand")
    ta, tb = _transposes(a, b, out)
    rest = [operand(t) for t in op.inputs[2:]]
    bias = None
    if rest and len(rest[0].shape) == 1 and rest[0].layout is Layout.ND:
        bias = rest.pop(0)
        b, out = _unpadded(b, tb, bias.shape[0]), _unpadded(out, 0, bias.shape[0])
    inputs: list[OperandSpec | None] = [a, b, bias]
    epilogue = []
    for step in steps:
        if step in UNARY:
            epilogue.append(EpilogueStep(step, None, UNARY[step]))
        elif rest[0].shape == ():  # a scalar, which the kernel reads once
            epilogue.append(EpilogueStep(step, None, (("const1", 1.0),)))
            rest.pop(0)
        else:
            inputs.append(rest.pop(0))
            epilogue.append(EpilogueStep(step, len(inputs) - 1))
    attrs = (("transA", ta), ("transB", tb))
    outputs = (out, *(OperandSpec(out.shape, o.dtype, o.layout) for o in _others(op)))
    args = KernelArgs("MatMul", tuple(inputs), outputs, attrs, tuple(epilogue))
    return Launch("LibraryMatMul", args)


def _others(op: RecordedOp) -> list[OperandSpec]:
    return [operand(t) for t in op.outputs[1:]]


def _unpadded(spec: OperandSpec, rows: int, n: int) -> OperandSpec:
    """A fractal operand whose N (its rows, or its columns) is n, as the bias tells.

    Raises:
        ValueError: n is not what the fractals can hold.
    """
    shape = list(spec.shape)
    axis = -2 if rows else -1
    if spec.layout is not Layout.FRACTAL_NZ or shape[axis] == n:
        return spec
    if not shape[axis] - 16 < n < shape[axis]:
        raise ValueError(f"a bias of {n} for {shape[axis]} columns")
    shape[axis] = n
    return OperandSpec(tuple(shape), spec.dtype, spec.layout)


@replays(
    "MatMul", "MatMulV2", "MatMulV3", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "GEMM"
)  # fmt: skip
def matmul(op: RecordedOp) -> Launch:
    """Plain products, with an optional bias."""
    return product(op, ())


#: Unary steps by the suffix of the fused type, with their attributes.
UNARY: dict[str, tuple[tuple[str, object], ...]] = {
    "Relu": (), "Tanh": (), "Gelu": (("approximate", "tanh"),),
}  # fmt: skip


@replays("FusionOp_MatMul_ReLU")
def matmul_relu(op: RecordedOp) -> Launch:
    """A product with bias and ReLU."""
    return product(op, ("Relu",))


@replays("FusionOp_MatMul_Tanh")
def matmul_tanh(op: RecordedOp) -> Launch:
    """A product with bias and Tanh."""
    return product(op, ("Tanh",))


@replays("FusionOp_MatMul_GeLU")
def matmul_gelu(op: RecordedOp) -> Launch:
    """A product with bias, kept for the gradient, and its GeLU."""
    return product(op, ("Gelu",))


@replays("FusionOp_MatMul_GeLUGrad")
def matmul_gelu_grad(op: RecordedOp) -> Launch:
    """A product as the gradient of a GeLU, whose input and output follow."""
    return product(op, ("GeluGrad",))


@replays("FusionOp_MatMul_Mul")
def matmul_mul(op: RecordedOp) -> Launch:
    """A weight gradient scaled by a scalar, or multiplied by a tensor beside the gradient."""
    return product(op, ("Mul",))


@replays("FusionOp_BatchMatMul_FusedMulAdd")
def matmul_mul_add(op: RecordedOp) -> Launch:
    """Attention scores: scaled, plus a mask row."""
    return product(op, ("Mul", "Add"))


@replays("FusionOp_MatMul_AddN")
def matmul_addn(op: RecordedOp) -> Launch:
    """A product plus one tensor or more."""
    extra = len(op.inputs) - 2
    return product(op, ("Add",) * extra)
