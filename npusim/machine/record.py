"""From a launch's statistics to an `OpRecord`: bounds, roofline, pipes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor, prod

from npusim.chip.spec import ChipSpec
from npusim.machine.entries import TaskEntry
from npusim.machine.launch import LaunchResult
from npusim.machine.stats import CoreStats
from npusim.machine.stream import Stream
from npusim.program.executable import KernelCall, Task, TaskKind
from npusim.program.isa import N_PIPES, PIPE_NAMES
from npusim.program.kernel import get_kernel
from npusim.timeline import OpRecord, PipeTime

#: A transfer pipe that is busy because L2 or HBM is nearly full is bound by that memory.
SATURATED = 0.8
WALKS = "page walks"  #: stalled for: pages beyond what the TLB holds
OTHERS = "other kernels"  #: stalled for: kernels of other streams that use L2 and HBM


@dataclass(frozen=True)
class LaunchAccount:
    """What a launch's record says beside its time and place."""

    pipes: dict[str, PipeTime]
    limits: dict[str, float]
    bound: str
    roofline: int


def account(
    task: Task, chip: ChipSpec, result: LaunchResult, duration: int, launch: int
) -> LaunchAccount:
    """The pipes' times, and what bound a launch that took `duration`, `launch` of it overhead."""
    slow = result.slowest
    pipes = {PIPE_NAMES[p]: _pipe(slow, p) for p in range(N_PIPES)}
    pipes["scalar"] = _scalar(slow)
    if chip.core.fixp is None:
        del pipes["fixp"]
    limits = bound_shares(chip, result, duration, launch)
    return LaunchAccount(pipes, limits, binding(limits), roofline_cycles(chip, task, result))


def make_record(
    entry: TaskEntry,
    chip: ChipSpec,
    result: LaunchResult,
    account: LaunchAccount,
    when: tuple[int, int, int],
    stream: Stream,
    replayed: bool,
) -> OpRecord:
    """The timeline's record of one kernel launch.

    Args:
        when: start, launch overhead, end, in cycles.
    """
    task, (start, launch, end), waits = entry.task, when, stream.waits
    assert task.call is not None
    return OpRecord(
        name=task.name,
        op_type=task.op_type,
        kernel=task.call.kernel,
        core_type=_core_type(task.call, chip),
        block_dim=task.call.plan.block_dim,
        stream=stream.number,
        start=start,
        end=end,
        launch=launch,
        pipes=account.pipes,
        bytes_hbm=round(result.hbm_bytes),
        bytes_l2=result.l2_bytes,
        flops=task.flops,
        bound=account.bound,
        bound_share=account.limits[account.bound],
        roofline=account.roofline,
        limits=account.limits,
        spans=result.spans(start + launch),
        replayed=replayed,
        waited=waits.waited,
        queued=waits.queued,
        after=waits.after,
        starved=waits.starved,
        step=entry.step,
    )


@dataclass(frozen=True)
class UnitWork:
    """What a unit without pipes did: AI CPU, PCIe, SDMA, DVPP, the host.

    Attributes:
        least: cycles below which the unit cannot do it.
    """

    name: str
    op_type: str
    kernel: str
    core_type: str
    bound: str
    launch: int = 0
    bytes_hbm: int = 0
    bytes_l2: int = 0
    flops: int = 0
    least: int = 0
    step: int = 0


def unit_record(work: UnitWork, stream: Stream, start: int, end: int) -> OpRecord:
    """The timeline's record of it; the unit is its bound."""
    share = 1.0
    if work.least:
        share = min(1.0, work.least / (end - start)) if end > start else 0.0
    waits = stream.waits
    return OpRecord(
        name=work.name,
        op_type=work.op_type,
        kernel=work.kernel,
        core_type=work.core_type,
        block_dim=1,
        stream=stream.number,
        start=start,
        end=end,
        launch=work.launch,
        pipes={},
        bytes_hbm=work.bytes_hbm,
        bytes_l2=work.bytes_l2,
        flops=work.flops,
        bound=work.bound,
        bound_share=share,
        roofline=work.least,
        limits={work.bound: share},
        waited=waits.waited,
        queued=waits.queued,
        after=waits.after,
        starved=waits.starved,
        step=work.step,
    )


