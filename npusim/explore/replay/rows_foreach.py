"""Operators over lists of tensors (torch's _foreach functions) in a profile.

A launch takes all tensors of the lists; it is timed over one flat tensor as large as all of a list.
"""

from __future__ import annotations

from npusim.explore.replay.launches import Launch, operand, replays
from npusim.frontends.recorded import RecordedOp, RecordedTensor
from npusim.ir import EpilogueStep
from npusim.program.kernel import KernelArgs, OperandSpec

#: CANN's type → (npusim's operator, lists of inputs).
LISTS = {
    "ForeachAddList": ("Add", 2),
    "ForeachSubList": ("Sub", 2),
    "ForeachMulList": ("Mul", 2),
    "ForeachDivList": ("Div", 2),
    "ForeachSqrt": ("Sqrt", 1),
    "ForeachNeg": ("Neg", 1),
    "ForeachExp": ("Exp", 1),
}
#: The second list is multiplied by a scalar (alpha) first.
WEIGHTED = ("ForeachAddList", "ForeachSubList")
SCALARS = {
    "ForeachAddScalar": "Add",
    "ForeachSubScalar": "Sub",
    "ForeachMulScalar": "Mul",
    "ForeachDivScalar": "Div",
}


@replays(*LISTS, *SCALARS)
def foreach(op: RecordedOp) -> Launch:
    """Lists of one length and one type, the first updated in place; then perhaps a scalar."""
    kind, lists = LISTS.get(op.op_type) or (SCALARS[op.op_type], 1)
    n = len(op.outputs) or len(op.inputs) // lists  # in place, a profile may name no outputs
    total = [_flat(op.inputs[i * n : (i + 1) * n]) for i in range(lists)]
    if any(t != total[0] for t in total):
        raise ValueError(f"lists of {[t.shape for t in total]} elements")
    if op.op_type in SCALARS:
        args = KernelArgs(kind, (total[0],), (total[0],), (("const1", 2.0),))
        return Launch("Elementwise", args, in_place=((1, 0),))
    if op.op_type in WEIGHTED:
        first, second = total
        steps = (EpilogueStep(kind, 1),)
        args = KernelArgs("Mul", (second, first), (first,), (("const1", 1.0),), steps)
        return Launch("Elementwise", args, in_place=((2, 1),))
    args = KernelArgs(kind, tuple(total), (total[0],))
    return Launch("Elementwise", args, in_place=((lists, 0),))


def _flat(tensors: tuple[RecordedTensor, ...]) -> OperandSpec:
    """All of them in a row."""
    if not tensors:
        raise ValueError("an empty list of tensors")
    kinds = {operand(t).dtype for t in tensors}
    if len(kinds) != 1:
        raise ValueError(f"a list of {', '.join(sorted(kinds))}")
    return OperandSpec((sum(t.size for t in tensors),), kinds.pop())
