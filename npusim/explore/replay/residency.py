"""What each launch of a profile finds in L2.

Profiles keep no addresses, and tables of operator times keep one row for many equal launches. A
tensor is therefore known by its format, type and shape, and the row's launches count as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from npusim.chip.spec import ChipSpec
from npusim.explore.replay.launches import Launch
from npusim.frontends.recorded import RecordedOp, RecordedTensor
from npusim.ir import DType
from npusim.machine.gm import GmState, cold, footprint, visit
from npusim.machine.l2 import L2Cache
from npusim.program.kernel import OperandSpec, Plan

_MANY = 3  #: kinds of tensors in a row that an operator takes in turn
_PAGE = 512  #: alignment of addresses


def in_turn(ops: Sequence[RecordedOp], l2_size: int) -> list[bool]:
    """Which rows belong to an operator that goes over all tensors of a model, one after the other.

    So do casts and decays of all weights: rows of one type that follow each other, of several
    sizes, together far more than L2 holds. What such a launch reads was last used long ago, and
    what it leaves is gone when it is wanted.
    """
    found: list[bool] = []
    for _, group in groupby(ops, key=lambda op: (op.net, op.op_type)):
        rows = list(group)
        sizes = {_largest(op) for op in rows}
        total = sum(_largest(op) * op.count for op in rows)
        found += [len(sizes) >= _MANY and total > 2 * l2_size] * len(rows)
    return found


def _largest(op: RecordedOp) -> int:
    """Bytes of the op's largest operand (of a type unknown to npusim: as if of one byte)."""
    return max((t.size * _width(t.dtype) for t in (*op.inputs, *op.outputs)), default=0)


def _width(dtype: str) -> int:
    return DType(dtype).size if dtype in {d.value for d in DType} else 1


_Kind = tuple[str, DType, tuple[int, ...]]


def _kind(spec: OperandSpec, tensors: Sequence[RecordedTensor]) -> _Kind:
    """Format, type, shape without ones, as the profile names them (launches may see it flat)."""
    layout, shape = spec.layout.value, spec.shape
    for t in tensors:
        if t.size * spec.dtype.size == spec.nbytes:
            layout, shape = t.format, t.shape
            break
    return layout, spec.dtype, tuple(n for n in shape if n != 1)


def _reshaped(a: _Kind, b: _Kind) -> bool:
    """Whether two plain tensors may be one, seen in two shapes: axes merged, or split."""
    plain = a[:2] == b[:2] and a[0] == "ND"
    return plain and (_splits(a[2], b[2]) or _splits(b[2], a[2]))


def _splits(fine: tuple[int, ...], coarse: tuple[int, ...]) -> bool:
    """Whether `fine` is `coarse` with axes split."""
    rest = list(fine)
    for n in coarse:
        got = 1
        while rest and got < n:
            got *= rest.pop(0)
        if got != n:
            return False
    return not rest


class Memory:
    """L2 from row to row of a net.

    An input is the tensor of its kind that was used last and is not yet an operand of the launch.
    An output takes the memory of a tensor of its kind that was read since it was written, as
    memory planners do, else new memory. An operator's parameters and moments (`Launch.state`) are
    touched once a step: they are new, whatever looks like them.
    """

    def __init__(self, chip: ChipSpec) -> None:
        self._l2 = L2Cache(chip.l2.size)
        self._top = 0
        self._known: dict[_Kind, list[int]] = {}  # addresses, last used last
        self._used: dict[int, int] = {}  # address → visit
        self._read: set[int] = set()  # since they were written
        self._visits = 0

    def visit(self, op: RecordedOp, launch: Launch, plan: Plan, in_turn: bool = False) -> GmState:
        """State that the launch finds, and leaves.

        Args:
            in_turn: the row is one of an operator over all tensors: see `in_turn`.
        """
        self._visits += 1
        operands, inputs = launch.args.operands, len(launch.args.inputs)
        shared = dict(launch.in_place)
        ranges: dict[int, tuple[int, int]] = {}
        for i in sorted(plan.traffic):
            if i >= len(operands):
                continue  # workspace
            spec = operands[i]
            kind = _kind(spec, op.inputs if i < inputs else op.outputs)
            taken = {address for address, _ in ranges.values()}
            if i in shared:
                address: int | None = ranges[shared[i]][0]
            elif in_turn or i in launch.state:
                address = None
            elif i < inputs:
                address = self._last(kind, taken)
            else:
                address = self._dead(kind, taken)
            if address is None:
                address = self._top
                self._top += -(-spec.nbytes // _PAGE) * _PAGE
            if not in_turn:
                self._note(kind, address, read=i < inputs)
            ranges[i] = (address, spec.nbytes)
        for i in () if in_turn else launch.fresh:
            address, nbytes = ranges[i]
            if nbytes <= self._l2.size:  # of a larger one the first bytes have left
                self._l2.touch([(address, address + nbytes)])
        found, most = visit(self._l2, footprint(plan, inputs, ranges)), cold(plan)
        return GmState(tuple((i, min(found.share(i), most.share(i))) for i in sorted(plan.traffic)))

    def pass_by(self, op: RecordedOp) -> None:
        """An operator that is not timed reads and writes its operands all the same."""
        self._visits += 1
        ranges: dict[int, int] = {}
        for t, read in (*((t, True) for t in op.inputs), *((t, False) for t in op.outputs)):
            if t.dtype not in set(DType):
                continue
            nbytes = t.size * DType(t.dtype).size
            kind = (t.format, DType(t.dtype), tuple(n for n in t.shape if n != 1))
            address = self._last(kind, set(ranges)) if read else self._dead(kind, set(ranges))
            if address is None:
                address = self._top
                self._top += -(-nbytes // _PAGE) * _PAGE
            self._note(kind, address, read)
            ranges[address] = address + nbytes
        self._l2.touch(list(ranges.items()))

    def _last(self, kind: _Kind, taken: set[int]) -> int | None:
        """The tensor of a kind that was used last; else one that may be the same, reshaped."""
        own = [a for a in self._known.get(kind, ()) if a not in taken]
        if own:
            return own[-1]
        alike = [known for k, known in self._known.items() if _reshaped(k, kind)]
        return max(
            (a for known in alike for a in known if a not in taken),
            key=lambda a: self._used[a],
            default=None,
        )

    def _dead(self, kind: _Kind, taken: set[int]) -> int | None:
        """The memory of a tensor of this kind that is wanted no more."""
        known = self._known.get(kind, ())
        return next((a for a in reversed(known) if a in self._read and a not in taken), None)

    def _note(self, kind: _Kind, address: int, read: bool) -> None:
        for known in self._known.values():
            if address in known:
                known.remove(address)
        self._known.setdefault(kind, []).append(address)
        self._used[address] = self._visits
        if read:
            self._read.add(address)
        else:
            self._read.discard(address)
