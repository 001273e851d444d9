"""How long tasks on several streams take, by estimates: what the placement of streams goes by.

The rules are the device's (see `npusim.machine.sharing`): per stream a gap, events, launch; cores
in order of arrival; blocks handed out one at a time; L2 and HBM shared. The times of kernels are
the estimates by which their tilings were chosen, since nothing is simulated here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from npusim.chip.spec import ChipSpec
from npusim.ir import Graph
from npusim.program.cores import Cores, core_pools, cores_held
from npusim.program.executable import Task
from npusim.program.kernel import get_kernel

#: Estimates of some kernels count the handing out of blocks, which is added here; at least this
#: part of an estimate is time on the cores.
_LEAST_BODY = 0.25


@dataclass(frozen=True)
class Step:
    """A task's estimated cycles.

    Attributes:
        launch: before it needs cores; blocks: handing them out; body: until the last is over.
        cores: held meanwhile; l2_bytes, hbm_bytes: moved in the body.
    """

    launch: float
    blocks: float
    body: float
    cores: Cores
    l2_bytes: float = 0.0
    hbm_bytes: float = 0.0

    @property
    def cycles(self) -> float:
        """Launch to end, alone on the chip."""
        return self.launch + self.blocks + self.body


def estimate(task: Task, graph: Graph, chip: ChipSpec) -> Step:
    """The cost of a task. Constants come from HBM, other operands where L2 cannot hold them."""
    if task.call is None:
        names = [n for n in (*task.inputs, *task.outputs) if n]
        nbytes = sum(graph.tensors[n].nbytes for n in names)
        seconds = chip.aicpu.launch + nbytes / chip.aicpu.rate
        return Step(0.0, 0.0, seconds * chip.clock, {"AI_CPU": 1})
    call = task.call
    operands = (*task.inputs, *task.outputs)
    l2 = float(sum(t.total for t in call.plan.traffic.values()))
    cold = [
        t.unique
        for i, t in call.plan.traffic.items()
        if i < len(operands) and (operands[i] in graph.constants or t.unique > chip.l2.size / 2)
    ]
    hbm = float(min(sum(cold), l2))
    blocks = chip.scheduler.per_block * chip.clock * call.plan.block_dim
    whole = get_kernel(call.kernel).estimate(call.args, chip, call.plan.tiling)
    body = max(whole - blocks, whole * _LEAST_BODY, l2 / chip.l2_rate, hbm / chip.hbm_rate, 1.0)
    cores = cores_held(call.kernel, call.plan, chip)
    return Step(chip.scheduler.launch * chip.clock, blocks, body, cores, l2, hbm)


def waits_needed(streams: Sequence[int], needs: Sequence[Collection[int]]) -> list[list[int]]:
    """Per task, the tasks of other streams whose events it must wait for.

    What is known to be over by the order of the stream, or by another wait, needs no event.

    Args:
        needs: per task, those whose results it reads; all before it.
    """
    over: list[int] = []  # sets, as bits
    last: dict[int, int] = {}
    out = []
    for i, stream in enumerate(streams):
        known = 0
        if stream in last:
            known = over[last[stream]] | 1 << last[stream]
        waits = []
        for p in sorted(needs[i], reverse=True):
            if not known >> p & 1:
                waits.append(p)
                known |= over[p] | 1 << p
        over.append(known)
        last[stream] = i
        out.append(waits)
    return out


class _Run:
    """One simulation of streams; see `makespan`."""

    def __init__(
        self, steps: Sequence[Step], streams: Sequence[int], waits: Sequence[Sequence[int]],
        chip: ChipSpec,
    ) -> None:  # fmt: skip
        self._steps, self._waits, self._chip = steps, waits, chip
        self._gap, self._event = (
            s * chip.clock for s in (chip.scheduler.gap, chip.scheduler.event)
        )
        self._recorders = {p for w in waits for p in w}
        self._queues: dict[int, list[int]] = {}
        for i in reversed(range(len(steps))):
            self._queues.setdefault(streams[i], []).append(i)
        self._streams = streams
        self._at = dict.fromkeys(self._queues, -self._gap)  # when the stream was last free
        self._recorded: dict[int, float] = {}
        self._blocked: set[int] = set()  # streams whose next task waits for an event
        self._heap: list[tuple[float, int, int]] = []  # (time, 0 end or 1 arrival, task)
        self._free = core_pools(chip)
        self._waiting: list[int] = []
        self._running: set[int] = set()
        self._handed_out = 0.0

    def run(self) -> float:
        """Cycles until the last task is over."""
        now = 0.0
        for stream in sorted(self._queues):
            self._next(stream)
        while self._heap:
            now, kind, i = heappop(self._heap)
            if kind:
                self._waiting.append(i)
            else:
                self._end(i, now)
            self._grant(now)
        return now

    def _next(self, stream: int) -> None:
        """The next task of a stream arrives, unless it waits for an event not recorded yet."""
        self._blocked.discard(stream)
        if not self._queues[stream]:
            return
        i = self._queues[stream][-1]
        if any(p not in self._recorded for p in self._waits[i]):
            self._blocked.add(stream)
            return
        self._queues[stream].pop()
        at = self._at[stream] + self._gap
        for p in self._waits[i]:
            at = max(at, self._recorded[p]) + self._event
        heappush(self._heap, (at + self._steps[i].launch, 1, i))

    def _end(self, i: int, now: float) -> None:
        for kind, n in self._steps[i].cores.items():
            self._free[kind] += n
        self._running.discard(i)
        stream = self._streams[i]
        self._at[stream] = now
        if i in self._recorders:
            self._at[stream] = self._recorded[i] = now + self._event
        for other in sorted(self._blocked | {stream}):
            self._next(other)

    def _grant(self, now: float) -> None:
        wanted: set[str] = set()
        waiting = []
        for i in self._waiting:
            step = self._steps[i]
            fits = all(self._free[kind] >= n for kind, n in step.cores.items())
            if not fits or wanted & step.cores.keys():
                wanted |= step.cores.keys()
                waiting.append(i)
                continue
            for kind, n in step.cores.items():
                self._free[kind] -= n
            self._handed_out = max(self._handed_out, now) + step.blocks
            self._running.add(i)
            heappush(self._heap, (self._handed_out + step.body * self._crowd(), 0, i))
        self._waiting = waiting

    def _crowd(self) -> float:
        """How much longer the newest kernel takes since those that run share the memories."""
        running = [self._steps[i] for i in self._running]
        l2 = sum(s.l2_bytes / s.body for s in running) / self._chip.l2_rate
        hbm = sum(s.hbm_bytes / s.body for s in running) / self._chip.hbm_rate
        return max(1.0, l2, hbm)


def makespan(
    steps: Sequence[Step], streams: Sequence[int], waits: Sequence[Sequence[int]], chip: ChipSpec
) -> float:
    """Estimated cycles of tasks from the first launch to the last end.

    Args:
        streams: of each task; waits: the tasks whose events each waits for.
    """
    return _Run(steps, streams, waits, chip).run()
