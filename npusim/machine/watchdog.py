"""What to say when nothing moves any more: who waits for whom, and the circle, by name."""

from __future__ import annotations

from collections.abc import Mapping

import simpy

from npusim.errors import DeadlockError
from npusim.machine.entries import RecordEntry, WaitEntry
from npusim.machine.stream import Stream


def deadlock(name: str, streams: Mapping[int, Stream]) -> DeadlockError:
    """The error for streams of which none can go on.

    Args:
        name: of what was running.
    """
    stuck = {n: s for n, s in sorted(streams.items()) if s.pending}
    makers = {e.mark: s for s in stuck.values() for e in s.pending if isinstance(e, RecordEntry)}
    inside = [_inside(s) for s in stuck.values() if not isinstance(s.doing, WaitEntry)]
    circle = _circle(stuck, makers)
    if circle:
        text = "streams wait in a circle: " + "; ".join(_waiting(s, makers) for s in circle)
    else:
        waiting = [s for s in stuck.values() if isinstance(s.doing, WaitEntry)]
        text = "; ".join([*inside, *(_waiting(s, makers) for s in waiting)][:8])
    return DeadlockError(
        f"{name} cannot progress: {text}",
        "every event that is waited for is recorded by a task that can run; kernels that end",
        "record the event before, or on a stream that does not wait for this one in turn",
    )


def _inside(stream: Stream) -> str:
    assert stream.doing is not None
    return f"task {stream.doing.name!r} on stream {stream.number} does not end"


def _waiting(stream: Stream, makers: Mapping[simpy.Event, Stream]) -> str:
    """What a stream waits for, and where that would come from."""
    entry = stream.doing
    if not isinstance(entry, WaitEntry):
        return _inside(stream)
    blocked = next((e.name for e in stream.pending[1:] if not isinstance(e, WaitEntry)), "")
    task = f"task {blocked!r} on " if blocked else ""
    where = f"{task}stream {stream.number} waits for {entry.name}"
    maker = makers.get(entry.mark)
    if maker is None:
        return f"{where}, no task records it"
    by = f"{entry.maker!r} on stream" if entry.maker else "stream"
    return f"{where}, {by} {maker.number} has not recorded it"


def _circle(streams: Mapping[int, Stream], makers: Mapping[simpy.Event, Stream]) -> list[Stream]:
    """Streams each of which waits for the next, the last for the first; empty: no circle."""
    for start in streams.values():
        path: list[Stream] = []
        at: Stream | None = start
        while at is not None and at not in path:
            path.append(at)
            entry = at.doing
            at = makers.get(entry.mark) if isinstance(entry, WaitEntry) else None
        if at is not None:
            return path[path.index(at) :]
    return []
