"""What a launch finds in GM: for each operand, which share of its bytes goes to HBM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from npusim.machine.l2 import L2Cache
from npusim.program.kernel import Plan

#: Steps in which a launch that fills L2 goes through its operands.
STEPS = 64


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

    The launch goes through its operands in step, inputs before outputs: of operands that L2 does
    not hold together, parts leave before they are read. Dirty bytes that leave are charged to the
    launch.

    Args:
        n_inputs: operands below this index are read, the others written.
        ranges: operand index → (address, bytes) in device memory.
    """
    traffic = plan.traffic
    sizes = {i: min(traffic[i].unique, ranges[i][1]) for i in sorted(traffic)}
    misses = dict.fromkeys((i for i in sizes if i < n_inputs), 0)
    written_back = 0
    steps = max(1, min(STEPS, -(-sum(sizes.values()) * STEPS // l2.size)))
    for step in range(steps):
        for i, size in sizes.items():
            lo, hi = (ranges[i][0] + size * (step + j) // steps for j in (0, 1))
            if i < n_inputs:
                misses[i] += hi - lo - l2.resident(lo, hi)
            written_back += l2.touch(lo, hi, write=i >= n_inputs)
    return GmState(_shares(plan, n_inputs, misses, written_back))


def _shares(
    plan: Plan, n_inputs: int, misses: Mapping[int, int], written_back: int
) -> tuple[tuple[int, float], ...]:
    """HBM bytes per byte moved: write-backs on the writes, one for each byte written at most.

    What is left was pushed out by read misses, which take their turn with it.
    """
    traffic = plan.traffic
    written = {i: t.unique for i, t in traffic.items() if i >= n_inputs}
    paid = min(written_back, sum(written.values()))
    share = paid / sum(written.values()) if paid else 0.0
    missed = sum(misses.values())
    more = (written_back - paid) / missed if missed else 0.0
    shares = []
    for i, t in sorted(traffic.items()):
        nbytes = misses[i] * (1 + more) if i < n_inputs else written[i] * share
        shares.append((i, nbytes / t.total if t.total else 0.0))
    return tuple(shares)
