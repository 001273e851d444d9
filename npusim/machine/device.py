"""The device: streams of entries on one chip, over any length of time.

Streams are SimPy processes that share cores, L2, HBM, the host link and other units. Entries are
submitted at once, by a model of the host (`host`), or by a program that calls the runtime: the
device then runs as far as the program's own clock. What kernels of several streams share, and how,
is in `sharing`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import simpy

from npusim.chip.reuse import Reuse
from npusim.chip.spec import ChipSpec
from npusim.errors import UnsupportedError
from npusim.machine.copies import CopyRunner
from npusim.machine.dvpp import DvppRunner
from npusim.machine.entries import (
    CallbackEntry,
    CopyEntry,
    Entry,
    Observer,
    PrefetchEntry,
    TaskEntry,
    UnitEntry,
)
from npusim.machine.record import UnitWork, unit_record
from npusim.machine.recorder import Recorder
from npusim.machine.sharing import Shared
from npusim.machine.stream import Process, Stream, Waits
from npusim.machine.tasks import Detail, TaskRunner, Watch
from npusim.machine.watchdog import deadlock
from npusim.timeline import OpRecord


class Device:
    """A chip with its streams. Life cycle: construct, `submit` and `run…` in any order.

    Args:
        recorder: takes every record as it is made.
        trace: names of tasks whose core pipes are kept as spans.
        progress: called with the number of records made so far, after each.
        watch: called with every kernel launch and what it finds in memory.
        observer: told of entries as they are queued and begun.
        reuse: kernels that were timed on other devices.

    Attributes:
        env: the simulation's; its time is in cycles. events: engine events so far.
        streams: by number. observer: as given.
    """

    def __init__(
        self,
        chip: ChipSpec,
        recorder: Recorder,
        detail: Detail = "fast",
        trace: Sequence[str] = (),
        progress: Callable[[int], None] | None = None,
        watch: Watch | None = None,
        observer: Observer | None = None,
        reuse: Reuse | None = None,
    ) -> None:
        self.chip, self.recorder = chip, recorder
        self.env = simpy.Environment()
        self.streams: dict[int, Stream] = {}
        self._beside: set[int] = set()  # streams that are not counted
        self._steps = 0
        self._progress = progress
        self.observer = observer
        self._shared = Shared(self.env, chip)
        traced = frozenset(trace)
        self._tasks = TaskRunner(self.env, chip, self._shared, detail, traced, watch, reuse)
        self._copies = CopyRunner(self.env, chip, self._shared)
        self._dvpp = DvppRunner(self.env, chip, self._shared)
        scheduler = chip.scheduler
        self._costs = chip.cycles(scheduler.gap), chip.cycles(scheduler.event)

    @property
    def now(self) -> int:
        """The device's time, in cycles."""
        return int(self.env.now)

    @property
    def events(self) -> int:
        """Engine events so far, those of launches simulated by themselves among them."""
        return self._steps + self._tasks.events

    @property
    def counted(self) -> int:
        """Streams that count among those of which the chip has so many."""
        return len(self.streams) - len(self._beside)

    def stream(self, number: int, priority: int = 0, counted: bool = True) -> Stream:
        """The stream of a number, made when it is new.

        Args:
            priority: 0 is served first; counts when the stream is made.
            counted: among the streams of which the chip has so many.

        Raises:
            UnsupportedError: the chip has no more streams.
        """
        found = self.streams.get(number)
        if found is not None:
            return found
        most = self.chip.scheduler.max_streams
        if counted and self.counted >= most:
            raise UnsupportedError(
                f"one stream more than {most}",
                f"at most {most} at a time (scheduler.max_streams of {self.chip.name})",
                "destroy streams that are no longer needed",
            )
        made = Stream(self.env, number, priority, self._costs, self._work, self.observer)
        self.streams[number] = made
        if not counted:
            self._beside.add(number)
        self._shared.several = len(self.streams) > 1
        return made

    def destroy(self, number: int) -> None:
        """Forget a stream; what is still queued there runs, and is waited for by nobody."""
        self.streams.pop(number, None)
        self._beside.discard(number)

    def submit(self, number: int, entry: Entry) -> None:
        """Queue an entry on a stream, at the device's time."""
        if self.observer is not None:
            self.observer.submitted(entry, number)
        self.stream(number).put(entry)

    def synchronised(self, number: int) -> None:
        """The host has seen the end of all that was queued on a stream."""
        if self.observer is not None:
            self.observer.synchronised(number)

    def event_synchronised(self, mark: simpy.Event) -> None:
        """The host has seen a mark fire."""
        if self.observer is not None:
            self.observer.event_synchronised(mark)

    def run_until(self, cycle: int) -> None:
        """Go on to a time; nothing happens when it is past."""
        env = self.env
        while env.peek() <= cycle:
            env.step()
            self._steps += 1
        if env.now < cycle:
            env.run(until=cycle)

    def step(self) -> bool:
        """Let the next thing happen; False when there is none."""
        if self.env.peek() == float("inf"):
            return False
        self.env.step()
        self._steps += 1
        return True

    def run_while(self, event: simpy.Event, until: float = float("inf")) -> bool:
        """Go on until an event has fired; False when it had not by the cycle `until`.

        Raises:
            DeadlockError: it never will, and there is no such cycle.
        """
        while not event.processed:
            if self.env.peek() > until:
                self.run_until(int(until))
                return False
            if not self.step():
                raise deadlock(self.chip.name, self.streams)
        return True

    def run(self, name: str = "") -> None:
        """Go on until nothing is left to do.

        Args:
            name: of what runs, for errors.

        Raises:
            DeadlockError: entries are left that cannot run.
        """
        env = self.env
        while env.peek() != float("inf"):
            env.step()
            self._steps += 1
        if any(stream.pending for stream in self.streams.values()):
            raise deadlock(name or self.chip.name, self.streams)

    def _work(self, entry: Entry, stream: Stream) -> Process:
        """Run an entry that takes a unit, and keep its record."""
        if isinstance(entry, TaskEntry):
            record = yield from self._tasks.run(entry, stream)
        elif isinstance(entry, CopyEntry):
            record = yield from self._copies.run(entry, stream)
        elif isinstance(entry, PrefetchEntry):
            record = yield from self._copies.prefetch(entry, stream)
        elif isinstance(entry, UnitEntry):
            record = yield from self._dvpp.run(entry, stream)
        else:
            assert isinstance(entry, CallbackEntry)
            record = yield from self._callback(entry, stream)
        if stream.waits != _NOTHING:
            stream.waits = Waits()
        self.recorder.add(record)
        if self._progress is not None:
            self._progress(self.recorder.count)

    def _callback(
        self, entry: CallbackEntry, stream: Stream
    ) -> Generator[simpy.Event, Any, OpRecord]:
        start = self.now
        yield self.env.timeout(entry.cycles)
        if entry.blocks:
            entry.call()
        else:
            self.env.process(self._later(entry))
        work = UnitWork(entry.name, "CALLBACK", "CALLBACK", "HOST", "host")
        return unit_record(work, stream, start, self.now)

    def _later(self, entry: CallbackEntry) -> Process:
        yield self.env.timeout(0)
        entry.call()


_NOTHING = Waits()
