"""Host and device side by side: who waits for whom, and why the device stands still."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.timeline import OpRecord, Timeline

#: Why nothing runs on the device: nothing is queued, a stream waits for an event, for cores or
#: another unit, or the scheduler takes its gap between two tasks.
CAUSES = ("host", "event", "cores", "gap")


@dataclass(frozen=True)
class Bubbles:
    """The time in which nothing runs, of one cause.

    Attributes:
        count: bubbles with a part of this cause; cycles: those parts.
        longest, before: the longest part, and the op that came after it.
    """

    cause: str
    count: int = 0
    cycles: int = 0
    longest: int = 0
    before: str = ""


@dataclass(frozen=True)
class HostAndDevice:
    """Cycles of a run.

    Attributes:
        device_busy: at least one task runs, launches included; bubbles: the rest, by cause. They
            add up to the run.
        host_bound: the device has nothing to do and waits for the host; device_bound: the host
            waits for the device (a full queue among it).
    """

    device_busy: int
    bubbles: tuple[Bubbles, ...]
    host_bound: int
    device_bound: int


def host_and_device(timeline: Timeline) -> HostAndDevice:
    """What host and device did; with sums only, bubbles are those of the streams together."""
    found = {cause: Bubbles(cause) for cause in CAUSES}
    busy = _from_ops(timeline, found) if timeline.ops else _from_totals(timeline, found)
    host = timeline.host
    blocked = 0 if host is None else host.queue_full + host.waiting
    bubbles = tuple(b for b in found.values() if b.cycles)
    return HostAndDevice(busy, bubbles, found["host"].cycles, blocked)


def _from_ops(timeline: Timeline, found: dict[str, Bubbles]) -> int:
    busy = end = 0
    for op in sorted(timeline.ops, key=lambda op: op.start):
        if op.start > end:
            _split(op, op.start - end, found)
        busy += max(0, op.end - max(op.start, end))
        end = max(end, op.end)
    if timeline.total_cycles > end:  # the host notices the end
        _add(found, "host", timeline.total_cycles - end, "the end")
    return busy


def _split(op: OpRecord, bubble: int, found: dict[str, Bubbles]) -> None:
    """A bubble before an op, cut from its end: cores last, events before, the gap first."""
    parts = (("cores", op.queued), ("event", op.waited), ("host", op.starved), ("gap", bubble))
    for cause, cycles in parts:
        cut = min(bubble, cycles)
        bubble -= cut
        if cut:
            _add(found, cause, cut, op.name)


def _from_totals(timeline: Timeline, found: dict[str, Bubbles]) -> int:
    """Sums tell no order: with one stream they are exact but for the gaps, which are the rest."""
    total, totals = timeline.total_cycles, timeline.totals
    busy = min(total, sum(t.cycles for t in totals))
    left = total - busy
    for cause, cycles in (
        ("cores", sum(t.queued for t in totals)),
        ("event", sum(t.waited for t in totals)),
        ("host", sum(t.starved for t in totals)),
        ("gap", left),
    ):
        cut = min(left, cycles)
        left -= cut
        if cut:
            _add(found, cause, cut, "")
    return busy


def _add(found: dict[str, Bubbles], cause: str, cycles: int, before: str) -> None:
    b = found[cause]
    longest, name = (cycles, before) if cycles > b.longest else (b.longest, b.before)
    found[cause] = Bubbles(cause, b.count + 1, b.cycles + cycles, longest, name)
