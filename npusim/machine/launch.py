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
from npusim.machine.stats import CoreStats, deadlock
from npusim.program.kernel import KernelArgs, Plan, get_kernel

Engine = Literal["fast", "simpy"]


@dataclass(frozen=True)
class LaunchResult:
    """What a launch took.

    Attributes:
        cycles: of the slowest block; launch overhead is not in it.
        cores: per class of identical blocks.
        hbm_bytes, l2_bytes: moved by all blocks together.
        events: events that the engine processed (SimPy events, or scoreboard steps).
    """

    cycles: int
    cores: tuple[CoreStats, ...]
    hbm_bytes: float
    l2_bytes: int
    events: int

    @property
    def slowest(self) -> CoreStats:
        """The class that ended last."""
        return max(self.cores, key=lambda c: c.cycles)


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
            and folds; the classes of one kernel differ by a ragged tile at most.
        waves: rounds in which the blocks run one after the other; only uncoupled.
        sharing: cores that share the memory in a round (default: equal rounds); only uncoupled.

    Raises:
        DeadlockError: pipes wait for each other.
        AccountingError: an invariant failed.
    """
    state = gm if gm is not None else cold(plan)
    kernel = get_kernel(name)
    contexts, programs, weights = [], [], []
    for block, weight in plan.classes:
        k, program = kernel.launch(args, chip, plan.tiling, block, False)
        contexts.append(k)
        programs.append(program)
        weights.append(weight)
    if engine == "fast":
        fold = fold and not spans
        cores = list(zip(contexts, programs, weights, strict=True))
        weight = sharing or -(-plan.block_dim // waves)
        groups = [cores] if coupled else [[(k, p, weight)] for k, p, _ in cores]
        stats: list[CoreStats] = []
        events = 0
        for group in groups:
            board = Scoreboard(chip, state, fold, spans)
            for k, program, weight in group:
                board.add_core(k, program, weight)
            stats += board.run(name)
            events += board.events
        for s, weight in zip(stats, weights, strict=True):
            s.weight = weight
        return launch_result(name, chip, plan, state, stats, events, waves)
    env = simpy.Environment()
    shared = SharedMemory(env, chip)
    models = [
        CoreModel(env, chip, shared, program, state, weight, None, spans)
        for program, weight in zip(programs, weights, strict=True)
    ]
    events = _run(env, name, models)
    return launch_result(name, chip, plan, state, [m.stats for m in models], events)


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
    models = []
    for block in range(plan.block_dim):
        _, program = kernel.launch(args, chip, plan.tiling, block, True)
        memory = TileMemory(chip, raw)
        models.append(CoreModel(env, chip, shared, program, state, 1, memory))
    events = _run(env, name, models)
    return launch_result(name, chip, plan, state, [m.stats for m in models], events)


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
    stats: Sequence[CoreStats],
    events: int,
    waves: int = 1,
) -> LaunchResult:
    """Check a launch's accounts and sum them up; every wave takes as long as one.

    Raises:
        AccountingError: time or bytes do not close, or a rate is above its peak.
    """
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
    cycles = waves * max((s.cycles for s in stats), default=0)
    _check_peak(name, "HBM", hbm, chip.hbm_rate, cycles)
    _check_peak(name, "L2", l2, chip.l2_rate, cycles)
    return LaunchResult(cycles, tuple(stats), hbm, l2, events)


def _check_peak(name: str, what: str, nbytes: float, rate: float, cycles: int) -> None:
    if nbytes > rate * (cycles + 1):
        raise AccountingError(
            f"kernel {name}: {what} moved {nbytes:.0f} B in {cycles} cycles",
            f"at most {rate:.1f} B per cycle",
            "this is a defect of the simulator: please report it",
        )
