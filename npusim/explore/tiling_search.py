"""`--opt-level O3`: better tilings for a compiled model, by simulating the promising ones.

The compiler takes the tiling with the smallest estimate; here the machine times the best few. All
launches of a kernel with the same arguments get one tiling, as a compiled operator has one. The
operators, and so the results, stay the same.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from npusim.chip.spec import ChipSpec
from npusim.explore.tiling_cache import Entry, TilingCache, key_of
from npusim.explore.tiling_candidates import Choice, choose, ranked_tilings
from npusim.explore.user_cache import user_cache_dir
from npusim.machine.gm import GmState
from npusim.machine.run import run_executable
from npusim.program.executable import Executable, KernelCall, Task
from npusim.program.kernel import KernelArgs, Plan, get_kernel
from npusim.timeline.tiled import TiledKernel, TilingGain

Progress = Callable[[str, int, int], None]  #: stage, done, total

_Launch = tuple[str, KernelArgs]


@dataclass(frozen=True)
class TilingSearch:
    """A model with the tilings found, and what they gain."""

    executable: Executable
    gain: TilingGain


def search_tilings(
    exe: Executable, chip: ChipSpec, *, cache: Path | None = None, progress: Progress | None = None
) -> TilingSearch:
    """Time the promising tilings of every kernel in the state in which the model launches it.

    The executable given stays as it is. Where the whole run is not faster, its plans are kept.

    Args:
        cache: folder of what was found before (default: the user's cache folder).
        progress: called with ("tilings", kernels done, kernels).
    """
    started = time.perf_counter()
    store = TilingCache(cache if cache is not None else user_cache_dir("tilings"))
    launches = _Launches()
    before = run_executable(exe, chip, watch=launches.saw).timeline.total_cycles
    choices: dict[_Launch, tuple[Choice, bool]] = {}
    for done, (key, states) in enumerate(launches.states.items()):
        if progress is not None:
            progress("tilings", done, len(launches.states))
        choices[key] = _chosen(chip, key, launches.plans[key], states, store)
    if progress is not None:
        progress("tilings", len(choices), len(launches.states))
    plans = {key: choice.plan for key, (choice, _) in choices.items()}
    better = replace(exe, tasks=[_with_plan(task, plans) for task in exe.tasks])
    after = run_executable(better, chip).timeline.total_cycles
    kernels = tuple(
        _report(key, choice, launches.plans[key], launches.states[key].total(), cached)
        for key, (choice, cached) in choices.items()
    )
    notes = [store.failure] if store.failure else []
    if after > before:
        # What a kernel leaves in L2 for the next one is in no kernel's own time.
        notes.append("the tilings found make kernels faster, but not the run: not taken")
        better, after = exe, before
    seconds = time.perf_counter() - started
    gain = TilingGain(chip.name, chip.clock, kernels, before, after, seconds, tuple(notes))
    return TilingSearch(better, gain)


class _Launches:
    """The distinct launches of a run, their plans, and what they find in memory how often."""

    def __init__(self) -> None:
        self.plans: dict[_Launch, Plan] = {}
        self.states: dict[_Launch, Counter[GmState]] = {}

    def saw(self, call: KernelCall, state: GmState) -> None:
        key = (call.kernel, call.args)
        self.plans.setdefault(key, call.plan)
        self.states.setdefault(key, Counter())[state] += 1


def _chosen(
    chip: ChipSpec, launch: _Launch, default: Plan, states: Counter[GmState], store: TilingCache
) -> tuple[Choice, bool]:
    """The plan of a launch, and whether it was found on disk."""
    kernel, args = launch
    key = key_of(chip, kernel, args, default, states)
    entry = store.get(key)
    if entry is not None and _legal(chip, launch, default, entry):
        plan = get_kernel(kernel).plan(args, chip, entry.tiling) if entry.cores else default
        return Choice(plan, entry.cores, entry.before, entry.after, entry.simulated), True
    found = choose(chip, kernel, args, default, states)
    store.put(
        key, Entry(found.plan.tiling, found.cores, found.before, found.after, found.simulated)
    )
    return found, False


def _legal(chip: ChipSpec, launch: _Launch, default: Plan, entry: Entry) -> bool:
    """Whether the kernel offers the tiling: a file may hold anything."""
    if not entry.cores:
        return entry.tiling == default.tiling
    if not 0 < entry.cores <= chip.cores.count:
        return False
    kernel, args = launch
    return entry.tiling in ranked_tilings(kernel, args, chip, entry.cores)


def _with_plan(task: Task, plans: dict[_Launch, Plan]) -> Task:
    if task.call is None:
        return task
    plan = plans[task.call.kernel, task.call.args]
    return replace(task, call=replace(task.call, plan=plan))


def _report(
    launch: _Launch, choice: Choice, default: Plan, launches: int, cached: bool
) -> TiledKernel:
    kernel, args = launch
    shapes = " ".join("×".join(map(str, o.shape)) or "1" for o in args.operands if o is not None)
    return TiledKernel(
        kernel, args.op_type, shapes, launches, choice.before, choice.after,
        default.block_dim, choice.plan.block_dim, choice.simulated, cached,
    )  # fmt: skip
