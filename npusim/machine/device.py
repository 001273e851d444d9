"""The device: streams of tasks, the task scheduler, L2 state between kernels, HBM.

Each stream is a SimPy process that runs its tasks in order: gap, launch overhead, blocks. In
*fast* detail a kernel's blocks are timed once per distinct launch (kernel, arguments, plan, L2
state of its operands) and replayed after that; in *full* detail every launch is simulated in
place by the SimPy cores, in the device's own environment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

import simpy

from npusim.chip.spec import ChipSpec
from npusim.machine.core import SharedMemory
from npusim.machine.functional import FunctionalExecutor
from npusim.machine.gm import GmState, visit
from npusim.machine.l2 import L2Cache
from npusim.machine.launch import LaunchResult, launch_result, start_blocks, time_launch
from npusim.machine.record import make_record
from npusim.machine.stats import deadlock
from npusim.program.executable import Executable, KernelCall, Task, TaskKind
from npusim.program.kernel import get_kernel
from npusim.timeline import OpRecord, SimulatorSpeed, Timeline, check_timeline

Detail = Literal["fast", "full"]
Process = Generator[simpy.Event, Any, None]


@dataclass(frozen=True)
class DeviceRun:
    """A finished run: the timeline and the engine's own speed."""

    timeline: Timeline
    speed: SimulatorSpeed


