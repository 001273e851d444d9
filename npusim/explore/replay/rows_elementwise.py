"""Elementwise operators of a profile: arithmetic, casts, activations and their gradients.

Elementwise work does not see the layout: where every operand has the output's storage, the launch
runs over flat arrays.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from npusim.explore.replay.launches import Launch, operand, replays
from npusim.frontends.recorded import RecordedOp, RecordedTensor
from npusim.ir import DType, EpilogueStep
from npusim.kernels.atomic_clean import BUFFER
from npusim.program.kernel import KernelArgs, OperandSpec

#: CANN's type → the operator of npusim.
PLAIN = {
    "Mul": "Mul", "Add": "Add", "Sub": "Sub", "RealDiv": "Div", "Div": "Div",
    "Neg": "Neg", "Sqrt": "Sqrt", "Reciprocal": "Reciprocal", "Pow": "Pow", "AddN": "Sum",
    "Maximum": "Max", "Minimum": "Min", "Select": "Where", "SelectV2": "Where",
    "AssignAdd": "Add", "GeluGrad": "GeluGrad", "GeLUGrad": "GeluGrad", "TanhGrad": "TanhGrad",
    "ReluGrad": "ReluGrad", "FastGelu": "FastGelu", "FastGeluGrad": "FastGeluGrad",
    "Relu": "Relu", "Exp": "Exp", "Log": "Log", "Abs": "Abs", "Tanh": "Tanh", "Sigmoid": "Sigmoid",
    "Sin": "Sin", "Cos": "Cos", "Erf": "Erf", "Sign": "Sign", "Floor": "Floor", "Ceil": "Ceil",
    "Round": "Round", "Softplus": "Softplus", "Mish": "Mish", "Swish": "Swish",
    "SigmoidCrossEntropyWithLogits": "SigmoidCrossEntropyWithLogits",
    "SigmoidCrossEntropyWithLogitsGrad": "SigmoidCrossEntropyWithLogitsGrad",
    "ClipByNormNoDivSum": "ClipByNormNoDivSum",
}  # fmt: skip


#: Those whose result is a boolean, whatever a table says of outputs.
LOGIC = {
    "Equal": "Equal", "Greater": "Greater", "Less": "Less", "LessEqual": "LessOrEqual",
    "GreaterEqual": "GreaterOrEqual", "LogicalAnd": "And", "LogicalOr": "Or", "LogicalNot": "Not",
}  # fmt: skip


def flat(t: RecordedTensor, shape: tuple[int, ...], storage: tuple[int, ...]) -> OperandSpec:
    """An operand as it lies in GM, aligned with an output of that device shape.

    Args:
        shape: the launch's output shape: the device shape, or its one flat axis.

    Raises:
        ValueError: the operand does not broadcast to the output.
    """
    kind = operand(RecordedTensor("ND", t.dtype, t.shape)).dtype
    if t.size == prod(storage):
        return OperandSpec(shape, kind)
    if t.size == 1:
        return OperandSpec((), kind)
    aligned = (1,) * (len(storage) - len(t.shape)) + t.shape
    if len(shape) != len(storage) or any(
        n not in (1, m) for n, m in zip(aligned, storage, strict=True)
    ):
        raise ValueError(f"operand {t.shape} with an output of {storage}")
    return OperandSpec(aligned, kind)


def chain(
    op: RecordedOp,
    op_type: str,
    inputs: tuple[RecordedTensor, ...] | None = None,
    attrs: dict[str, Any] | None = None,
    epilogue: tuple[EpilogueStep, ...] = (),
    outputs: tuple[RecordedTensor, ...] | None = None,
) -> Launch:
    """An elementwise launch over the row's operands."""
    inputs = op.inputs if inputs is None else inputs
    outputs = op.outputs if outputs is None else outputs
    storage = outputs[0].shape
    whole = all(t.size in (1, prod(storage)) for t in inputs)
    shape = (prod(storage),) if whole else storage
    specs = tuple(flat(t, shape, storage) for t in inputs)
    outs = tuple(OperandSpec(shape, flat(t, shape, storage).dtype) for t in outputs)
    return Launch(
        "Elementwise",
        KernelArgs(op_type, specs, outs, tuple(sorted((attrs or {}).items())), epilogue),
    )


@replays(*PLAIN)
def plain(op: RecordedOp) -> Launch:
    """One operator, its inputs as recorded."""
    return chain(op, PLAIN[op.op_type])


@replays(*LOGIC)
def logic(op: RecordedOp) -> Launch:
    """A comparison, or a connective of booleans."""
    outputs = tuple(RecordedTensor(t.format, "bool", t.shape) for t in op.outputs)
    return chain(op, LOGIC[op.op_type], outputs=outputs)


@replays("Cast")
def cast(op: RecordedOp) -> Launch:
    """To the output's type."""
    return chain(op, "Cast", attrs={"to": operand(op.outputs[0]).dtype.value})


