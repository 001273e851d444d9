"""Races between streams: entries that touch the same device memory in no order, by vector clocks.

What orders two entries: being on one stream; an event recorded after the first and waited for
before the second; the host, which saw the end of the first before it submitted the second. The
simulated times do not count: a run in which the race happened to end well is found as well.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from npusim.machine.entries import (
    CopyEntry,
    Entry,
    Range,
    RecordEntry,
    TaskEntry,
    UnitEntry,
    WaitEntry,
)
from npusim.sanitize.clocks import VectorClock
from npusim.sanitize.findings import Finding, FindingKind, Findings, Side

HOST = "host"


@dataclass(frozen=True)
class _Access:
    """Who touched a byte: its actor, that actor's time, and the side it would be in a finding."""

    actor: Hashable
    time: int
    side: Side


@dataclass
class _Bytes:
    """Bytes [start, end) with one history.

    Attributes:
        writer: who wrote last; readers: who read since, the last of each actor.
    """

    start: int
    end: int
    writer: _Access | None = None
    readers: dict[Hashable, _Access] = field(default_factory=dict)


class StreamSanitizer:
    """Follows a device's streams and its host. Life cycle: construct, be told, `findings`.

    A `machine.device.Observer`. Told of entries in order of their start, it needs no more than the
    last accesses of every byte; its memory does not grow with the run.

    Args:
        where: of what runs, for findings.
        known: memory whose contents are known when the run begins; reads of other bytes that
            nobody wrote are findings. None: all of it.
    """

    def __init__(self, where: str, known: Iterable[Range] | None = None) -> None:
        self._where = where
        self._findings = Findings()
        self._map = _IntervalMap()
        self._check_initial = known is not None
        self._clocks: dict[Hashable, VectorClock] = {}
        self._times: dict[Hashable, int] = {HOST: 1}
        self._marks: dict[Hashable, VectorClock] = {}
        self._host = VectorClock({HOST: 1})
        self._submitted: dict[int, VectorClock] = {}
        self._seen = self._host.copy()  # the host's clock as entries take it along
        self.entries = 0
        start = Side(HOST, "initial values", 0, "writes")
        for address, nbytes in known or ():
            for part in self._map.cover(address, address + nbytes):
                part.writer = _Access(HOST, 1, start)

    @property
    def findings(self) -> list[Finding]:
        """What was found so far; the same two places count once."""
        return self._findings.all

    def as_dict(self) -> dict[str, object]:
        """Plain data, for JSON."""
        streams = len(self._clocks)
        found = [f.as_dict() for f in self.findings]
        return {"entries": self.entries, "streams": streams, "findings": found}

    def __str__(self) -> str:
        n, found = len(self._clocks), self.findings
        head = (
            f"sanitizer: {self.entries} tasks on {n} stream{'s' if n > 1 else ''} followed, "
            f"{f'{len(found)} found' if found else 'no findings'}"
        )
        return "\n".join([head, *map(str, found)])

    # -- told by the device ------------------------------------------------------------------

    def submitted(self, entry: Entry, number: int) -> None:
        """The host queues an entry: it comes after all that the host knows to be over."""
        self._submitted[id(entry)] = self._seen

    def started(self, entry: Entry, number: int) -> None:
        """A stream begins an entry; a wait when it is over, a record when its mark fires."""
        clock = self._clocks.setdefault(number, VectorClock())
        known = self._submitted.pop(id(entry), None)
        if known is not None:
            clock.join(known)
        if isinstance(entry, RecordEntry):
            self._marks[entry.mark] = clock.copy()
        elif isinstance(entry, WaitEntry):
            made = self._marks.get(entry.mark)
            if made is not None:
                clock.join(made)
        else:
            self._touch(entry, number, clock)

    def synchronised(self, number: int) -> None:
        """The host saw the end of all that a stream had."""
        clock = self._clocks.get(number)
        if clock is not None:
            self._host.join(clock)
            self._seen = self._host.copy()

    def event_synchronised(self, mark: Hashable) -> None:
        """The host saw a mark fire."""
        clock = self._marks.get(mark)
        if clock is not None:
            self._host.join(clock)
            self._seen = self._host.copy()

    def host_access(self, what: str, reads: Iterable[Range], writes: Iterable[Range]) -> None:
        """The host touches device memory itself (a synchronous copy, memset)."""
        self._times[HOST] += 1
        time = self._times[HOST]
        self._host.advance(HOST, time)
        self._access(HOST, time, what, self._host, reads, writes)
        self._seen = self._host.copy()

    # -- memory ------------------------------------------------------------------------------

    def _touch(self, entry: Entry, number: int, clock: VectorClock) -> None:
        time = self._times.get(number, 0) + 1
        self._times[number] = time
        self.entries += 1
        reads, writes = touched(entry)
        self._access(number, time, entry.name, clock, reads, writes)
        clock.advance(number, time)

    def _access(
        self,
        actor: Hashable,
        time: int,
        what: str,
        clock: VectorClock,
        reads: Iterable[Range],
        writes: Iterable[Range],
    ) -> None:
        name = HOST if actor == HOST else f"stream {actor}"
        reading = _Access(actor, time, Side(name, what, time, "reads"))
        writing = _Access(actor, time, Side(name, what, time, "writes"))
        for address, nbytes in reads:
            for part in self._map.cover(address, address + nbytes):
                self._read(part, reading, clock)
        for address, nbytes in writes:
            for part in self._map.cover(address, address + nbytes):
                self._write(part, writing, clock)

    def _read(self, part: _Bytes, access: _Access, clock: VectorClock) -> None:
        if part.writer is None:
            if self._check_initial:
                self._report(FindingKind.UNINITIALISED, part, None, access)
        elif _apart(part.writer, access, clock):
            self._report(FindingKind.RAW, part, part.writer, access)
        part.readers[access.actor] = access

    def _write(self, part: _Bytes, access: _Access, clock: VectorClock) -> None:
        for other in part.readers.values():
            if _apart(other, access, clock):
                self._report(FindingKind.WAR, part, other, access)
        if part.writer is not None and _apart(part.writer, access, clock):
            self._report(FindingKind.WAW, part, part.writer, access)
        part.writer = access
        part.readers.clear()

    def _report(
        self, kind: FindingKind, part: _Bytes, first: _Access | None, second: _Access
    ) -> None:
        if first is None:
            missing = "a task or copy that writes these bytes before"
        elif second.actor == HOST:
            missing = f"a synchronisation with {first.side.actor} after {first.side.what!r}"
        else:
            missing = (
                f"an event recorded on {first.side.actor} after {first.side.what!r}, and waited "
                f"for on {second.side.actor} before {second.side.what!r}"
            )
        side = None if first is None else first.side
        size = part.end - part.start
        self._findings.add(
            Finding(kind, self._where, side, second.side, "device", part.start, size, missing)
        )