def stretched(result: LaunchResult, cycles: int, reason: str = OTHERS) -> LaunchResult:
    """A launch that took `cycles`, longer than alone: others used L2 and HBM beside it, or so.

    Every pipe stands still for the difference; spans keep their places in the whole.
    """
    alone = result.cycles
    if cycles <= alone:
        return result
    slow = result.slowest
    cores = replace(
        slow,
        cycles=cycles,
        stall=[{**s, reason: s.get(reason, 0) + cycles - slow.cycles} for s in slow.stall],
        scalar_stall=slow.scalar_stall,
        spans=[(p, op, a * cycles // alone, b * cycles // alone) for p, op, a, b in slow.spans],
    )
    return replace(result, cycles=cycles, cores=(cores,), mixed=False)


def _core_type(call: KernelCall, chip: ChipSpec) -> str:
    """AI_CORE on unified chips; AIC or AIV where cube and vector cores are apart."""
    return get_kernel(call.kernel).core_type if chip.cores.split else TaskKind.AI_CORE.value


def _pipe(stats: CoreStats, p: int) -> PipeTime:
    return PipeTime(stats.busy[p], stats.idle[p], dict(stats.stall[p]))


def _scalar(stats: CoreStats) -> PipeTime:
    stalls = {"queue full": stats.scalar_stall} if stats.scalar_stall else {}
    idle = stats.cycles - stats.scalar_busy - stats.scalar_stall
    return PipeTime(stats.scalar_busy, idle, stalls)


def bound_shares(
    chip: ChipSpec, result: LaunchResult, duration: int, launch: int
) -> dict[str, float]:
    """Share of the duration that each resource was in use (pipes: on the slowest cores)."""
    slow = result.slowest
    shares = {PIPE_NAMES[p]: slow.busy[p] / duration for p in range(N_PIPES)}
    shares["scalar"] = slow.scalar_busy / duration
    shares["L2"] = result.l2_bytes / chip.l2_rate / duration
    shares["HBM"] = result.hbm_bytes / chip.hbm_rate / duration
    shares["launch"] = launch / duration
    return shares


def binding(shares: dict[str, float]) -> str:
    """The resource that binds: the largest share; memory where a transfer pipe waits for it."""
    bound = max(shares, key=lambda k: shares[k])
    if bound in ("mte2", "mte3", "fixp"):
        memory = max(("HBM", "L2"), key=lambda k: shares[k])
        if shares[memory] >= SATURATED * shares[bound]:
            return memory
    return bound


def roofline_cycles(chip: ChipSpec, task: Task, result: LaunchResult) -> int:
    """Cycles that no schedule of the same work and traffic can beat.

    The largest of: MACs over the peak of the unit that does them, one pass over the outputs at
    the vector unit's widest rate, HBM bytes and L2 bytes over what the memories achieve.
    """
    assert task.call is not None
    out = sum(prod(o.shape) for o in task.call.args.outputs)
    lanes = max(chip.core.vector.lanes.values()) * chip.vector_cores()
    memory = max(result.hbm_bytes / chip.hbm_rate, result.l2_bytes / chip.l2_rate)
    if task.uses_cube:
        macs_per_cycle = chip.cube_flops(task.compute_dtype.value) / 2 / chip.clock
        return floor(max(task.macs / macs_per_cycle, memory))
    compute = out / lanes if task.flops else 0.0
    typed = chip.core.vector.lanes.get(task.compute_dtype.value, 0)
    if task.macs and typed:
        compute = max(compute, task.macs / (typed * chip.vector_cores()))
    return floor(max(compute, memory))
