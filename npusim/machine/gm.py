"""What a launch finds in GM: for each operand, which share of its bytes goes to HBM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from npusim.machine.l2 import L2Cache
from npusim.program.kernel import Plan


@dataclass(frozen=True)
class GmState:
    """Memory state seen by one launch.

    Attributes:
        hbm_share: operand index → HBM bytes per byte moved (reads: misses; writes: the
            write-back of dirty lines that they evict). Re-reads within the launch hit L2, so a
            share is usually below unique/total.
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

    Inputs are touched first, then outputs; dirty bytes that leave for them are charged to the
    launch's writes. Workspace, which is in no range, stays in L2.

    Args:
        n_inputs: operands below this index are read, the others written.
        ranges: operand index → (address, bytes) in device memory.
    """
    traffic = plan.traffic
    misses: dict[int, int] = {}
    written_back = 0
    own = [i for i in sorted(traffic) if i in ranges]
    for i in own:
        address, nbytes = ranges[i]
        size = min(traffic[i].unique, nbytes)
        lo, hi = address, address + size
        if i < n_inputs:
            misses[i] = size - l2.resident(lo, hi)
        written_back += l2.touch(lo, hi, write=i >= n_inputs)
    writes = sum(traffic[i].total for i in own if i >= n_inputs)
    shares = []
    for i in own:
        t = traffic[i]
        if i < n_inputs:
            shares.append((i, misses[i] / t.total if t.total else 0.0))
        else:
            shares.append((i, written_back / writes if writes else 0.0))
    return GmState(tuple(shares))