def _apart(first: _Access, second: _Access, clock: VectorClock) -> bool:
    """True when nothing puts the first before the second, whose clock is given.

    An entry that overwrites what it reads does not race with itself.
    """
    same = (first.actor, first.time) == (second.actor, second.time)
    return not same and clock[first.actor] < first.time


def touched(entry: Entry) -> tuple[list[Range], list[Range]]:
    """Device memory that an entry reads, and writes."""
    if isinstance(entry, TaskEntry):
        return entry.home.reads(entry.task), entry.home.writes(entry.task)
    if isinstance(entry, CopyEntry):
        source = [] if entry.source is None else [(entry.source, entry.nbytes)]
        target = [] if entry.target is None else [(entry.target, entry.nbytes)]
        return source, target
    if isinstance(entry, UnitEntry):
        return list(entry.reads), list(entry.writes)
    return [], []


class _IntervalMap:
    """Disjoint runs of bytes in order of address, split where histories differ."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._parts: list[_Bytes] = []

    def cover(self, start: int, end: int) -> list[_Bytes]:
        """The parts that make up exactly [start, end); new ones where there were none."""
        if start >= end:
            return []
        self._split(start)
        self._split(end)
        first, last = bisect_left(self._starts, start), bisect_left(self._starts, end)
        found: list[_Bytes] = []
        at = start
        for part in self._parts[first:last]:
            if part.start > at:
                found.append(_Bytes(at, part.start))
            found.append(part)
            at = part.end
        if at < end:
            found.append(_Bytes(at, end))
        if len(found) > last - first:
            self._parts[first:last] = found
            self._starts[first:last] = [part.start for part in found]
        return found

    def _split(self, at: int) -> None:
        """Make `at` a border, where it lies inside a part."""
        i = bisect_right(self._starts, at) - 1
        if i < 0:
            return
        part = self._parts[i]
        if part.start < at < part.end:
            rest = _Bytes(at, part.end, part.writer, dict(part.readers))
            part.end = at
            self._parts.insert(i + 1, rest)
            self._starts.insert(i + 1, at)
