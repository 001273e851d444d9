"""Replay of a recorded profile: every row's kernel timed on a chip, beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil

from npusim.chip.spec import ChipSpec
from npusim.errors import KernelError, NpusimError, UnsupportedError
from npusim.explore.replay.launches import Launch, builder_of, launch_of, on_chip
from npusim.explore.replay.residency import Memory, in_turn
from npusim.explore.replay.roofline import roofline_us
from npusim.explore.replay.waves import time_waves
from npusim.explore.replay.workers import Progress, workers
from npusim.frontends.recorded import RecordedOp
from npusim.machine.gm import GmState, cold, hot
from npusim.machine.launch import LaunchResult
from npusim.machine.record import binding, bound_shares
from npusim.program.executable import TaskKind
from npusim.program.kernel import Plan, choose_plan, get_kernel
from npusim.timeline.replayed import ReplayedOp


@dataclass(frozen=True)
class ReplayRow:
    """One recorded operator and what npusim makes of it.

    Attributes:
        predicted_us: None where the row could not be replayed; reason says why.
        bound: what binds the predicted time; bound_share: its share.
        block_dim: blocks that were handed out, those without work included.
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


#: Seconds that a call adds to its kernel where a source timed calls in a loop: 1024³ in fp16 takes
#: 21.9 µs a call of torch.matmul and 15.65 µs as a kernel (910B2).
CALL = 6e-6


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

    def plain(self, chip: ChipSpec) -> list[ReplayedOp]:
        """The rows as plain data for reports, each with its plain roofline on the chip."""
        return [
            ReplayedOp(
                net=r.op.net,
                name=r.op.name,
                op_type=r.op.op_type,
                count=r.op.count,
                measured_us=r.op.measured_us,
                predicted_us=r.predicted_us,
                reason=r.reason,
                bound=r.bound,
                bound_share=r.bound_share,
                block_dim=r.block_dim,
                roofline_us=roofline_us(r.op, chip),
                shapes=r.op.shapes,
                source=r.op.source,
            )
            for r in self.rows
        ]