class Device:
    """Runs an Executable once. Use: construct, then `run`.

    Args:
        executor: computes the tasks as they complete; None for timing only.
        trace: names of tasks whose core pipes are kept as spans ("slowest" keeps none here).
        progress: called with (done, total) after each task.
        watch: called with every kernel launch and what it finds in memory.
    """

    def __init__(
        self,
        exe: Executable,
        chip: ChipSpec,
        executor: FunctionalExecutor | None = None,
        detail: Detail = "fast",
        trace: Sequence[str] = (),
        progress: Callable[[int, int], None] | None = None,
        watch: Callable[[KernelCall, GmState], None] | None = None,
    ) -> None:
        self._exe, self._chip, self._executor = exe, chip, executor
        self._detail, self._trace, self._progress = detail, set(trace), progress
        self._watch = watch
        self._env = simpy.Environment()
        self._shared = SharedMemory(self._env, chip)
        self._l2 = L2Cache(chip.l2.size)
        self._profiles: dict[tuple[object, ...], LaunchResult] = {}
        self._records: list[OpRecord] = []
        self._events = 0
        self._launch = chip.cycles(chip.scheduler.launch)
        self._per_block = chip.scheduler.per_block * chip.clock
        self._gap = chip.cycles(chip.scheduler.gap)

    def run(self) -> DeviceRun:
        """Run all streams to their end.

        Raises:
            DeadlockError, AccountingError: see `launch`.
        """
        started = time.perf_counter()
        streams: dict[int, list[Task]] = {}
        for task in self._exe.tasks:
            streams.setdefault(task.stream, []).append(task)
        for tasks in streams.values():
            self._env.process(self._stream(tasks))
        while self._env.peek() != float("inf"):
            self._env.step()
            self._events += 1
        if len(self._records) != len(self._exe.tasks):
            done = {r.name for r in self._records}
            stuck = [t.name for t in self._exe.tasks if t.name not in done]
            raise deadlock(stuck[0], [f"task {n} did not finish" for n in stuck])
        records = tuple(sorted(self._records, key=lambda r: (r.start, r.stream)))
        total = max((r.end for r in records), default=0)
        timeline = check_timeline(Timeline(self._chip.name, self._chip.clock, records, total))
        wall = time.perf_counter() - started
        return DeviceRun(timeline, SimulatorSpeed(wall, self._events))

    def _stream(self, tasks: list[Task]) -> Process:
        for i, task in enumerate(tasks):
            if i:
                yield self._env.timeout(self._gap)
            start = int(self._env.now)
            if task.call is None:
                yield from self._ai_cpu(task, start)
            else:
                yield from self._ai_core(task, task.call, start)
            if self._executor is not None:
                self._executor.execute(task)
            if self._progress is not None:
                self._progress(len(self._records), len(self._exe.tasks))

    # -- AI Core -----------------------------------------------------------------------------

    def _ai_core(self, task: Task, call: KernelCall, start: int) -> Process:
        launch = self._launch + ceil(self._per_block * call.plan.block_dim)
        yield self._env.timeout(launch)
        gm = self._memory_state(task, call)
        if self._watch is not None:
            self._watch(call, gm)
        keep = task.name in self._trace
        if self._detail == "full":
            result, replayed = (yield from self._in_place(task, call, gm, keep)), False
        else:
            result, replayed = self._profile(call, gm, keep)
            yield self._env.timeout(result.cycles)
        end = int(self._env.now)
        self._records.append(
            make_record(task, call, self._chip, result, start, end, launch, replayed)
        )

    def _profile(self, call: KernelCall, gm: GmState, keep: bool) -> tuple[LaunchResult, bool]:
        """The launch's timing, simulated at its first occurrence."""
        key = (call.kernel, call.args, call.plan.block_dim, tuple(call.plan.tiling.items()), gm)
        found = self._profiles.get(key)
        if found is not None and not keep:
            return found, True
        result = time_launch(
            self._chip, call.kernel, call.args, call.plan, gm, coupled=False, spans=keep
        )
        if not keep:  # spans belong to the task that asked for them
            self._profiles[key] = result
        self._events += result.events
        return result, False

    def _in_place(
        self, task: Task, call: KernelCall, gm: GmState, keep: bool
    ) -> Generator[simpy.Event, Any, LaunchResult]:
        kernel, plan = get_kernel(call.kernel), call.plan
        phases = []
        for phase in range(plan.phases):
            blocks = [
                (kernel.members(call.args, self._chip, plan, block, phase, False), weight)
                for block, weight in plan.classes
            ]
            models = start_blocks(self._env, self._chip, self._shared, gm, blocks, keep)
            for model in models:
                yield model.done
            phases.append([m.stats for m in models])
        return launch_result(call.kernel, self._chip, plan, gm, phases, 0)

    def _memory_state(self, task: Task, call: KernelCall) -> GmState:
        """HBM share of every operand, by what is in L2 at the planned addresses."""
        names = (*task.inputs, *task.outputs)
        own = [i for i in call.plan.traffic if i < len(names)]  # not workspace
        buffers = {i: self._exe.buffers[names[i]] for i in own}
        ranges = {i: (b.address, b.nbytes) for i, b in buffers.items()}
        return visit(self._l2, call.plan, len(task.inputs), ranges)

    # -- AI CPU ------------------------------------------------------------------------------

    def _ai_cpu(self, task: Task, start: int) -> Process:
        """Launch cost plus bytes over the AI CPU's rate; results pass through L2."""
        buffers = [self._exe.buffers[n] for n in (*task.inputs, *task.outputs) if n]
        nbytes = sum(b.nbytes for b in buffers)
        launch = self._chip.cycles(self._chip.aicpu.launch)
        body = self._chip.cycles(nbytes / self._chip.aicpu.rate)
        ends: dict[int, int] = {}
        for b in buffers:
            ends[b.address] = max(b.address + b.nbytes, ends.get(b.address, 0))
        touched = self._l2.touch(list(ends.items()))
        made = {self._exe.buffers[n].address for n in task.outputs}
        came = sum(touched.missing)
        leaving = touched.evicted / came if came else 0.0
        parts = zip(ends, touched.missing, strict=True)
        hbm = sum(n * (leaving if address in made else 1.0) for address, n in parts)
        yield self._env.timeout(launch + body)
        end = int(self._env.now)
        self._records.append(
            OpRecord(
                task.name,
                task.op_type,
                "AICPU",
                TaskKind.AI_CPU.value,
                1,
                task.stream,
                start,
                end,
                launch,
                {},
                round(hbm),
                nbytes,
                task.flops,
                "aicpu",
                1.0,
                0,
                {"aicpu": 1.0},
            )
        )
