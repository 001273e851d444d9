"""What a launch finds in GM: for each operand, which share of its bytes goes to HBM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from npusim.machine.l2 import L2Cache
from npusim.program.kernel import Plan

#: Residency is told in sixteenths, so that launches in nearly equal states are timed once.
_STEPS = 16


@dataclass(frozen=True)
class GmState:
    """Memory state seen by one launch.

    Attributes:
        hbm_share: operand index → HBM bytes per byte moved (writes: the write-back of dirty
            lines that are evicted; reads: misses, and the write-backs beyond the writes' own).
            Re-reads within the launch hit L2, so a share is usually below unique/total.
    """

    hbm_share: tuple[tuple[int, float], ...]

    def share(self, operand: int) -> float:
        """HBM bytes per byte moved of an operand."""
        for index, share in self.hbm_share:
            if index == operand:
                return share
        return 0.0


def cold(plan: Plan) -> GmState:
    """Nothing in L2: every distinct byte comes from HBM once, every byte written goes back."""
    return GmState(
        tuple((i, t.unique / t.total if t.total else 0.0) for i, t in sorted(plan.traffic.items()))
    )


def hot(plan: Plan) -> GmState:
    """Everything in L2."""
    return GmState(tuple((i, 0.0) for i in sorted(plan.traffic)))


@dataclass(frozen=True)
class Footprint:
    """What a launch touches in device memory, the same at every launch.

    Attributes:
        ranges: (start, end) of each distinct address, the largest operand there.
        operands: operand → (bytes of its own, bytes that it moves again and L2 cannot have kept,
            bytes that it moves in all, position in `ranges`, it is written).
    """

    ranges: tuple[tuple[int, int], ...]
    operands: tuple[tuple[int, tuple[int, int, int, int, bool]], ...]


def footprint(plan: Plan, n_inputs: int, ranges: Mapping[int, tuple[int, int]]) -> Footprint:
    """The footprint of a launch. Workspace, which is in no range, stays in L2.

    Args:
        n_inputs: operands below this index are read, the others written.
        ranges: operand index → (address, bytes) in device memory; an output may be an input.
    """
    sizes = {i: min(t.unique, ranges[i][1]) for i, t in sorted(plan.traffic.items()) if i in ranges}
    first: dict[int, int] = {}  # address → the operand that covers it
    for i in sorted(sizes, key=lambda i: -sizes[i]):
        first.setdefault(ranges[i][0], i)
    place = {address: n for n, address in enumerate(first)}
    operands = []
    for i, size in sizes.items():
        traffic = plan.traffic[i]
        again = max(0, traffic.unique - ranges[i][1])
        operands.append((i, (size, again, traffic.total, place[ranges[i][0]], i >= n_inputs)))
    spans = tuple((ranges[i][0], ranges[i][0] + sizes[i]) for i in first.values())
    return Footprint(spans, tuple(operands))


def visit(l2: L2Cache, footprint: Footprint) -> GmState:
    """The state that a launch finds in L2, and what it leaves there.

    A line that a write brings in, or makes dirty where a read brought it in, costs the write-back
    of one that leaves: in the long run as many dirty lines leave as come.
    """
    touched = l2.touch(footprint.ranges)
    came = sum(touched.missing)
    leaving = touched.evicted / came if came else 0.0
    shares = []
    for i, (size, again, total, place, written) in footprint.operands:
        moved = touched.missing[place] * (leaving if written else 1.0)
        part = round(moved / size * _STEPS) / _STEPS if size else 0.0
        shares.append((i, (part * size + again) / total if total else 0.0))
    return GmState(tuple(shares))