@replays("GeLU", "Gelu")
def gelu(op: RecordedOp) -> Launch:
    """CANN's GeLU is the tanh form."""
    return chain(op, "Gelu", attrs={"approximate": "tanh"})


@replays("Square")
def square(op: RecordedOp) -> Launch:
    """x · x."""
    return chain(op, "Pow", attrs={"const1": 2})


@replays("Muls", "Adds")
def scaled(op: RecordedOp) -> Launch:
    """x · c or x + c, c an attribute: its value does not change the work."""
    return chain(op, op.op_type[:3].capitalize(), attrs={"const1": 2.0})


@replays("Relu6")
def relu6(op: RecordedOp) -> Launch:
    """Clipped to 0 … 6."""
    return chain(op, "Clip", attrs={"const1": 0.0, "const2": 6.0})


def _then(*steps: str) -> tuple[EpilogueStep, ...]:
    return tuple(EpilogueStep(s) for s in steps)


@replays("FusionOp_RealDiv_Sqrt")
def div_sqrt(op: RecordedOp) -> Launch:
    """√(x / y)."""
    return chain(op, "Div", epilogue=_then("Sqrt"))


@replays("FusionOp_RealDiv_Neg")
def div_neg(op: RecordedOp) -> Launch:
    """-(x / y)."""
    return chain(op, "Div", epilogue=_then("Neg"))


@replays("FusionOp_Mul_Neg")
def mul_neg(op: RecordedOp) -> Launch:
    """-(x · y)."""
    return chain(op, "Mul", epilogue=_then("Neg"))


@replays("FusionOp_Add_Floor")
def add_floor(op: RecordedOp) -> Launch:
    """⌊x + y⌋."""
    return chain(op, "Add", epilogue=_then("Floor"))


@replays("FusionOp_Mul_Square")
def mul_square(op: RecordedOp) -> Launch:
    """x² · y, y a scalar."""
    steps = (EpilogueStep("Mul", 1),)
    return chain(op, "Pow", attrs={"const1": 2}, epilogue=steps)


@replays("FusedMulAddN")
def mul_addn(op: RecordedOp) -> Launch:
    """x · s + y, s the scalar that comes last."""
    x, y, s = op.inputs
    return chain(op, "Mul", (x, s, y), epilogue=(EpilogueStep("Add", 2),))


@replays("MaximumGrad", "MinimumGrad")
def extremum_grad(op: RecordedOp) -> Launch:
    """dy to the side that won; the other side's gradient (a scalar here) is summed elsewhere."""
    return chain(op, op.op_type, outputs=(op.outputs[0],))


@replays("Assign")
def assign(op: RecordedOp) -> Launch:
    """The second operand, which has just been computed, copied over the first."""
    return replace(_copy(op, op.inputs[1]), fresh=(0,))


@replays("TensorMove", "Identity")
def tensor_move(op: RecordedOp) -> Launch:
    """A copy, through one buffer."""
    return _copy(op, op.inputs[0], buffers=1)


def _copy(op: RecordedOp, source: RecordedTensor, buffers: int = 2) -> Launch:
    spec = flat(source, (source.size,), source.shape)
    return Launch("Move", KernelArgs("Identity", (spec,), (spec,), (("buffers", buffers),)))


@replays("MemSet", "ZerosLike", "OnesLike", "Fill")
def clean(op: RecordedOp) -> Launch:
    """A constant over every recorded tensor."""
    kinds = {DType(t.dtype) for t in op.outputs}
    if len(kinds) == 1 == len(op.outputs) and all(kind.size == 1 for kind in kinds):
        spec = OperandSpec((op.outputs[0].size,), kinds.pop())
        return Launch("FillBytes", KernelArgs("MemSet", (), (spec,)))
    total = sum(max(1, t.size) * DType(t.dtype).size for t in op.outputs or op.inputs)
    return Launch("Move", KernelArgs("MemSet", (), (_words(total),)))


@replays("AtomicAddrClean")
def atomic_clean(op: RecordedOp) -> Launch:
    """Zeros over the tensors that it names as inputs, or over a workspace that it does not name.

    A block cleans whole buffers, so the block dim says how much there was where it is less.
    """
    sizes = [max(1, t.size) * DType(t.dtype).size for t in op.outputs or op.inputs]
    total = sum((n + 32 + 511) // 512 * 512 for n in sizes)  # as MindSpore allocates
    if 0 < op.block_dim < FULL_CLEAN_BLOCKS:
        total = min(total, (op.block_dim - 1) * BUFFER + WORKSPACE)
    return Launch("AtomicClean", KernelArgs("MemSet", (), (_words(total),)))


def _words(nbytes: int) -> OperandSpec:
    return OperandSpec((-(-nbytes // 4),), DType.FLOAT32)


#: AtomicAddrClean on fewer blocks cleans a workspace, not the tensor that it names …
FULL_CLEAN_BLOCKS = 12
#: … of which the last block finds a part: sums of a few channels.
WORKSPACE = 4 * 1024
