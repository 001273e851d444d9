"""How long a pipeline of chunks takes, in closed form: to check the simulation, and to explain it.

Three stages in order, N equal chunks: the first chunk goes through all stages, each of the others
adds one period, the time of the slowest cycle that a chunk's successor waits for:

    T = t_in + t_compute + t_out + (N - 1) · P
    P = max(t_in, t_compute, t_out, (t_in + t_compute) / k, (t_compute + t_out) / k, host)

The first chunk may compute a little longer than the others, as weights are not in L2 yet. With k
buffers chunk i + k waits for chunk i, hence the two cycles over k; for k ≥ 2 they are never
the longest, but for what events cost. One stream: P is the sum of the stages. Pageable copies: P is
the way of the host around its loop. Each stage carries its share of the scheduler's gaps, of the
costs of events, and of the host's calls.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.chip.spec import ChipSpec
from npusim.explore.chunks import ChunkWork, Way
from npusim.timeline.overlapped import ChunkTimes


@dataclass(frozen=True)
class _Costs:
    """What the scheduler and the host add, in µs."""

    gap: float
    event: float
    call: float
    launch: float
    sync: float

    @classmethod
    def of(cls, chip: ChipSpec) -> _Costs:
        s, h = chip.scheduler, chip.host
        costs = (s.gap, s.event, h.call, h.graph_launch, h.sync)
        return cls(*(1e6 * chip.seconds(chip.cycles(t)) for t in costs))


def closed_form(
    work: ChunkWork, times: ChunkTimes, chip: ChipSpec, way: Way, chunks: int, buffers: int
) -> float:
    """µs that the chunks take, until the host has seen the end."""
    c = _Costs.of(chip)
    if way.pinned:
        form = _one_stream if way.streams == 1 else _three_streams
        return form(work, times, c, chunks, buffers) + c.sync
    if way.streams == 1:
        return chunks * _round_trip(work, times, c) + times.cold + c.sync
    if not way.ahead:
        calls = 3 + (2 if chunks > buffers else 0)
        events = calls * c.call + 2 * c.event - max(c.gap, c.event)
        around = chunks * (_round_trip(work, times, c) + events)
    else:
        around = _next_first(work, times, c, chunks, buffers)
    return around + times.cold + c.event + c.sync


def _calls(work: ChunkWork) -> tuple[int, int]:
    return len(work.copies_in), len(work.copies_out)


def _one_stream(work: ChunkWork, t: ChunkTimes, c: _Costs, chunks: int, buffers: int) -> float:
    n_in, n_out = _calls(work)
    stages = t.copy_in + t.compute + t.copy_out + 3 * c.gap
    calls = (n_in + n_out) * c.call + c.launch
    start = max(c.call + t.copy_in + c.gap, n_in * c.call + c.launch)
    others = max((chunks - 1) * stages + t.cold, (chunks - 1) * calls)
    return start + t.compute + c.gap + t.copy_out + others


def _three_streams(work: ChunkWork, t: ChunkTimes, c: _Costs, chunks: int, buffers: int) -> float:
    n_in, n_out = _calls(work)
    again = 1 if chunks > buffers else 0  # a buffer is used again: one event more
    after = max(c.gap, c.event)  # recording an event fills the gap
    calls = n_in + 1 + again + 2 + again + n_out + 2
    computing = max(
        t.compute + after + (1 + again) * c.event,
        again * (t.copy_in + t.compute + 5 * c.event) / buffers,
        again * (t.compute + t.copy_out + 4 * c.event) / buffers,
    )
    period = max(
        t.copy_in + after + again * c.event,
        t.copy_out + after + c.event,
        calls * c.call + c.launch,
    )
    start = max(c.call + t.copy_in + 2 * c.event, (n_in + 2) * c.call + c.launch)
    others = max((chunks - 1) * computing + t.cold, (chunks - 1) * period)
    return start + t.compute + 2 * c.event + t.copy_out + c.event + others


def _round_trip(work: ChunkWork, t: ChunkTimes, c: _Costs) -> float:
    """A chunk from pageable memory and back, the host waiting for both copies."""
    n_in, n_out = _calls(work)
    there = t.pageable_in + n_in * (c.call + c.sync)
    back = t.pageable_out + n_out * c.sync + (n_out - 1) * c.call
    return there + c.launch + t.compute + max(c.gap, c.event) + back


def _next_first(work: ChunkWork, t: ChunkTimes, c: _Costs, chunks: int, buffers: int) -> float:
    """Pageable, the next chunk's input while this one computes, then this one's output."""
    n_in, n_out = _calls(work)
    there = t.pageable_in + n_in * (c.call + c.sync)
    back = t.pageable_out + n_out * c.sync + (n_out - 1) * c.call + c.call
    computed = t.compute + 2 * c.event
    beside = max(computed, there + 5 * c.call) if buffers > 1 else computed + there + 3 * c.call
    last = max(computed, 3 * c.call)
    again = 1 if chunks > buffers else 0
    around = (1 + again) * c.call + c.launch + back
    return there + c.call + (chunks - 1) * (around + beside) + around + last
