"""Simulate one kernel launch by itself: all classes of blocks, sharing L2 and HBM.

Two engines give the same cycles: `simpy`, the reference (one process per pipe), and `fast`, a
next-free-time scoreboard that needs events only for GM transfers and folds steady loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import simpy

from npusim.chip.spec import ChipSpec
from npusim.errors import AccountingError
from npusim.machine.core import CoreModel, SharedMemory, TileMemory
from npusim.machine.gm import GmState, cold
from npusim.machine.scoreboard import Scoreboard
from npusim.machine.stats import CoreStats, busiest, deadlock
from npusim.program.isa import PIPE_NAMES
from npusim.program.kernel import KernelArgs, Member, Plan, get_kernel
from npusim.timeline import Span

Engine = Literal["fast", "simpy"]


@dataclass(frozen=True)
class LaunchResult:
    """What a launch took.

    Attributes:
        cycles: of the slowest block; launch overhead is not in it.
        cores: per class of identical blocks.
        hbm_bytes, l2_bytes: moved by all blocks together.
        events: events that the engine processed (SimPy events, or scoreboard steps).
        mixed: the cores work on different parts of a block, or one after the other.
    """

    cycles: int
    cores: tuple[CoreStats, ...]
    hbm_bytes: float
    l2_bytes: int
    events: int
    mixed: bool = False

    @property
    def slowest(self) -> CoreStats:
        """The class that ended last; of a mixed launch every pipe where it was busiest."""
        if self.mixed:
            return busiest(self.cores, self.cycles)
        return max(self.cores, key=lambda c: c.cycles)

    def spans(self, start: int = 0) -> tuple[Span, ...]:
        """Intervals of the slowest class, when they were asked for; it begins at `start`."""
        spans = self.slowest.spans
        return tuple(Span(PIPE_NAMES[p], op, start + a, start + b) for p, op, a, b in spans)


def time_launch(
    chip: ChipSpec,
    name: str,
    args: KernelArgs,
    plan: Plan,
    gm: GmState | None = None,
    engine: Engine = "fast",
    fold: bool = True,
    spans: bool = False,
    coupled: bool = True,
    waves: int = 1,
    sharing: int | None = None,
) -> LaunchResult:
    """Time a launch; nothing is computed.

    Args:
        gm: what is in L2; default: nothing (cold).
        fold: let the fast engine skip repetitions of steady loops (never changes a cycle).
        spans: keep every instruction's interval (for traces; turns folding off).
        coupled: simulate unequal classes of blocks together. False lets each class see the
            memory as if all cores were like it: quicker, since a class alone repeats itself
            and folds; the classes of one kernel differ by a ragged tile at most. MIX kernels,
            which live on L2, are coupled always.
        waves: rounds in which the blocks run one after the other; only uncoupled.
        sharing: cores that share the memory in a round (default: equal rounds); only uncoupled.

    Raises:
        DeadlockError: pipes wait for each other.
        AccountingError: an invariant failed.
    """
    state = gm if gm is not None else cold(plan)
    kernel = get_kernel(name)
    coupled = coupled or (kernel.core_type == "MIX" and chip.cores.split)
    phases, events = [], 0
    for phase in range(plan.phases):
        blocks = [
            (kernel.members(args, chip, plan, block, phase, False), weight)
            for block, weight in plan.classes
        ]
        if engine == "simpy":
            env = simpy.Environment()
            cores = start_blocks(env, chip, SharedMemory(env, chip), state, blocks, spans)
            events += _run(env, name, cores)
            phases.append([m.stats for m in cores])
            continue
        stats: list[CoreStats] = []
        alone = sharing or -(-plan.block_dim // waves)
        groups = [blocks] if coupled else [[(members, alone)] for members, _ in blocks]
        for group in groups:
            board = Scoreboard(chip, state, fold and not spans, spans)
            for members, weight in group:
                board.add_block(members, weight)
            stats += board.run(name)
            events += board.events
        counts = [weight * m.count for members, weight in blocks for m in members]
        for s, count in zip(stats, counts, strict=True):
            s.weight = count
        phases.append(stats)
    return launch_result(name, chip, plan, state, phases, events, waves)


def start_blocks(
    env: simpy.Environment,
    chip: ChipSpec,
    shared: SharedMemory,
    gm: GmState,
    blocks: Sequence[tuple[Sequence[Member], int]],
    spans: bool = False,
    operands: list[np.ndarray | None] | None = None,
) -> list[CoreModel]:
    """SimPy cores of (members, how many such blocks), started; with bytes where operands are."""
    cores = []
    for members, weight in blocks:
        block = [
            CoreModel(
                env, chip, shared, m.program, gm, weight * m.count,
                None if operands is None else TileMemory(chip, operands), spans,
            )
            for m in members
        ]  # fmt: skip
        for core in block:
            core.join(block)
        cores += block
    return cores


def run_tile_level(
    chip: ChipSpec,
    name: str,
    args: KernelArgs,
    plan: Plan,
    operands: Sequence[np.ndarray | None],
    gm: GmState | None = None,
) -> LaunchResult:
    """Execute every instruction of every block on real bytes, in simulated time order.

    Args:
        operands: storage arrays, inputs then outputs; outputs are written in place.
    """
    state = gm if gm is not None else cold(plan)
    kernel = get_kernel(name)
    env = simpy.Environment()
    shared = SharedMemory(env, chip)
    raw = [None if a is None else _as_bytes(a) for a in operands]
    raw += [np.full(n, 0xFF, np.uint8) for n in plan.workspace]
    phases, events = [], 0
    for phase in range(plan.phases):
        blocks = [
            (kernel.members(args, chip, plan, block, phase, True), 1)
            for block in range(plan.block_dim)
        ]
        cores = start_blocks(env, chip, shared, state, blocks, False, raw)
        events += _run(env, name, cores)
        phases.append([m.stats for m in cores])
    return launch_result(name, chip, plan, state, phases, events)


def _as_bytes(a: np.ndarray) -> np.ndarray:
    assert a.flags.c_contiguous, "operands are dense storage arrays"
    return a.reshape(-1).view(np.uint8)


def _run(env: simpy.Environment, name: str, models: list[CoreModel]) -> int:
    """Run to the end; count events; explain a deadlock."""
    events = 0
    while env.peek() != float("inf"):
        env.step()
        events += 1
    stuck = [
        f"core class {i}: {line}"
        for i, m in enumerate(models)
        if m.done.is_alive
        for line in (m.blocked() or ["the scalar unit waits for a queue slot"])
    ]
    if stuck:
        raise deadlock(name, stuck)
    return events


def launch_result(
    name: str,
    chip: ChipSpec,
    plan: Plan,
    state: GmState,
    phases: Sequence[Sequence[CoreStats]],
    events: int,
    waves: int = 1,
) -> LaunchResult:
    """Check a launch's accounts and sum them up; every wave takes as long as one.

    `phases`: the cores' statistics, phase by phase.

    Raises:
        AccountingError: time or bytes do not close, or a rate is above its peak.
    """
    stats = [s for phase in phases for s in phase]
    for s in stats:
        s.check(name)
    moved: dict[int, int] = {}
    for s in stats:
        for operand, n in s.moved.items():
            moved[operand] = moved.get(operand, 0) + n * s.weight
    for operand, traffic in plan.traffic.items():
        if moved.get(operand, 0) != traffic.total:
            raise AccountingError(
                f"kernel {name}: operand {operand} moved {moved.get(operand, 0)} B, "
                f"its plan states {traffic.total} B",
                "plan.traffic = bytes that the body moves",
                "correct the kernel's plan()",
            )
    unplanned = sorted(set(moved) - set(plan.traffic))
    if unplanned:
        raise AccountingError(
            f"kernel {name} moves operands outside its plan: {unplanned}",
            "every operand moved is in plan.traffic",
            "correct the kernel's plan()",
        )
    hbm = sum(state.share(o) * n for o, n in moved.items())
    l2 = sum(moved.values())
    cycles = waves * sum(max((s.cycles for s in phase), default=0) for phase in phases)
    _check_peak(name, "HBM", hbm, chip.hbm_rate, cycles)
    _check_peak(name, "L2", l2, chip.l2_rate, cycles)
    mixed = plan.phases > 1 or (get_kernel(name).core_type == "MIX" and chip.cores.split)
    return LaunchResult(cycles, tuple(stats), hbm, l2, events, mixed)


def _check_peak(name: str, what: str, nbytes: float, rate: float, cycles: int) -> None:
    if nbytes > rate * (cycles + 1):
        raise AccountingError(
            f"kernel {name}: {what} moved {nbytes:.0f} B in {cycles} cycles",
            f"at most {rate:.1f} B per cycle",
            "this is a defect of the simulator: please report it",
        )
