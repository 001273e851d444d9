"""Chains that CANN's fusion made: FusionOp_A_B_C, with operators that have no builder by that name.

The first part takes the row's first operands, every further one the running value and, where it is
binary, the next operand. What follows a matrix product or a convolution is its epilogue.
"""

from __future__ import annotations

from npusim.explore.replay.launches import Launch, replays_family
from npusim.explore.replay.rows_conv import conv_steps
from npusim.explore.replay.rows_elementwise import PLAIN, chain
from npusim.explore.replay.rows_matrix import product
from npusim.frontends.recorded import RecordedOp
from npusim.ir import EpilogueStep

PREFIX = "FusionOp_"

#: Further elementwise parts, by CANN's names.
_OTHERS: dict[str, tuple[str, tuple[tuple[str, object], ...]]] = {
    "Square": ("Pow", (("const1", 2),)), "Floor": ("Floor", ()), "Ceil": ("Ceil", ()),
    "Round": ("Round", ()), "ReLU": ("Relu", ()), "ReLUV2": ("Relu", ()),
    "Relu6": ("Clip", (("const1", 0.0), ("const2", 6.0))), "Sign": ("Sign", ()),
    "GeLU": ("Gelu", (("approximate", "tanh"),)), "Gelu": ("Gelu", (("approximate", "tanh"),)),
}  # fmt: skip
_BINARY = {"Add", "Sub", "Mul", "Div", "Max", "Min"}
_UNARY = {
    "Neg", "Sqrt", "Reciprocal", "Abs", "Exp", "Log", "Tanh", "Sigmoid", "Relu", "Floor", "Ceil",
    "Round", "Pow", "Clip", "Gelu", "Sign",
}  # fmt: skip


def _part(name: str) -> tuple[str, tuple[tuple[str, object], ...]]:
    """CANN's part as npusim's operator and its attributes.

    Raises:
        ValueError: it is no elementwise operator that can be in a chain.
    """
    op_type, attrs = _OTHERS.get(name, (PLAIN.get(name, ""), ()))
    op_type = "Add" if op_type == "Sum" else op_type
    if op_type not in _BINARY | _UNARY:
        raise ValueError(f"{name!r} in a fused chain")
    return op_type, attrs


@replays_family(PREFIX)
def fused(op: RecordedOp) -> Launch:
    """The chain that the type's name spells."""
    first, *rest = op.op_type.removeprefix(PREFIX).split("_")
    if first in ("MatMul", "MatMulV2", "BatchMatMul", "BatchMatMulV2"):
        return product(op, tuple(_part(name)[0] for name in rest))
    if first == "Conv2D":
        return conv_steps(op, tuple(_part(name) for name in rest))
    return _elementwise(op, (first, *rest))


def _elementwise(op: RecordedOp, names: tuple[str, ...]) -> Launch:
    parts = [_part(name) for name in names]
    (head, attrs), *others = parts
    taken = 2 if head in _BINARY else 1
    wanted = taken + sum(kind in _BINARY for kind, _ in others)
    if wanted != len(op.inputs):
        raise ValueError(f"a chain of {wanted} operands")
    steps = []
    for kind, settings in others:
        steps.append(EpilogueStep(kind, taken if kind in _BINARY else None, settings))
        taken += kind in _BINARY
    return chain(op, head, attrs=dict(attrs), epilogue=tuple(steps))
