"""How the device runs a compiled task: cores, launch, L2 state, blocks; or the AI CPU.

In *fast* detail a kernel's blocks are timed once per distinct launch (kernel, arguments, plan, L2
state of its operands) and replayed after that; in *full* detail every launch is simulated in place
by the SimPy cores, in the device's own environment.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

import simpy

from npusim.chip.reuse import Reuse, reused
from npusim.chip.spec import ChipSpec
from npusim.machine.core import SharedMemory
from npusim.machine.entries import TaskEntry
from npusim.machine.gm import GmState, footprint, visit
from npusim.machine.launch import LaunchResult, launch_result, start_blocks, time_launch
from npusim.machine.record import (
    WALKS,
    LaunchAccount,
    UnitWork,
    make_record,
    stretched,
    unit_record,
)
from npusim.machine.record import account as make_account
from npusim.machine.sharing import Shared
from npusim.machine.stream import Stream
from npusim.machine.tlb import page_walks
from npusim.program.cores import Cores, cores_held
from npusim.program.executable import KernelCall, Task, TaskKind
from npusim.program.kernel import get_kernel
from npusim.timeline import OpRecord

Detail = Literal["fast", "full"]
Watch = Callable[[KernelCall, GmState], None]  #: told every launch and what it finds in memory


@dataclass(frozen=True)
class _Launch:
    """A kernel call as the device knows it: what is the same at every launch."""

    call: KernelCall
    cores: Cores
    key: int
    blocks: int  #: cycles to hand its blocks out


class TaskRunner:
    """Runs tasks on the device's shared parts. Life cycle: construct, `run` entries.

    Attributes:
        events: engine events of launches simulated by themselves.
    """

    def __init__(
        self,
        env: simpy.Environment,
        chip: ChipSpec,
        shared: Shared,
        detail: Detail,
        traced: frozenset[str],
        watch: Watch | None,
        reuse: Reuse | None = None,
    ) -> None:
        self.events = 0
        self._env, self._chip, self._shared = env, chip, shared
        self._detail, self._traced, self._watch = detail, traced, watch
        self._reuse = reuse
        self._memory = SharedMemory(env, chip)
        self._profiles: dict[tuple[int, GmState], LaunchResult] = {}
        self._accounts: dict[tuple[object, ...], LaunchAccount] = {}
        self._keys: dict[tuple[object, ...], int] = {}
        self._launches: dict[int, _Launch] = {}
        self._launch = chip.cycles(chip.scheduler.launch)
        self._per_block = chip.scheduler.per_block * chip.clock

    def run(self, entry: TaskEntry, stream: Stream) -> Generator[simpy.Event, Any, OpRecord]:
        """Run a task to its end; gives its record."""
        task, home, waits = entry.task, entry.home, stream.waits
        launch = None if task.call is None else self._known(task.call)
        cores: Cores = {"AI_CPU": 1} if launch is None else launch.cores
        before = 0 if launch is None else self._launch
        asked = int(self._env.now)
        yield self._env.timeout(before)  # needs no cores yet
        home.check(task)
        yield self._shared.cores.take(cores, stream.priority)
        start = int(self._env.now) - before
        waits.queued += start - asked
        executor = home.executor if entry.step == 0 else None  # later steps compute the same
        seen = executor.look(task) if executor and self._shared.several else None
        if launch is None:
            record = yield from self._ai_cpu(entry, stream, start)
        else:
            record = yield from self._ai_core(entry, stream, launch, start)
        self._shared.cores.give(cores)
        home.check(task)  # memory may have been freed meanwhile
        if executor is not None:
            executor.complete(task, seen)
        return record

    def _known(self, call: KernelCall) -> _Launch:
        """Calls are told apart by content once, by identity from then on."""
        known = self._launches.get(id(call))
        if known is None or known.call is not call:
            plan = call.plan
            content = (call.kernel, call.args, plan.block_dim, tuple(plan.tiling.items()))
            key = self._keys.setdefault(content, len(self._keys))
            cores = cores_held(call.kernel, plan, self._chip)
            known = _Launch(call, cores, key, ceil(self._per_block * plan.block_dim))
            self._launches[id(call)] = known
        return known

    # -- AI Core -----------------------------------------------------------------------------

    def _ai_core(
        self, entry: TaskEntry, stream: Stream, launch: _Launch, start: int
    ) -> Generator[simpy.Event, Any, OpRecord]:
        task, call = entry.task, launch.call
        yield self._env.timeout(self._shared.hand_out(launch.blocks))
        overhead = int(self._env.now) - start
        gm = self._memory_state(entry, call)
        if self._watch is not None:
            self._watch(call, gm)
        keep = task.name in self._traced
        if self._detail == "full":
            result, replayed = (yield from self._in_place(call, gm, keep)), False
        else:
            result, replayed = self._profile(launch, gm, keep)
            written = _written(task, call, gm, result)
            moved = result.l2_bytes, result.hbm_bytes
            cores = max(launch.cores.values())
            yield self._shared.kernels.run(result.cycles, cores, *moved, written)
        walks = page_walks(self._chip, entry.home, task)
        if walks:
            yield self._env.timeout(walks)
        end = int(self._env.now)
        body = end - start - overhead
        key = None
        if replayed and result.cycles == body:  # as it was alone: as often before
            key = (launch.key, gm, overhead, task.macs, task.flops)
        account = self._accounts.get(key) if key is not None else None
        result = stretched(stretched(result, body - walks), body, WALKS)
        if account is None:
            account = make_account(task, self._chip, result, end - start, overhead)
            if key is not None:
                self._accounts[key] = account
        when = (start, overhead, end)
        return make_record(entry, self._chip, result, account, when, stream, replayed)

    def _profile(self, launch: _Launch, gm: GmState, keep: bool) -> tuple[LaunchResult, bool]:
        """The launch's timing, simulated at its first occurrence."""
        key, call = (launch.key, gm), launch.call
        found = self._profiles.get(key)
        if found is not None and not keep:
            return found, True
        plan = call.plan

        def simulate(chip: ChipSpec) -> LaunchResult:
            return time_launch(chip, call.kernel, call.args, plan, gm, coupled=False, spans=keep)

        if keep:  # spans belong to the task that asked for them
            result = simulate(self._chip)
        else:
            what = ("launch", call.kernel, call.args, plan.block_dim, tuple(plan.tiling.items()))
            result = reused(self._reuse, (*what, plan.classes, gm), self._chip, simulate)
            self._profiles[key] = result
        self.events += result.events
        return result, False

    def _in_place(
        self, call: KernelCall, gm: GmState, keep: bool
    ) -> Generator[simpy.Event, Any, LaunchResult]:
        kernel, plan = get_kernel(call.kernel), call.plan
        phases = []
        for phase in range(plan.phases):
            blocks = [
                (kernel.members(call.args, self._chip, plan, block, phase, False), weight)
                for block, weight in plan.classes
            ]
            models = start_blocks(self._env, self._chip, self._memory, gm, blocks, keep)
            for model in models:
                yield model.done
            phases.append([m.stats for m in models])
        return launch_result(call.kernel, self._chip, plan, gm, phases, 0)

    def _memory_state(self, entry: TaskEntry, call: KernelCall) -> GmState:
        """HBM share of every operand, by what is in L2 at its address."""
        task, home = entry.task, entry.home
        found = home.footprints.get(task.name)
        if found is None:
            names = (*task.inputs, *task.outputs)
            own = [i for i in call.plan.traffic if i < len(names)]  # not workspace
            ranges = {i: home.range(names[i]) for i in own}
            found = footprint(call.plan, len(task.inputs), ranges)
            home.footprints[task.name] = found
        return visit(self._shared.l2, found)

    # -- AI CPU ------------------------------------------------------------------------------

    def _ai_cpu(
        self, entry: TaskEntry, stream: Stream, start: int
    ) -> Generator[simpy.Event, Any, OpRecord]:
        """Launch cost plus bytes over the AI CPU's rate; results pass through L2."""
        task, home = entry.task, entry.home
        ranges = [*home.reads(task), *home.writes(task)]
        nbytes = sum(n for _, n in ranges)
        launch, body = self._chip.ai_cpu_cycles(nbytes)
        ends: dict[int, int] = {}
        for address, n in ranges:
            ends[address] = max(address + n, ends.get(address, 0))
        touched = self._shared.l2.touch(list(ends.items()))
        made = {address for address, _ in home.writes(task)}
        came = sum(touched.missing)
        leaving = touched.evicted / came if came else 0.0
        parts = zip(ends, touched.missing, strict=True)
        hbm = sum(n * (leaving if address in made else 1.0) for address, n in parts)
        yield self._env.timeout(launch)
        if self._detail == "full" and nbytes:
            rate = self._chip.aicpu.rate / self._chip.clock
            yield self._memory.transfer(nbytes, 1, rate, hbm / nbytes, True)
            yield self._env.timeout(max(0, start + launch + body - self._env.now))
        else:
            yield self._shared.kernels.run(body, 1, nbytes, hbm, 0.5)
        work = UnitWork(
            task.name, task.op_type, "AICPU", TaskKind.AI_CPU.value, "aicpu",
            launch, round(hbm), nbytes, task.flops, step=entry.step,
        )  # fmt: skip
        return unit_record(work, stream, start, int(self._env.now))


def _written(task: Task, call: KernelCall, gm: GmState, result: LaunchResult) -> float:
    """The part of a kernel's HBM bytes that is written."""
    outputs = {i: t for i, t in call.plan.traffic.items() if i >= len(task.inputs)}
    stored = sum(gm.share(i) * t.total for i, t in outputs.items())
    return stored / result.hbm_bytes if result.hbm_bytes else 0.0