def replay(
    ops: Sequence[RecordedOp],
    chip: ChipSpec,
    *,
    in_sequence: bool = True,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Replay:
    """Time every recorded operator on a chip. Equal launches are planned and timed once.

    Args:
        in_sequence: carry L2 from row to row of a net (a tensor is known by its type and shape);
            else every row finds L2 cold.
        jobs: processes that share the work; the result does not depend on it.
        progress: called with (stage, done, all of it).
    """
    mode = "in sequence" if in_sequence else "isolated"
    with workers(jobs, progress) as each:
        launches = [_launch(op, chip) for op in ops]
        wanted = list(
            dict.fromkeys(
                (launch, op.block_dim)
                for op, launch in zip(ops, launches, strict=True)
                if isinstance(launch, Launch)
            )
        )
        plans = dict(zip(wanted, each("plan", partial(_plan, chip), wanted), strict=True))
        found: list[_Timing | str] = []
        memory, net = Memory(chip), ops[0].net if ops else ""
        turns = in_turn(ops, chip.l2.size)
        for op, launch, turn in zip(ops, launches, turns, strict=True):
            plan = launch if isinstance(launch, str) else plans[launch, op.block_dim]
            if op.net != net:
                memory, net = Memory(chip), op.net
            if isinstance(launch, str) or isinstance(plan, str):
                found.append(str(plan))
                memory.pass_by(op)
                continue
            gm = memory.visit(op, launch, plan, turn) if in_sequence else cold(plan)
            if op.repeated and sum(t.unique for t in plan.traffic.values()) <= chip.l2.size:
                gm = hot(plan)
            found.append(_Timing(launch, op.block_dim, gm))
        todo = list(dict.fromkeys(t for t in found if isinstance(t, _Timing)))
        tasks = [(t, _planned(plans[t.launch, t.block_dim])) for t in todo]
        results = dict(zip(todo, each("time", partial(_time, chip), tasks), strict=True))
    rows = []
    for op, what in zip(ops, found, strict=True):
        if op.core_type == TaskKind.AI_CPU.value:
            rows.append(_on_ai_cpu(op, chip))
            continue
        done = what if isinstance(what, str) else results[what]
        if isinstance(what, str) or isinstance(done, str):
            rows.append(ReplayRow(op, None, str(done), "", 0.0, op.block_dim))
        else:
            plan = _planned(plans[what.launch, what.block_dim])
            rows.append(_row(op, chip, plan.block_dim, done))
    return Replay(chip.name, mode, tuple(rows))


@dataclass(frozen=True)
class _Timing:
    """A launch to time: on how many recorded blocks, and what it finds in L2."""

    launch: Launch
    block_dim: int
    gm: GmState


def _launch(op: RecordedOp, chip: ChipSpec) -> Launch | str:
    """The op's launch on the chip, or why there is none."""
    if op.core_type == TaskKind.AI_CPU.value:
        return "runs on the AI CPU"
    if builder_of(op.op_type) is None:
        return "unknown operator type"
    try:
        return on_chip(launch_of(op), chip)
    except UnsupportedError as e:
        return e.what


def _plan(chip: ChipSpec, wanted: tuple[Launch, int]) -> Plan | str:
    """The launch's plan on a number of blocks, or why there is none."""
    try:
        return plan_for(wanted[0], chip, wanted[1])
    except NpusimError as e:
        return e.what


def _planned(plan: Plan | str) -> Plan:
    assert isinstance(plan, Plan)
    return plan


def _time(chip: ChipSpec, task: tuple[_Timing, Plan]) -> LaunchResult | str:
    """The launch's time, or which rule of the machine (a buffer's size, a limit) forbids it."""
    timing, plan = task
    try:
        return time_waves(chip, timing.launch, plan, timing.gm)
    except KernelError as e:
        return e.what


def _on_ai_cpu(op: RecordedOp, chip: ChipSpec) -> ReplayRow:
    """An AI CPU row, of any operator type: its launch, and its operands at the AI CPU's rate."""
    nbytes = sum(t.nbytes for t in (*op.inputs, *op.outputs))
    duration = sum(chip.ai_cpu_cycles(nbytes))
    return ReplayRow(op, chip.seconds(duration) * 1e6, "", "aicpu", 1.0, op.block_dim)


def _row(op: RecordedOp, chip: ChipSpec, block_dim: int, result: LaunchResult) -> ReplayRow:
    """The row of a timed op; launch overhead counts unless the profile leaves it out.

    All blocks that were launched count, also those with nothing to do.
    """
    overhead, launched = 0, max(block_dim, op.block_dim)
    if not op.core_time_only:
        overhead = chip.cycles(chip.scheduler.launch)
        overhead += ceil(chip.scheduler.per_block * chip.clock * launched)
    if op.call_time:
        overhead += chip.cycles(CALL)
    duration = overhead + result.cycles
    shares = bound_shares(chip, result, duration, overhead)
    bound = binding(shares)
    us = chip.seconds(duration) * 1e6
    return ReplayRow(op, us, "", bound, shares[bound], launched)


def plan_for(launch: Launch, chip: ChipSpec, block_dim: int) -> Plan:
    """The launch's best plan on exactly the recorded number of blocks where a tiling allows it.

    Kernels split work over `cores.count` cores, so the plan is made for a chip with as many
    cores as there were blocks; 0 means that the profile does not say.
    """
    if block_dim <= 0:
        return choose_plan(launch.kernel, launch.args, chip)
    definition = get_kernel(launch.kernel)
    cores = chip.cores
    if definition.core_type == "AIV" and cores.split:
        cores = cores.model_copy(update={"vector_count": block_dim})
    else:
        cores = cores.model_copy(update={"count": block_dim})
    planning = chip.model_copy(update={"cores": cores})
    return choose_plan(launch.kernel, launch.args, planning)
