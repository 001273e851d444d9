"""Launches of more blocks than there are cores: a core takes its next block when it is free.

The scheduler hands blocks out one by one (`scheduler.per_block` each), so a short kernel's first
cores are free again before the last block is handed out, and a short last block ends early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heapreplace

from npusim.chip.spec import ChipSpec
from npusim.explore.replay.launches import Launch
from npusim.machine.gm import GmState
from npusim.machine.launch import LaunchResult, time_launch
from npusim.program.kernel import Plan, get_kernel


def time_waves(chip: ChipSpec, launch: Launch, plan: Plan, gm: GmState) -> LaunchResult:
    """Time a launch; vector kernels of more blocks than cores go core by core.

    Cube kernels go in whole waves, one after the other.
    """
    name, args, blocks = launch.kernel, launch.args, plan.block_dim
    aiv = get_kernel(name).core_type == "AIV"
    cores = chip.vector_cores() if aiv else chip.cores.count
    if blocks <= cores or not aiv:
        waves = -(-blocks // cores)
        return time_launch(chip, name, args, plan, gm, coupled=False, waves=waves)
    rest = blocks % cores or cores
    first, last = (
        time_launch(chip, name, args, plan, gm, coupled=False, waves=-(-blocks // n), sharing=n)
        for n in (cores, rest)
    )
    order = block_classes(plan)
    in_last = blocks - rest  # fewer cores share the memory from here on
    cycles = [(last if b >= in_last else first).cores[c].cycles for b, c in enumerate(order)]
    per_block = chip.scheduler.per_block * chip.clock
    end = makespan(cycles, cores, per_block)
    return replace(first, cycles=max(0, round(end - per_block * blocks)))


def block_classes(plan: Plan) -> list[int]:
    """The class of each block: representatives where they stand, the rest in order of classes."""
    found: list[int | None] = [None] * plan.block_dim
    spare: list[int] = []
    for i, (block, count) in enumerate(plan.classes):
        found[block] = i
        spare += [i] * (count - 1)
    rest = iter(spare)
    return [next(rest) if c is None else c for c in found]


def makespan(cycles: Sequence[int], cores: int, per_block: float) -> float:
    """Cycles until the last of the blocks ends, `per_block` cycles between hand-outs."""
    free = [0.0] * cores
    heapify(free)
    end = handed = 0.0
    for block in cycles:
        handed = max(handed + per_block, free[0])
        heapreplace(free, handed + block)
        end = max(end, handed + block)
    return end
