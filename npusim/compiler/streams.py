"""Parallel branches on several streams, where estimates say that it pays.

Between two tasks that everything passes through (the input of an Inception block and its
concatenation, a LayerNormalization and the scores of an attention) lies a region. Its tasks are
taken apart into chains, longest first. All start on stream 0; one chain after the other moves to
the stream where the region ends soonest, if that saves a worthwhile part of it. Tasks that read
what another stream computes wait for its event.

It seldom pays where kernels have as many blocks as the chip has cores: they run one after the
other on any stream, and only launches and gaps overlap, for which events ask their own price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from npusim.compiler.lower import Lowered
from npusim.compiler.options import CompileContext
from npusim.compiler.stream_model import Step, estimate, makespan, waits_needed
from npusim.errors import UnsupportedError
from npusim.ir import Graph

REWRITE = "Streams"  #: name of the decisions
#: Part of a region's time that moving a chain must save: estimates are not better than that.
WORTHWHILE = 0.03
_MOST_CHAINS = 64  #: of a region, the longest, that are looked at

Needs = list[list[int]]


def assign_streams(graph: Graph, lowered: Lowered, ctx: CompileContext) -> Lowered:
    """Give tasks their streams and events.

    Raises:
        UnsupportedError: more streams than the chip has.
    """
    count, chip = ctx.options.streams, ctx.chip
    if not 1 <= count <= chip.scheduler.max_streams:
        raise UnsupportedError(
            f"{count} streams on {chip.name}",
            f"1 to {chip.scheduler.max_streams} (scheduler.max_streams)",
            "use --streams 4",
        )
    if count == 1 or not lowered.tasks:
        return lowered
    needs = data_needs(lowered)
    steps = [estimate(task, graph, chip) for task in lowered.tasks]
    streams = [0] * len(steps)
    saved, used, found = 0.0, 0, regions(needs)
    for region in found:
        gain = _Region(region, needs, steps, lowered, ctx).place(streams)
        saved, used = saved + gain, used + (gain > 0)
    if used:
        ctx.note(
            f"streams: {used} of {len(found)} parallel regions on up to {max(streams) + 1}; by "
            f"estimates they save {chip.seconds(saved) * 1e6:.1f} µs"
        )
    else:
        ctx.note(f"streams: one, since none of {len(found)} parallel regions pays for its events")
    waits = waits_needed(streams, needs)
    recorders = sorted({p for w in waits for p in w})
    event = {task: number for number, task in enumerate(recorders)}
    tasks = [
        replace(
            task,
            stream=streams[i],
            waits=tuple(event[p] for p in sorted(waits[i])),
            records=event.get(i),
        )
        for i, task in enumerate(lowered.tasks)
    ]
    return Lowered(tasks, lowered.alias)


def data_needs(lowered: Lowered) -> Needs:
    """Per task, the tasks whose results it reads."""
    makers: dict[str, int] = {}
    out = []
    for i, task in enumerate(lowered.tasks):
        roots = {lowered.alias.get(n, n) for n in task.inputs if n}
        out.append(sorted({makers[r] for r in roots if r in makers}))
        makers.update({lowered.alias.get(n, n): i for n in task.outputs})
    return out


def regions(needs: Needs) -> list[list[int]]:
    """Runs of tasks between two that everything passes through, those two included.

    Only runs in which tasks can go side by side.
    """
    n = len(needs)
    before, after = [0] * n, [0] * n  # sets, as bits
    for i in range(n):
        for p in needs[i]:
            before[i] |= before[p] | 1 << p
    for i in reversed(range(n)):
        for p in needs[i]:
            after[p] |= after[i] | 1 << i
    cuts = [i for i in range(n) if (before[i] | after[i]).bit_count() == n - 1]
    out = []
    for a, b in zip([-1, *cuts], [*cuts, n], strict=True):
        inside = list(range(max(a, 0), min(b + 1, n)))
        if b - a > 2:  # two or more tasks between the cuts
            out.append(inside)
    return out


class _Region:
    """One region and its estimates; tasks are numbered from its first."""

    def __init__(
        self, tasks: list[int], needs: Needs, steps: Sequence[Step], lowered: Lowered,
        ctx: CompileContext,
    ) -> None:  # fmt: skip
        first = self._first = tasks[0]
        self._ctx = ctx
        self._names = [lowered.tasks[i].name for i in tasks]
        self._steps = [steps[i] for i in tasks]
        self._needs = [[p - first for p in needs[i] if p >= first] for i in tasks]

    def place(self, streams: list[int]) -> float:
        """Write the streams of the region's tasks; returns the cycles that they save."""
        here = [0] * len(self._steps)
        serial = best = self._time(here)
        chains = self._chains()
        for chain in chains[1 : 1 + _MOST_CHAINS]:
            tries = []
            for stream in range(1, min(self._ctx.options.streams, max(here) + 2)):
                moved = [stream if i in chain else s for i, s in enumerate(here)]
                tries.append((self._time(moved), stream, moved))
            time, stream, moved = min(tries)
            gain = best - time
            taken = gain >= WORTHWHILE * serial
            self._decide(chain, taken, gain)
            if taken:
                best, here = time, moved
        for chain in chains[1 + _MOST_CHAINS :]:
            self._refuse(chain, f"looked at only the {_MOST_CHAINS} longest chains of the region")
        for i, stream in enumerate(here):
            streams[self._first + i] = stream
        return serial - best

    def _time(self, streams: list[int]) -> float:
        return makespan(self._steps, streams, waits_needed(streams, self._needs), self._ctx.chip)

    def _decide(self, chain: set[int], taken: bool, gain: float) -> None:
        if taken:
            reason = f"saves {WORTHWHILE * 100:.0f} % of the region's time or more"
            self._ctx.decide(REWRITE, self._nodes(chain), True, reason)
        elif gain > 0:
            self._refuse(chain, f"saves less than {WORTHWHILE * 100:.0f} % of the region's time")
        else:
            self._refuse(chain, "too few cores are free beside it for the price of the events")

    def _refuse(self, chain: set[int], reason: str) -> None:
        self._ctx.decide(REWRITE, self._nodes(chain), False, reason)

    def _nodes(self, chain: set[int]) -> tuple[str, ...]:
        return tuple(self._names[i] for i in sorted(chain))

    def _chains(self) -> list[set[int]]:
        """The tasks as chains: the longest way through them, then through what is left."""
        left = set(range(len(self._steps)))
        out = []
        while left:
            length: dict[int, float] = {}
            back: dict[int, int] = {}
            for i in sorted(left):
                there = [p for p in self._needs[i] if p in left]
                best = max(there, key=lambda p: length[p], default=None)
                length[i] = self._steps[i].cycles + (length[best] if best is not None else 0.0)
                if best is not None:
                    back[i] = best
            at: int | None = max(length, key=lambda i: length[i])
            chain = set()
            while at is not None:
                chain.add(at)
                at = back.get(at)
            out.append(chain)
            left -= chain
        return out
