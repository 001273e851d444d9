"""Run one executable on a device of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from npusim.chip.reuse import Reuse
from npusim.chip.spec import ChipSpec
from npusim.machine.device import Device
from npusim.machine.entries import Observer
from npusim.machine.functional import FunctionalExecutor
from npusim.machine.host import HostPlan, HostProcess
from npusim.machine.loaded import LoadedExecutable
from npusim.machine.recorder import KeepAll, KeepTotals
from npusim.machine.tasks import Detail, Watch
from npusim.program.executable import Executable
from npusim.timeline import SimulatorSpeed, Timeline, check_timeline

Keep = Literal["full", "summary"]


@dataclass(frozen=True)
class DeviceRun:
    """A finished run: the timeline and the engine's own speed."""

    timeline: Timeline
    speed: SimulatorSpeed


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C during a run. `finished` holds what was over by then, marked as partial."""

    def __init__(self, finished: DeviceRun) -> None:
        super().__init__("interrupted")
        self.finished = finished


def run_executable(
    exe: Executable,
    chip: ChipSpec,
    executor: FunctionalExecutor | None = None,
    detail: Detail = "fast",
    trace: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
    watch: Watch | None = None,
    host: HostPlan | None = None,
    keep: Keep = "full",
    observer: Observer | None = None,
    reuse: Reuse | None = None,
) -> DeviceRun:
    """Run an executable to its end.

    Args:
        executor: computes the tasks as they complete; None for timing only.
        trace: names of tasks whose core pipes are kept as spans.
        progress: called with (done, total) after each task.
        watch: called with every kernel launch and what it finds in memory.
        host: how often the model runs, and what the host does for it (default: once, nothing).
        keep: every op, or sums only.
        observer: told of entries as they are queued and begun.
        reuse: kernels timed in runs before, on any chips; they are taken where they hold here.

    Raises:
        DeadlockError: a wait for an event that nobody records, a kernel that does not end.
        AccountingError: time or bytes do not close. RunInterrupted: Ctrl-C.
    """
    started, computed = time.perf_counter(), executor.computing_s if executor else 0.0
    plan = host or HostPlan()
    recorder = KeepAll() if keep == "full" else KeepTotals()
    total = len(exe.tasks) * plan.steps
    tell = None if progress is None else (lambda done: progress(done, total))
    device = Device(chip, recorder, detail, trace, tell, watch, observer, reuse)
    process = HostProcess(device, LoadedExecutable(exe, executor), plan, keep == "full")

    def finished(timeline: Timeline) -> DeviceRun:
        computing = executor.computing_s - computed if executor else 0.0
        wall = time.perf_counter() - started
        return DeviceRun(timeline, SimulatorSpeed(wall, device.events, computing))

    try:
        device.run(exe.name)
        if executor is not None:
            executor.catch_up()
    except KeyboardInterrupt:
        partial = replace(_timeline(device, process, plan), partial=True)
        raise RunInterrupted(finished(partial)) from None
    timeline = _timeline(device, process, plan)
    check_timeline(timeline, chip.hbm_rate, chip.l2_rate)
    return finished(timeline)


def _timeline(device: Device, process: HostProcess, plan: HostPlan) -> Timeline:
    recorder, chip, used = device.recorder, device.chip, process.use()
    ops, totals = recorder.ops(), recorder.totals()
    ends = [*(op.end for op in ops), *(t.end for t in totals), used.end if used else 0]
    return Timeline(
        chip.name, chip.clock, ops, max(ends), totals=totals, host=used, steps=plan.steps
    )
