"""The fast engine: a next-free-time scoreboard over the same instruction streams.

Inside a core everything is in order, so an instruction's start is the maximum of known times: it
needs no event. Only GM transfers, whose speed depends on what else moves, are events, in one heap
over all core classes. `core.CoreModel` (SimPy) is the reference; a property test holds the two
equal cycle for cycle.

Steady loops are folded (`fold.try_fold`): whole periods are skipped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Any

from npusim.chip.spec import ChipSpec
from npusim.machine.bandwidth import BandwidthServer, Flow
from npusim.machine.core import gm_cap
from npusim.machine.fold import try_fold
from npusim.machine.gm import GmState
from npusim.machine.stats import CoreStats, deadlock
from npusim.program.isa import N_PIPES, PIPE_NAMES, Instr, Kind
from npusim.program.kernel import Member

_LOCAL, _GM, _SET, _WAIT = int(Kind.LOCAL), int(Kind.GM), int(Kind.SET), int(Kind.WAIT)


class PipeState:
    """One pipe: when it is free, when all its work is visible, what is queued."""

    __slots__ = ("blocked", "done_at", "free_at", "pops", "queue")

    def __init__(self) -> None:
        self.free_at = 0
        self.done_at = 0
        self.queue: deque[tuple[Instr, int]] = deque()  # (instruction, cycle it arrived)
        self.pops: deque[int] = deque()  # cycles at which the last `depth` left the queue
        self.blocked = False  # its head waits for a flag or a transfer


class Core:
    """One class of identical cores."""

    __slots__ = (
        "block",
        "context",
        "finished",
        "flags",
        "held",
        "index",
        "issue_at",
        "pipes",
        "program",
        "stats",
        "waiters",
    )

    def __init__(self, index: int, context: Any, program: Iterator[Instr], weight: int) -> None:
        self.index = index
        self.context = context
        self.program = program
        self.stats = CoreStats(weight)
        self.pipes = [PipeState() for _ in range(N_PIPES)]
        self.flags: dict[tuple[int, int, int], deque[int]] = {}
        self.waiters: dict[tuple[int, int, int], int] = {}  # flag → pipe blocked on it
        self.issue_at = 0
        self.held: Instr | None = None  # issued, but its queue is full
        self.finished = False
        self.block: list[Core] = [self]  # the cores that its set_flags reach


class Scoreboard:
    """Runs core classes to their end. Use: `add_core` each class, then `run`."""

    def __init__(self, chip: ChipSpec, gm: GmState, fold: bool, keep_spans: bool = False) -> None:
        self._chip = chip
        self._depth = chip.core.scalar.queue_depth
        self._shares = dict(gm.hbm_share)
        self._read_latency = chip.l2.read_latency
        self._miss_latency = chip.l2.read_latency + chip.hbm.latency
        self._write_latency = chip.l2.write_latency
        self.server = BandwidthServer(chip.l2_rate, chip.hbm_rate, chip.hbm.turnaround or 0.0)
        self.heap: list[tuple[int, int, int, int]] = []  # (time, seq, core, pipe): flow starts
        self._seq = 0
        self.cores: list[Core] = []
        self._woken: deque[Core] = deque()  # cores that another core's flag let go on
        self._fold = fold
        self._spans = keep_spans
        self.now = 0  #: time of the last event
        self.events = 0
        self.folded = 0  #: iterations skipped

    def add_core(self, context: Any, program: Iterator[Instr], weight: int) -> None:
        """Add a class of `weight` cores running `program`; all start at cycle 0."""
        self.cores.append(Core(len(self.cores), context, program, weight))

    def add_block(self, members: Sequence[Member], weight: int) -> None:
        """Add a class of `weight` blocks of one core or several, which may set each other's flags.

        Blocks of several cores are not folded: their cores are at different tasks.
        """
        first = len(self.cores)
        for m in members:
            self.add_core(m.context, m.program, weight * m.count)
        block = self.cores[first:]
        for core in block:
            core.block = block

    def run(self, name: str) -> list[CoreStats]:
        """Run everything; stats per class.

        Raises:
            DeadlockError: nothing can progress.
        """
        for core in self.cores:
            self._issue(core)
        server, heap, woken = self.server, self.heap, self._woken
        while True:
            while woken:
                self._issue(woken.popleft())
            end = server.next_end()
            if heap and (end is None or heap[0][0] <= end):
                time, _, c, p = heappop(heap)
                self.now = time
                self._start_flow(time, self.cores[c], p)
            elif end is not None:
                self.now = end
                ended = [flow.tag for flow in server.pop_ended(end)]
                for c, p in ended:  # type: ignore[misc]
                    self._end_flow(end, self.cores[c], p)
                # All transfers of this cycle are booked before any core goes on: going on may
                # fold, which moves time.
                for c, p in ended:  # type: ignore[misc]
                    self._drain(self.cores[c], p)
                    self._issue(self.cores[c])
            else:
                break
        self._check_finished(name)
        for core in self.cores:
            last = max(core.issue_at, *(max(p.done_at, p.free_at) for p in core.pipes))
            core.stats.cycles = last
            for i, pipe in enumerate(core.pipes):
                core.stats.idle[i] += last - pipe.free_at
        return [core.stats for core in self.cores]

    # -- issue -----------------------------------------------------------------------------

    def _issue(self, core: Core) -> None:
        """Issue until the program ends or a full queue holds the scalar unit."""
        context, stats, depth = core.context, core.stats, self._depth
        while not core.finished:
            ins = core.held
            if ins is None:
                ins = next(core.program, None)
                if ins is None:
                    core.finished = True
                    return
                if context.mark:
                    context.mark = False
                    if self._fold and len(core.block) == 1:
                        self._enter(core)
                core.issue_at += ins.issue
                stats.scalar_busy += ins.issue
                stats.instructions += 1
            pipe = core.pipes[ins.pipe]
            # A blocked head has left the queue: it is being executed.
            room = depth - len(pipe.queue) + pipe.blocked
            if room <= 0:
                core.held = ins
                return
            core.held = None
            # There is room once the instruction `depth` places ahead has left the queue.
            if len(pipe.pops) >= room:
                free = pipe.pops[-room]
                if free > core.issue_at:
                    stats.scalar_stall += free - core.issue_at
                    core.issue_at = free
            pipe.queue.append((ins, core.issue_at))
            self.events += 1
            if not pipe.blocked:
                self._drain(core, ins.pipe)

    def _enter(self, core: Core) -> None:
        """The body entered an iteration of one loop or more: note where, and try to fold."""
        issued = core.stats.instructions
        advanced = None
        for loop in core.context.loops:
            if loop.fresh:
                loop.fresh = False
                loop.start = issued
                if loop.index == 0:
                    loop.begin = issued
                else:
                    advanced = loop
        if advanced is not None:
            self.folded += try_fold(self, core, advanced)

    # -- execute ---------------------------------------------------------------------------

    def _drain(self, core: Core, p: int) -> None:
        """Execute what is queued in pipe p and can be timed."""
        pipe, stats, depth = core.pipes[p], core.stats, self._depth
        queue = pipe.queue
        while queue and not pipe.blocked:
            ins, arrived = queue.popleft()
            free = pipe.free_at
            pop = arrived if arrived > free else free
            stats.idle[p] += pop - free
            pipe.pops.append(pop)
            if len(pipe.pops) > depth:
                pipe.pops.popleft()
            kind = ins.kind
            if kind == _LOCAL:
                start = pop
                if ins.serial and pipe.done_at > pop:
                    start = pipe.done_at
                    stats.add_stall(p, "barrier", start - pop)
                end = start + ins.occupy
                pipe.free_at = end
                if end + ins.tail > pipe.done_at:
                    pipe.done_at = end + ins.tail
                stats.busy[p] += ins.occupy
                if self._spans and ins.occupy:
                    stats.spans.append((p, ins.op, start, end))
            elif kind == _SET:
                ready = (pipe.done_at if pipe.done_at > pop else pop) + ins.occupy
                pipe.free_at = pop + ins.occupy
                stats.busy[p] += ins.occupy
                if self._spans and ins.occupy:
                    stats.spans.append((p, ins.op, pop, pipe.free_at))
                if ins.member < 0:
                    self._set(core, ins.flag, ready)
                else:
                    other = core.block[ins.member]
                    self._set(other, ins.flag, ready)
                    self._woken.append(other)
            elif kind == _WAIT:
                times = core.flags.get(ins.flag)
                queue.appendleft((ins, pop))
                pipe.free_at = pop
                if not times:
                    pipe.blocked = True
                    core.waiters[ins.flag] = p
                    return
                self._take(core, p)
            else:
                queue.appendleft((ins, pop))
                pipe.free_at = pop
                pipe.blocked = True
                self._seq += 1
                heappush(self.heap, (pop + ins.occupy, self._seq, core.index, p))
                return

    def _take(self, core: Core, p: int) -> None:
        """The wait_flag at the head of pipe p finds its flag."""
        pipe, stats = core.pipes[p], core.stats
        ins, pop = pipe.queue.popleft()
        ready = core.flags[ins.flag].popleft()
        if ready > pop:
            stats.add_stall(p, PIPE_NAMES[ins.flag[0]], ready - pop)
            pop = ready
        pipe.free_at = pop + ins.occupy
        stats.busy[p] += ins.occupy
        if self._spans and ins.occupy:
            stats.spans.append((p, ins.op, pop, pipe.free_at))

    def _set(self, core: Core, flag: tuple[int, int, int], ready: int) -> None:
        core.flags.setdefault(flag, deque()).append(ready)
        waiter = core.waiters.pop(flag, None)
        if waiter is not None:
            self._take(core, waiter)
            core.pipes[waiter].blocked = False
            self._drain(core, waiter)

    def _start_flow(self, now: int, core: Core, p: int) -> None:
        ins = core.pipes[p].queue[0][0]
        share = self._shares.get(ins.operand, 0.0)
        cap = gm_cap(self._chip, ins, share)
        flow = Flow((core.index, p), ins.nbytes, core.stats.weight, cap, share, ins.write)
        self.server.add(now, flow)
        self.events += 1

    def _end_flow(self, now: int, core: Core, p: int) -> None:
        pipe, stats = core.pipes[p], core.stats
        ins, pop = pipe.queue.popleft()
        pipe.free_at = now
        if ins.write:
            latency = self._write_latency
        elif self._shares.get(ins.operand, 0.0) > 0:
            latency = self._miss_latency
        else:
            latency = self._read_latency
        if now + latency > pipe.done_at:
            pipe.done_at = now + latency
        stats.busy[p] += now - pop
        stats.moved[ins.operand] = stats.moved.get(ins.operand, 0) + ins.nbytes
        if self._spans:
            stats.spans.append((p, ins.op, pop, now))
        self.events += 1
        pipe.blocked = False

    def _check_finished(self, name: str) -> None:
        stuck = []
        for core in self.cores:
            for p, pipe in enumerate(core.pipes):
                if pipe.queue:
                    stuck.append(
                        f"core class {core.index}: {PIPE_NAMES[p]} waits at {pipe.queue[0][0]!r}"
                    )
        if stuck:
            raise deadlock(name, stuck)
