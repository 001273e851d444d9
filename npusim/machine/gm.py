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


def visit(l2: L2Cache, plan: Plan, n_inputs: int, ranges: Mapping[int, tuple[int, int]]) -> GmState:
    """The state that a launch finds in L2, and what it leaves there.

    A line that a write brings in, or makes dirty where a read brought it in, costs the write-back
    of one that leaves: in the long run as many dirty lines leave as come. Workspace, which is in no
    range, stays in L2.

    Args:
        n_inputs: operands below this index are read, the others written.
        ranges: operand index → (address, bytes) in device memory; an output may be an input.
    """
    sizes = {i: min(t.unique, ranges[i][1]) for i, t in sorted(plan.traffic.items()) if i in ranges}
    first: dict[int, int] = {}  # address → the operand that covers it
    for i in sorted(sizes, key=lambda i: -sizes[i]):
        first.setdefault(ranges[i][0], i)
    each = list(first.values())
    touched = l2.touch([(ranges[i][0], ranges[i][0] + sizes[i]) for i in each])
    missing = dict(zip(each, touched.missing, strict=True))
    came = sum(touched.missing)
    leaving = touched.evicted / came if came else 0.0
    shares = []
    for i, size in sizes.items():
        moved = missing[first[ranges[i][0]]] * (1.0 if i < n_inputs else leaving)
        part = round(moved / size * _STEPS) / _STEPS if size else 0.0
        traffic = plan.traffic[i]
        # A kernel counts as distinct what it moves again and L2 cannot have kept.
        again = max(0, traffic.unique - ranges[i][1])
        total = traffic.total
        shares.append((i, (part * size + again) / total if total else 0.0))
    return GmState(tuple(shares))
