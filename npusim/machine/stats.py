"""What one class of identical cores did in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from npusim.errors import AccountingError, DeadlockError
from npusim.program.isa import N_PIPES, PIPE_NAMES


@dataclass
class CoreStats:
    """Cycles by pipe and reason, bytes by operand, of one core of the class.

    Attributes:
        weight: how many cores it stands for.
        cycles: from the start of the block to its last completion.
        busy, idle: cycles per pipe; stall: per pipe, reason → cycles.
        moved: operand → bytes; instructions issued; scalar busy cycles.
        spans: (pipe, op, start, end) per instruction, when asked for.
    """

    weight: int
    cycles: int = 0
    busy: list[int] = field(default_factory=lambda: [0] * N_PIPES)
    idle: list[int] = field(default_factory=lambda: [0] * N_PIPES)
    stall: list[dict[str, int]] = field(default_factory=lambda: [{} for _ in range(N_PIPES)])
    moved: dict[int, int] = field(default_factory=dict)
    instructions: int = 0
    scalar_busy: int = 0
    scalar_stall: int = 0
    spans: list[tuple[int, str, int, int]] = field(default_factory=list)

    def add_stall(self, pipe: int, reason: str, cycles: int) -> None:
        """Cycles a pipe held an instruction it could not start."""
        d = self.stall[pipe]
        d[reason] = d.get(reason, 0) + cycles

    def check(self, name: str) -> None:
        """busy + stalled + idle = elapsed, for every pipe; none of them below zero.

        Raises:
            AccountingError: it does not close.
        """
        for p in range(N_PIPES):
            total = self.busy[p] + self.idle[p] + sum(self.stall[p].values())
            least = min(self.busy[p], self.idle[p], *self.stall[p].values())
            if total != self.cycles or least < 0:
                raise AccountingError(
                    f"{name}: pipe {PIPE_NAMES[p]} accounts for {total} of {self.cycles} cycles: "
                    f"busy {self.busy[p]}, idle {self.idle[p]}, stalled {self.stall[p]}",
                    "busy + stalled + idle = elapsed, none below zero",
                    "this is a defect of the simulator: please report it",
                )


def busiest(cores: Sequence[CoreStats], cycles: int) -> CoreStats:
    """One core made of the busiest pipes of several, over `cycles`; the rest of them is idle."""
    out = CoreStats(1, cycles)
    for p in range(N_PIPES):
        core = max(cores, key=lambda c: c.busy[p])
        out.busy[p], out.stall[p] = core.busy[p], dict(core.stall[p])
        out.idle[p] = cycles - core.busy[p] - sum(core.stall[p].values())
        out.spans += [s for s in core.spans if s[0] == p]
    scalar = max(cores, key=lambda c: c.scalar_busy)
    out.scalar_busy, out.scalar_stall = scalar.scalar_busy, scalar.scalar_stall
    return out


def deadlock(name: str, stuck: list[str]) -> DeadlockError:
    """The error of a launch that cannot progress."""
    return DeadlockError(
        f"kernel {name} cannot progress: " + "; ".join(stuck[:8]),
        "every wait_flag has its set_flag, every queue slot is freed",
        "check the alloc/enque/deque/free order of the kernel's queues",
    )
