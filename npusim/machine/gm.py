"""What a launch finds in GM: for each operand, which share of its bytes goes to HBM."""

from __future__ import annotations

from dataclasses import dataclass

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
