"""The device: streams of tasks, the task scheduler, L2 state between kernels, HBM.

Each stream is a SimPy process that runs its tasks in order: gap, events waited for, cores, launch
overhead, blocks, event recorded. In *fast* detail a kernel's blocks are timed once per distinct
launch (kernel, arguments, plan, L2 state of its operands) and replayed after that; in *full*
detail every launch is simulated in place by the SimPy cores, in the device's own environment.
What kernels of several streams share, and how, is in `sharing`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal

import simpy

from npusim.chip.spec import ChipSpec
from npusim.errors import DeadlockError
from npusim.machine.core import SharedMemory
from npusim.machine.functional import FunctionalExecutor
from npusim.machine.gm import GmState, visit
from npusim.machine.l2 import L2Cache
from npusim.machine.launch import LaunchResult, launch_result, start_blocks, time_launch
from npusim.machine.record import make_record, stretched
from npusim.machine.sharing import CorePools, KernelServer
from npusim.program.cores import cores_held
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
        self._kernels = KernelServer(self._env, chip)
        self._cores = CorePools(self._env, chip)
        self._blocks = simpy.Resource(self._env)  # hands out blocks, one at a time
        self._l2 = L2Cache(chip.l2.size)
        self._profiles: dict[tuple[object, ...], LaunchResult] = {}
        self._records: list[OpRecord] = []
        self._makers = {t.records: t.name for t in exe.tasks if t.records is not None}
        self._parallel = len({t.stream for t in exe.tasks}) > 1
        self._recorded: dict[int, simpy.Event] = {}
        self._at: dict[int, tuple[Task, int | None]] = {}  # stream → task, event it waits for
        self._events = 0
        self._launch = chip.cycles(chip.scheduler.launch)
        self._per_block = chip.scheduler.per_block * chip.clock
        self._gap = chip.cycles(chip.scheduler.gap)
        self._event_cost = chip.cycles(chip.scheduler.event)

    def run(self) -> DeviceRun:
        """Run all streams to their end.

        Raises:
            DeadlockError, AccountingError: see `launch`; a wait for an event that nobody records.
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
            raise self._deadlock()
        records = tuple(sorted(self._records, key=lambda r: (r.start, r.stream)))
        total = max((r.end for r in records), default=0)
        timeline = Timeline(self._chip.name, self._chip.clock, records, total)
        check_timeline(timeline, self._chip.hbm_rate, self._chip.l2_rate)
        wall = time.perf_counter() - started
        return DeviceRun(timeline, SimulatorSpeed(wall, self._events))

    def _deadlock(self) -> DeadlockError:
        """Which streams stand still, and for what: first those inside a kernel."""
        stuck = []
        for stream, (task, event) in sorted(self._at.items(), key=lambda x: x[1][1] is not None):
            where = f"task {task.name!r} on stream {stream}"
            if event is None:
                stuck.append(f"{where} does not end")
            elif event in self._makers:
                maker = self._makers[event]
                stuck.append(f"{where} waits for event {event}, {maker!r} has not recorded it")
            else:
                stuck.append(f"{where} waits for event {event}, no task records it")
        return DeadlockError(
            f"{self._exe.name} cannot progress: " + "; ".join(stuck[:8]),
            "every event that is waited for is recorded by a task that can run; kernels that end",
            "check the events of the executable's tasks, then the flags of the kernel",
        )

    def _event(self, number: int) -> simpy.Event:
        return self._recorded.setdefault(number, self._env.event())

    def _stream(self, tasks: list[Task]) -> Process:
        for i, task in enumerate(tasks):
            if i:
                yield self._env.timeout(self._gap)
            ready = int(self._env.now)
            for event in task.waits:
                self._at[task.stream] = (task, event)
                yield self._event(event)
                yield self._env.timeout(self._event_cost)
            self._at[task.stream] = (task, None)
            waited = int(self._env.now) - ready
            call = task.call
            if call is None:
                cores, launch = {"AI_CPU": 1}, 0
            else:
                cores, launch = cores_held(call.kernel, call.plan, self._chip), self._launch
            yield self._env.timeout(launch)  # needs no cores yet
            yield self._cores.take(cores)
            start = int(self._env.now) - launch
            seen = self._executor.look(task) if self._executor and self._parallel else None
            if call is None:
                record = yield from self._ai_cpu(task, start)
            else:
                record = yield from self._ai_core(task, call, start, max(cores.values()))
            self._cores.give(cores)
            self._records.append(self._with_waits(record, task, waited, start - ready - waited))
            if self._executor is not None:
                self._executor.execute(task, seen)
            if self._progress is not None:
                self._progress(len(self._records), len(self._exe.tasks))
            del self._at[task.stream]
            if task.records is not None:
                yield self._env.timeout(self._event_cost)
                self._event(task.records).succeed()

    def _with_waits(self, record: OpRecord, task: Task, waited: int, queued: int) -> OpRecord:
        if not task.waits and not queued:
            return record
        after = tuple(self._makers[event] for event in task.waits)
        return replace(record, waited=waited, queued=queued, after=after)

    # -- AI Core -----------------------------------------------------------------------------

    def _ai_core(
        self, task: Task, call: KernelCall, start: int, cores: int
    ) -> Generator[simpy.Event, Any, OpRecord]:
        with self._blocks.request() as turn:
            yield turn
            yield self._env.timeout(ceil(self._per_block * call.plan.block_dim))
        launch = int(self._env.now) - start
        gm = self._memory_state(task, call)
        if self._watch is not None:
            self._watch(call, gm)
        keep = task.name in self._trace
        if self._detail == "full":
            result, replayed = (yield from self._in_place(task, call, gm, keep)), False
        else:
            result, replayed = self._profile(call, gm, keep)
            written = _written(task, call, gm, result)
            moved = result.l2_bytes, result.hbm_bytes
            yield self._kernels.run(result.cycles, cores, *moved, written)
        end = int(self._env.now)
        result = stretched(result, end - start - launch)
        return make_record(task, call, self._chip, result, start, end, launch, replayed)

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

    def _ai_cpu(self, task: Task, start: int) -> Generator[simpy.Event, Any, OpRecord]:
        """Launch cost plus bytes over the AI CPU's rate; results pass through L2."""
        buffers = [self._exe.buffers[n] for n in (*task.inputs, *task.outputs) if n]
        nbytes = sum(b.nbytes for b in buffers)
        launch, body = self._chip.ai_cpu_cycles(nbytes)
        ends: dict[int, int] = {}
        for b in buffers:
            ends[b.address] = max(b.address + b.nbytes, ends.get(b.address, 0))
        touched = self._l2.touch(list(ends.items()))
        made = {self._exe.buffers[n].address for n in task.outputs}
        came = sum(touched.missing)
        leaving = touched.evicted / came if came else 0.0
        parts = zip(ends, touched.missing, strict=True)
        hbm = sum(n * (leaving if address in made else 1.0) for address, n in parts)
        yield self._env.timeout(launch)
        if self._detail == "full" and nbytes:
            rate = self._chip.aicpu.rate / self._chip.clock
            yield self._shared.transfer(nbytes, 1, rate, hbm / nbytes, True)
            yield self._env.timeout(max(0, start + launch + body - self._env.now))
        else:
            yield self._kernels.run(body, 1, nbytes, hbm, 0.5)
        return OpRecord(
            task.name,
            task.op_type,
            "AICPU",
            TaskKind.AI_CPU.value,
            1,
            task.stream,
            start,
            int(self._env.now),
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


def _written(task: Task, call: KernelCall, gm: GmState, result: LaunchResult) -> float:
    """The part of a kernel's HBM bytes that is written."""
    outputs = {i: t for i, t in call.plan.traffic.items() if i >= len(task.inputs)}
    stored = sum(gm.share(i) * t.total for i, t in outputs.items())
    return stored / result.hbm_bytes if result.hbm_bytes else 0.0
