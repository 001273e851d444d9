"""Replay of a recorded profile: every row's kernel timed on a chip, beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil

from npusim.chip.spec import ChipSpec
from npusim.errors import KernelError, NpusimError, UnsupportedError
from npusim.explore.replay.launches import Launch, known_types, launch_of
from npusim.explore.replay.roofline import roofline_us
from npusim.explore.replay.workers import Progress, workers
from npusim.frontends.recorded import RecordedOp, RecordedTensor
from npusim.ir import DType
from npusim.machine.gm import GmState, cold, visit
from npusim.machine.l2 import L2Cache
from npusim.machine.launch import LaunchResult, time_launch
from npusim.machine.record import binding, bound_shares
from npusim.program.kernel import OperandSpec, Plan, choose_plan, get_kernel
from npusim.timeline.replayed import ReplayedOp


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
        launches = [_launch(op) for op in ops]
        wanted = list(
            dict.fromkeys(
                (launch, op.block_dim)
                for op, launch in zip(ops, launches, strict=True)
                if isinstance(launch, Launch)
            )
        )
        plans = dict(zip(wanted, each("plan", partial(_plan, chip), wanted), strict=True))
        found: list[_Timing | str] = []
        memory, net = _Memory(chip), ops[0].net if ops else ""
        for op, launch in zip(ops, launches, strict=True):
            plan = launch if isinstance(launch, str) else plans[launch, op.block_dim]
            if isinstance(launch, str) or isinstance(plan, str):
                found.append(str(plan))
                continue
            if op.net != net:
                memory, net = _Memory(chip), op.net
            gm = memory.visit(op, launch, plan) if in_sequence else cold(plan)
            found.append(_Timing(launch, op.block_dim, gm))
        todo = list(dict.fromkeys(t for t in found if isinstance(t, _Timing)))
        tasks = [(t, _planned(plans[t.launch, t.block_dim])) for t in todo]
        results = dict(zip(todo, each("time", partial(_time, chip), tasks), strict=True))
    rows = []
    for op, what in zip(ops, found, strict=True):
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


def _launch(op: RecordedOp) -> Launch | str:
    """The op's launch, or why there is none."""
    if op.core_type == "AI_CPU":
        return "runs on the AI CPU"
    if op.op_type not in known_types():
        return "unknown operator type"
    try:
        return launch_of(op)
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


def _row(op: RecordedOp, chip: ChipSpec, block_dim: int, result: LaunchResult) -> ReplayRow:
    """The row of a timed op; launch overhead counts unless the profile leaves it out."""
    overhead = 0
    if not op.core_time_only:
        overhead = chip.cycles(chip.scheduler.launch)
        overhead += ceil(chip.scheduler.per_block * chip.clock * block_dim)
    duration = overhead + result.cycles
    shares = bound_shares(chip, result, duration, overhead)
    bound = binding(shares)
    us = chip.seconds(duration) * 1e6
    return ReplayRow(op, us, "", bound, shares[bound], block_dim)


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


def time_waves(chip: ChipSpec, launch: Launch, plan: Plan, gm: GmState) -> LaunchResult:
    """Time a launch; more blocks than run at once go in waves, one after the other."""
    aiv = get_kernel(launch.kernel).core_type == "AIV"
    # 32 blocks of a cube kernel take two waves on 30 cores (dW products, filter gradients).
    cores = max(chip.vector_cores(), chip.cores.at_once or 0) if aiv else chip.cores.count
    waves = ceil(plan.block_dim / cores)
    return time_launch(chip, launch.kernel, launch.args, plan, gm, coupled=False, waves=waves)


_Kind = tuple[str, DType, tuple[int, ...]]


def _kind(spec: OperandSpec, tensors: Sequence[RecordedTensor]) -> _Kind:
    """What a tensor is known by: as the profile names it (launches may see it flat)."""
    for t in tensors:
        if t.size * spec.dtype.size == spec.nbytes:
            return t.format, spec.dtype, t.shape
    return spec.layout.value, spec.dtype, spec.shape


class _Memory:
    """L2 from row to row. Profiles keep no addresses: a tensor is known by format, type and shape.

    An input is the tensor of that kind that was used last and is not yet an operand of the
    launch; an output is new, unless the kernel works in place. A launch pays for the dirty bytes
    that it pushes out, up to what it writes: the rest leave between launches.
    """

    def __init__(self, chip: ChipSpec) -> None:
        self._l2 = L2Cache(chip.l2.size)
        self._top = 0
        self._known: dict[_Kind, list[int]] = {}  # addresses, last used last

    def visit(self, op: RecordedOp, launch: Launch, plan: Plan) -> GmState:
        """State that the launch finds, and leaves."""
        operands, inputs = launch.args.operands, len(launch.args.inputs)
        shared = dict(launch.in_place)
        ranges: dict[int, tuple[int, int]] = {}
        for i in sorted(plan.traffic):
            if i >= len(operands):
                continue  # workspace
            spec = operands[i]
            tensors = op.inputs if i < inputs else op.outputs
            known = self._known.setdefault(_kind(spec, tensors), [])
            taken = {address for address, _ in ranges.values()}
            free = [a for a in known if a not in taken]
            if i in shared:
                address = ranges[shared[i]][0]
            elif i < inputs and free:
                address = free[-1]
            else:
                address = self._top
                self._top += -(-spec.nbytes // 512) * 512
            if address in known:
                known.remove(address)
            known.append(address)
            ranges[i] = (address, spec.nbytes)
        found, most = visit(self._l2, plan, inputs, ranges), cold(plan)
        return GmState(tuple((i, min(found.share(i), most.share(i))) for i in sorted(plan.traffic)))
