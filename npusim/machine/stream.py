"""A stream: an in-order queue of entries, and the process that runs it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import simpy

from npusim.machine.entries import DeviceFaultError, Entry, Observer, RecordEntry, WaitEntry

Process = Generator[simpy.Event, Any, None]


@dataclass
class Waits:
    """Cycles for which a stream stood still before the entry that it runs now, by reason.

    Attributes:
        starved: nothing was queued: the host was not there yet.
        waited: for events; queued: for cores or another unit.
        after: tasks of other streams that it waited for.
    """

    starved: int = 0
    waited: int = 0
    queued: int = 0
    after: tuple[str, ...] = ()


#: Runs an entry that takes a unit of the device; tells its own wait for that unit by `Waits`.
Worker = Callable[[Entry, "Stream"], Process]


class Stream:
    """In-order queue of entries. Life cycle: construct, `put` entries; `drained` tells the end.

    Between an entry that occupies a unit and the next entry lies the scheduler's gap. An entry
    that fails stops the stream: what is behind it is dropped, but marks still fire.

    Attributes:
        number: in the timeline; priority: 0 is served first where streams compete.
        doing: what it runs or waits for now; fault: what stopped it.
    """

    def __init__(
        self,
        env: simpy.Environment,
        number: int,
        priority: int,
        costs: tuple[int, int],
        worker: Worker,
        observer: Observer | None = None,
    ) -> None:
        self.number, self.priority = number, priority
        self.waits = Waits()
        self.doing: Entry | None = None
        self.fault: DeviceFaultError | None = None
        self._env, self._worker, self._observer = env, worker, observer
        self._gap, self._event_cost = costs
        self._entries: deque[Entry] = deque()
        self._arrival: simpy.Event | None = None
        self._drained: list[simpy.Event] = []
        self._room: list[tuple[int, simpy.Event]] = []
        self._gap_end = 0
        env.process(self._run())

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def pending(self) -> list[Entry]:
        """Everything not over, in order."""
        return [*([self.doing] if self.doing is not None else []), *self._entries]

    def put(self, entry: Entry) -> None:
        """Queue an entry, now."""
        self._entries.append(entry)
        if self._arrival is not None:
            self._arrival.succeed()
            self._arrival = None

    def drained(self) -> simpy.Event:
        """An event that fires when all that is queued now, and after, is over."""
        event = self._env.event()
        if self.doing is None and not self._entries:
            event.succeed()
        else:
            self._drained.append(event)
        return event

    def room(self, limit: int) -> simpy.Event:
        """An event that fires when fewer than `limit` entries are queued."""
        event = self._env.event()
        if len(self._entries) < limit:
            event.succeed()
        else:
            self._room.append((limit, event))
        return event

    def _run(self) -> Process:
        env = self._env
        while True:
            if not self._entries:
                since = int(env.now)
                self._arrival = env.event()
                yield self._arrival
                if self._gap_end < env.now:  # the gap passed meanwhile
                    self.waits.starved += int(env.now) - max(since, self._gap_end)
            entry = self.doing = self._entries.popleft()
            if self._room:
                self._tell_room()
            if isinstance(entry, RecordEntry):
                if self.fault is None:
                    yield env.timeout(self._event_cost)
                    self._tell(entry)
                entry.mark.succeed()
            elif self.fault is None:
                if env.now < self._gap_end:
                    yield env.timeout(self._gap_end - env.now)
                if isinstance(entry, WaitEntry):
                    yield from self._wait(entry)
                else:
                    yield from self._work(entry)
            else:
                yield env.timeout(0)  # let others see the fault before the queue runs empty
            self.doing = None
            if not self._entries:
                drained, self._drained = self._drained, []
                for event in drained:
                    event.succeed()

    def _wait(self, entry: WaitEntry) -> Process:
        since = int(self._env.now)
        if not entry.mark.processed:
            yield entry.mark
        self._tell(entry)
        yield self._env.timeout(self._event_cost)
        self.waits.waited += int(self._env.now) - since
        if entry.maker:
            self.waits.after += (entry.maker,)

    def _work(self, entry: Entry) -> Process:
        self._tell(entry)
        try:
            yield from self._worker(entry, self)
        except DeviceFaultError as fault:
            self.fault = fault
        self._gap_end = int(self._env.now) + self._gap

    def _tell(self, entry: Entry) -> None:
        if self._observer is not None:
            self._observer.started(entry, self.number)

    def _tell_room(self) -> None:
        waiting, self._room = self._room, []
        for limit, event in waiting:
            if len(self._entries) < limit:
                event.succeed()
            else:
                self._room.append((limit, event))


def turn(
    env: simpy.Environment, unit: simpy.PriorityResource, stream: Stream
) -> Generator[simpy.Event, Any, simpy.resources.resource.PriorityRequest]:
    """Wait for a channel of a unit: `with (yield from turn(…)):` holds it, the wait is noted."""
    request = unit.request(stream.priority)
    asked = int(env.now)
    yield request
    stream.waits.queued += int(env.now) - asked
    return request
