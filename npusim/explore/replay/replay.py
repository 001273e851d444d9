"""Replay of a recorded profile: every row's kernel timed on a chip, beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from npusim.chip.spec import ChipSpec
from npusim.errors import NpusimError
from npusim.explore.replay.launches import Launch, launch_of
from npusim.frontends.recorded import RecordedOp
from npusim.machine.gm import GmState, cold, visit
from npusim.machine.l2 import L2Cache
from npusim.machine.launch import LaunchResult, time_launch
from npusim.machine.record import binding, bound_shares
from npusim.program.kernel import OperandSpec, Plan, choose_plan, get_kernel


@dataclass(frozen=True)
class ReplayRow:
    """One recorded operator and what npusim makes of it.

    Attributes:
        predicted_us: None where the row could not be replayed; reason says why.
        bound: what binds the predicted time; bound_share: its share.
        block_dim: blocks that the replay used.
    """

    op: RecordedOp
    predicted_us: float | None
    reason: str
    bound: str
    bound_share: float
    block_dim: int

    @property
    def measured_total(self) -> float:
        """Measured µs of all launches of the row."""
        return self.op.measured_us * self.op.count

    @property
    def predicted_total(self) -> float:
        """Predicted µs of all launches (0 when not replayed)."""
        return (self.predicted_us or 0.0) * self.op.count


@dataclass(frozen=True)
class Replay:
    """A replayed profile, rows in the profile's order."""

    chip: str
    mode: str
    rows: tuple[ReplayRow, ...]

    @property
    def covered(self) -> list[ReplayRow]:
        """Rows with a prediction."""
        return [r for r in self.rows if r.predicted_us is not None]

    @property
    def coverage(self) -> float:
        """Share of the measured time that could be replayed."""
        total = sum(r.measured_total for r in self.rows)
        return sum(r.measured_total for r in self.covered) / total if total else 1.0


def replay(
    ops: Sequence[RecordedOp],
    chip: ChipSpec,
    *,
    in_sequence: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Replay:
    """Time every recorded operator on a chip.

    Args:
        in_sequence: carry L2 from row to row (a tensor is known by its type and shape); else
            every row finds L2 cold.
        progress: called with (rows done, rows).
    """
    rows = []
    memory = _Memory(chip) if in_sequence else None
    net = None
    for i, op in enumerate(ops):
        if op.net != net and in_sequence:
            memory, net = _Memory(chip), op.net
        rows.append(_replay_row(op, chip, memory))
        if progress is not None:
            progress(i + 1, len(ops))
    return Replay(chip.name, "in sequence" if in_sequence else "isolated", tuple(rows))


def _replay_row(op: RecordedOp, chip: ChipSpec, memory: _Memory | None) -> ReplayRow:
    try:
        launch = launch_of(op)
        plan = plan_for(launch, chip, op.block_dim)
    except NpusimError as e:
        return ReplayRow(op, None, e.what, "", 0.0, op.block_dim)
    gm = cold(plan) if memory is None else memory.visit(launch, plan)
    result = time_waves(chip, launch, plan, gm)
    overhead = chip.cycles(chip.scheduler.launch)
    overhead += ceil(chip.scheduler.per_block * chip.clock * plan.block_dim)
    duration = overhead + result.cycles
    shares = bound_shares(chip, result, duration, overhead)
    bound = binding(shares)
    us = chip.seconds(duration) * 1e6
    return ReplayRow(op, us, "", bound, shares[bound], plan.block_dim)


def plan_for(launch: Launch, chip: ChipSpec, block_dim: int) -> Plan:
    """The launch's best plan on exactly the recorded number of blocks where a tiling allows it.

    Kernels split work over `cores.count` cores, so the plan is made for a chip with as many
    cores as there were blocks; 0 means that the profile does not say.
    """
    if block_dim <= 0:
        return choose_plan(launch.kernel, launch.args, chip)
    cores = chip.cores
    if get_kernel(launch.kernel).core_type == "AIV" and cores.split:
        cores = cores.model_copy(update={"vector_count": block_dim})
    else:
        cores = cores.model_copy(update={"count": block_dim})
    planning = chip.model_copy(update={"cores": cores})
    return choose_plan(launch.kernel, launch.args, planning)


def time_waves(chip: ChipSpec, launch: Launch, plan: Plan, gm: GmState) -> LaunchResult:
    """Time a launch; more blocks than cores run in waves, one after the other."""
    aiv = get_kernel(launch.kernel).core_type == "AIV"
    cores = chip.vector_cores() if aiv else chip.cores.count
    result = time_launch(chip, launch.kernel, launch.args, plan, gm, coupled=False)
    waves = ceil(plan.block_dim / cores)
    if waves == 1:
        return result
    return LaunchResult(
        result.cycles * waves, result.cores, result.hbm_bytes, result.l2_bytes, result.events
    )


class _Memory:
    """L2 from row to row. Profiles keep no addresses: a tensor is known by type and shape."""

    def __init__(self, chip: ChipSpec) -> None:
        self._l2 = L2Cache(chip.l2.size)
        self._places: dict[OperandSpec, int] = {}
        self._top = 0

    def visit(self, launch: Launch, plan: Plan) -> GmState:
        """State that the launch finds, and leaves."""
        operands = launch.args.operands
        ranges = {}
        for i in plan.traffic:
            spec = operands[i]
            if spec not in self._places:
                self._places[spec] = self._top
                self._top += -(-spec.nbytes // 512) * 512
            ranges[i] = (self._places[spec], spec.nbytes)
        return visit(self._l2, plan, len(launch.args.inputs), ranges)
