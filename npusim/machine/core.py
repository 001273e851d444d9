"""The reference model of an AI Core: SimPy processes, one per pipe, one for the scalar unit.

`CoreModel` runs one block (standing for `weight` identical ones) in an environment, or one core of
a block that has several (a cube core and its vector cores), which set flags in each other; cores
meet in `SharedMemory`. At tile level each instruction reads its sources when it starts and writes
its results when it completes, so a missing flag gives wrong numbers here as on the chip.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np
import simpy

from npusim.chip.spec import ChipSpec
from npusim.machine.bandwidth import BandwidthServer, Flow
from npusim.machine.gm import GmState
from npusim.machine.stats import CoreStats
from npusim.program.isa import LOAD_L1, N_PIPES, PIPE_NAMES, Instr, Kind
from npusim.program.region import GM, Region

Process = Generator[simpy.Event, Any, None]


class TileMemory:
    """Bytes of one core: on-chip buffers (filled with NaN patterns) and the launch's operands."""

    def __init__(self, chip: ChipSpec, operands: list[np.ndarray | None]) -> None:
        core = chip.core
        sizes = {
            "UB": core.ub.size,
            "L1": core.l1.size,
            "L0A": core.l0a.size,
            "L0B": core.l0b.size,
            "L0C": core.l0c.size,
        }
        self._chip = {space: np.full(n, 0xFF, np.uint8) for space, n in sizes.items()}
        self._gm = operands

    def view(self, region: Region) -> np.ndarray:
        """The numpy view of a region."""
        if region.space == GM:
            operand = self._gm[region.operand]
            assert operand is not None, f"operand {region.operand} is absent"
            return region.view(operand)
        return region.view(self._chip[region.space])


class SharedMemory:
    """L2 and HBM in a SimPy environment: transfers in, completion events out."""

    def __init__(self, env: simpy.Environment, chip: ChipSpec) -> None:
        self._env = env
        self._server = BandwidthServer(chip.l2_rate, chip.hbm_rate, chip.hbm.turnaround or 0.0)
        self._version = 0

    def transfer(
        self, nbytes: int, weight: int, cap: float, hbm_share: float, write: bool
    ) -> simpy.Event:
        """An event that fires when the bytes are through."""
        done = self._env.event()
        self._server.add(int(self._env.now), Flow(done, nbytes, weight, cap, hbm_share, write))
        self._schedule()
        return done

    def _schedule(self) -> None:
        self._version += 1
        end = self._server.next_end()
        if end is not None:
            timer = self._env.timeout(end - self._env.now, self._version)
            timer.callbacks.append(self._expire)

    def _expire(self, timer: simpy.Event) -> None:
        if timer.value != self._version:
            return  # a flow came since: another timer stands
        for flow in self._server.pop_ended(int(self._env.now)):
            flow.tag.succeed()  # type: ignore[attr-defined]
        self._schedule()


