"""The tilings of one kernel launch that are worth simulating, and which of them is fastest.

A kernel's own `tilings` use as many cores as they can. Every block costs the task scheduler time,
so small launches are faster on fewer: the legal tilings for the chip with half of its cores, a
quarter, … are tried too (a tiling fits the buffers of a core, whatever the number of cores).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from npusim.chip.spec import ChipSpec
from npusim.machine.gm import GmState
from npusim.machine.launch import time_launch
from npusim.program.kernel import KernelArgs, Plan, Tiling, get_kernel

FIRST_LOOK = 2  #: tilings simulated for every number of cores
BEST_FEW = 8  #: tilings simulated for the number of cores that the first look prefers
#: Fewer cores are tried as long as the last step down cost less than this (time over the number
#: of cores has one minimum: work shrinks with cores, launch overhead grows).
WORTH_GOING_ON = 1.1


@dataclass(frozen=True)
class Choice:
    """The fastest plan found.

    Attributes:
        cores: the number of cores (AICs, where cube and vector cores are apart) whose legal
            tilings hold it; 0: the compiler's own.
        before, after: cycles of all launches, with the compiler's plan and with this one.
        simulated: launches timed.
    """

    plan: Plan
    cores: int
    before: int
    after: int
    simulated: int


def core_counts(chip: ChipSpec) -> Iterator[int]:
    """All cores, a half, a quarter, … 1."""
    count = chip.cores.count
    while count:
        yield count
        count //= 2


def ranked_tilings(kernel: str, args: KernelArgs, chip: ChipSpec, cores: int) -> list[Tiling]:
    """Legal tilings on `cores` cores, the smallest estimate first."""
    definition, fewer = get_kernel(kernel), chip.with_cores(cores)
    if definition.refuse(args, fewer):
        return []
    tilings = definition.tilings(args, fewer)
    return sorted(tilings, key=lambda t: definition.estimate(args, fewer, t))


def launch_cycles(chip: ChipSpec, plan: Plan) -> int:
    """Cycles from the dispatch of a launch to the start of its blocks."""
    per_block = chip.scheduler.per_block * chip.clock
    return chip.cycles(chip.scheduler.launch) + ceil(per_block * plan.block_dim)


def restated(state: GmState, args: KernelArgs, plan: Plan, other: Plan) -> GmState:
    """What `other` finds where `plan` finds `state`: the same part of every operand is in L2.

    The inverse of how `machine.gm.visit` makes a state of it.
    """
    shares = []
    for i, share in state.hbm_share:
        had, has = plan.traffic[i], other.traffic.get(i)
        if has is None or not has.total:
            shares.append((i, 0.0))
            continue
        size = args.operands[i].nbytes
        first = share * had.total - max(0, had.unique - size)
        part = first / min(had.unique, size) if min(had.unique, size) else 0.0
        moved = part * min(has.unique, size) + max(0, has.unique - size)
        shares.append((i, moved / has.total))
    return GmState(tuple(shares))


@dataclass
class Trials:
    """Simulates plans of one launch, each tiling once.

    Attributes:
        states: what the compiler's plan finds in memory → in how many launches.
    """

    chip: ChipSpec
    kernel: str
    args: KernelArgs
    default: Plan
    states: Mapping[GmState, int]
    simulated: int = 0
    _known: dict[tuple[tuple[str, int], ...], tuple[Plan, int]] = field(default_factory=dict)

    def cycles(self, plan: Plan) -> int:
        """Cycles of all launches with a plan, their overhead included."""
        total = 0
        for state, count in self.states.items():
            gm = restated(state, self.args, self.default, plan)
            result = time_launch(self.chip, self.kernel, self.args, plan, gm, coupled=False)
            self.simulated += 1
            total += count * (result.cycles + launch_cycles(self.chip, plan))
        return total

    def best(self, tilings: Sequence[Tiling]) -> tuple[Plan, int] | None:
        """The fastest of some tilings with its cycles; None of none."""
        found = [self._of(tiling) for tiling in tilings]
        return min(found, key=lambda x: x[1], default=None)

    def _of(self, tiling: Tiling) -> tuple[Plan, int]:
        key = tuple(sorted(tiling.items()))
        if key not in self._known:
            plan = get_kernel(self.kernel).plan(self.args, self.chip, tiling)
            self._known[key] = (plan, self.cycles(plan))
        return self._known[key]


def choose(
    chip: ChipSpec, kernel: str, args: KernelArgs, default: Plan, states: Mapping[GmState, int]
) -> Choice:
    """The fastest plan of a launch: never slower than the compiler's, as simulated.

    Args:
        states: what the compiler's plan finds in memory → in how many launches.
    """
    trials = Trials(chip, kernel, args, default, states)
    before = trials.cycles(default)
    plan, cores, after = default, 0, before
    for count in core_counts(chip):
        found = trials.best(ranked_tilings(kernel, args, chip, count)[:FIRST_LOOK])
        if found is not None and found[1] < after:
            plan, cores, after = found[0], count, found[1]
        elif count < chip.cores.count and (found is None or found[1] > after * WORTH_GOING_ON):
            break
    preferred = cores or chip.cores.count
    found = trials.best(ranked_tilings(kernel, args, chip, preferred)[:BEST_FEW])
    if found is not None and found[1] < after:
        plan, cores, after = found[0], preferred, found[1]
    return Choice(plan, cores, before, after, trials.simulated)