class Flags:
    """Event flags between pipes: the n-th wait of an id takes the n-th set."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._events: dict[tuple[int, int, int], list[simpy.Event]] = {}
        self._sets: dict[tuple[int, int, int], int] = {}
        self._waits: dict[tuple[int, int, int], int] = {}

    def _nth(self, flag: tuple[int, int, int], counter: dict[Any, int]) -> simpy.Event:
        n = counter.get(flag, 0)
        counter[flag] = n + 1
        events = self._events.setdefault(flag, [])
        while len(events) <= n:
            events.append(self._env.event())
        return events[n]

    def set(self, flag: tuple[int, int, int]) -> simpy.Event:
        """The event that this set fires."""
        return self._nth(flag, self._sets)

    def wait(self, flag: tuple[int, int, int]) -> simpy.Event:
        """The event that this wait needs."""
        return self._nth(flag, self._waits)


class CoreModel:
    """One block on one core. `done` fires when its last instruction has completed."""

    def __init__(
        self,
        env: simpy.Environment,
        chip: ChipSpec,
        shared: SharedMemory,
        program: Iterator[Instr],
        gm: GmState,
        weight: int,
        memory: TileMemory | None = None,
        keep_spans: bool = False,
    ) -> None:
        self._env = env
        self._chip = chip
        self._shared = shared
        self._gm = gm
        self._memory = memory
        self._spans = keep_spans
        self.stats = CoreStats(weight)
        self.start = int(env.now)
        self._queues: list[deque[Instr]] = [deque() for _ in range(N_PIPES)]
        self._arrived: list[simpy.Event | None] = [None] * N_PIPES
        self._slot: list[simpy.Event | None] = [None] * N_PIPES
        self._done_at = [self.start] * N_PIPES
        self._blocked: list[Instr | None] = [None] * N_PIPES
        self._flags = Flags(env)
        self._block: Sequence[CoreModel] = (self,)
        self._issued_all = False
        pipes = [env.process(self._pipe(p)) for p in range(N_PIPES)]
        scalar = env.process(self._scalar(program))
        self.done = env.process(self._finish(scalar, pipes))

    def join(self, block: Sequence[CoreModel]) -> None:
        """Make this core one of a block's, whose flags it may set."""
        self._block = block

    def blocked(self) -> list[str]:
        """What each pipe that holds an instruction waits for (to explain a deadlock)."""
        out = []
        for p, ins in enumerate(self._blocked):
            if ins is not None:
                out.append(f"{PIPE_NAMES[p]} waits at {ins!r}")
        return out

    def _scalar(self, program: Iterator[Instr]) -> Process:
        env, depth, stats = self._env, self._chip.core.scalar.queue_depth, self.stats
        for ins in program:
            if ins.issue:
                yield env.timeout(ins.issue)
            stats.scalar_busy += ins.issue
            stats.instructions += 1
            p = ins.pipe
            queue = self._queues[p]
            if len(queue) >= depth:
                before = env.now
                self._slot[p] = env.event()
                yield self._slot[p]  # type: ignore[misc]
                stats.scalar_stall += int(env.now - before)
            queue.append(ins)
            self._wake(p)
        self._issued_all = True
        for p in range(N_PIPES):
            self._wake(p)

    def _wake(self, p: int) -> None:
        waiting = self._arrived[p]
        if waiting is not None:
            self._arrived[p] = None
            waiting.succeed()

    def _pipe(self, p: int) -> Process:
        env, queue, stats = self._env, self._queues[p], self.stats
        while True:
            before = env.now
            while not queue:
                if self._issued_all:
                    return
                self._arrived[p] = env.event()
                yield self._arrived[p]  # type: ignore[misc]
            stats.idle[p] += int(env.now - before)
            ins = queue.popleft()
            slot = self._slot[p]
            if slot is not None:
                self._slot[p] = None
                slot.succeed()
            self._blocked[p] = ins
            yield from self._execute(p, ins)
            self._blocked[p] = None

    def _execute(self, p: int, ins: Instr) -> Process:
        env, stats = self._env, self.stats
        if ins.kind == Kind.LOCAL:
            if ins.serial and self._done_at[p] > env.now:
                stats.add_stall(p, "barrier", int(self._done_at[p] - env.now))
                yield env.timeout(self._done_at[p] - env.now)
            start = int(env.now)
            self._begin(ins, ins.occupy + ins.tail)
            self._done_at[p] = max(self._done_at[p], start + ins.occupy + ins.tail)
            if ins.occupy:
                yield env.timeout(ins.occupy)
            self._busy(p, ins, start)
        elif ins.kind == Kind.GM:
            start = int(env.now)
            values = self._read(ins)
            if ins.occupy:
                yield env.timeout(ins.occupy)
            share = self._gm.share(ins.operand)
            cap = gm_cap(self._chip, ins, share)
            yield self._shared.transfer(ins.nbytes, stats.weight, cap, share, ins.write)
            latency = gm_latency(self._chip, ins, share)
            self._done_at[p] = max(self._done_at[p], int(env.now) + latency)
            self._write_after(ins, values, latency)
            stats.moved[ins.operand] = stats.moved.get(ins.operand, 0) + ins.nbytes
            self._busy(p, ins, start)
        elif ins.kind == Kind.SET:
            start = int(env.now)
            ready = max(self._done_at[p], start) + ins.occupy
            target = self if ins.member < 0 else self._block[ins.member]
            event = target._flags.set(ins.flag)
            self._fire_at(event, ready)
            yield env.timeout(ins.occupy)
            self._busy(p, ins, start)
        else:
            before = int(env.now)
            yield self._flags.wait(ins.flag)
            stats.add_stall(p, PIPE_NAMES[ins.flag[0]], int(env.now) - before)
            start = int(env.now)
            yield env.timeout(ins.occupy)
            self._busy(p, ins, start)

    def _fire_at(self, event: simpy.Event, time: int) -> None:
        def fire(_: simpy.Event) -> None:
            event.succeed()

        self._env.timeout(time - self._env.now).callbacks.append(fire)

    def _busy(self, p: int, ins: Instr, start: int) -> None:
        end = int(self._env.now)
        self.stats.busy[p] += end - start
        if self._spans and end > start:
            self.stats.spans.append((p, ins.op, start - self.start, end - self.start))

    def _read(self, ins: Instr) -> Any:
        if self._memory is None or ins.effect is None:
            return None
        return ins.effect.read(self._memory)

    def _begin(self, ins: Instr, cycles: int) -> None:
        """Read now, write when the result is visible."""
        if self._memory is not None and ins.effect is not None:
            self._write_after(ins, ins.effect.read(self._memory), cycles)

    def _write_after(self, ins: Instr, values: Any, cycles: int) -> None:
        memory, effect = self._memory, ins.effect
        if memory is None or effect is None:
            return
        if cycles == 0:
            effect.write(memory, values)
            return
        self._env.timeout(cycles).callbacks.append(lambda _: effect.write(memory, values))

    def _finish(self, scalar: simpy.Process, pipes: list[simpy.Process]) -> Process:
        yield scalar
        yield from pipes
        last = max(self._done_at)
        if last > self._env.now:
            yield self._env.timeout(last - self._env.now)
        close(self.stats, int(self._env.now) - self.start)


def gm_cap(chip: ChipSpec, ins: Instr, hbm_share: float) -> float:
    """Bytes per cycle of a GM transfer at most: its port, or what a core gets from HBM into L1."""
    cold = chip.core.mte2.cold_rate
    if cold is None or ins.op != LOAD_L1 or not hbm_share:
        return ins.cap
    return min(ins.cap, cold / hbm_share)


def gm_latency(chip: ChipSpec, ins: Instr, hbm_share: float) -> int:
    """Cycles from the last byte through the server until a GM transfer is visible."""
    if ins.write:
        return chip.l2.write_latency
    return chip.l2.read_latency + (chip.hbm.latency if hbm_share > 0 else 0)


def close(stats: CoreStats, cycles: int) -> None:
    """Set the elapsed cycles, and count what is left of each pipe as idle time at the end."""
    stats.cycles = cycles
    for p in range(N_PIPES):
        used = stats.busy[p] + stats.idle[p] + sum(stats.stall[p].values())
        stats.idle[p] += max(0, cycles - used)
