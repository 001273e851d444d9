"""Events: marks in streams that other streams, and the host, wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npusim.machine.entries import RecordEntry, WaitEntry
from npusim.runtime.codes import Code
from npusim.runtime.errors import InvalidUseError
from npusim.runtime.managed import Managed

if TYPE_CHECKING:
    from npusim.runtime.device import Device
    from npusim.runtime.stream import Stream


class Event(Managed):
    """An event of a device. Made by `Device.event`.

    A record arms it anew: waits that are queued from then on are for that record. A wait that is
    queued before any record waits for the first one.

    Attributes:
        number: for errors. waits: marks that streams were told to wait for.
    """

    def __init__(self, device: Device, number: int, counted: bool) -> None:
        self.number, self.counted = number, counted
        self.device = device
        self._mark: Any = None
        self._recorded = False  # a record of the present mark is queued
        self._time = -1
        self._waits: list[Any] = []

    def _leave(self, failed: bool) -> None:
        self.device.destroy_event(self)

    @property
    def name(self) -> str:
        """For errors: "event 3"."""
        return f"event {self.number}"

    @property
    def recorded(self) -> bool:
        """Whether a record was queued since the event was made or reset."""
        return self._recorded

    @property
    def complete(self) -> bool:
        """Whether the last record is over, by the host's clock."""
        self.device.catch_up()
        over = self._recorded and bool(self._mark.processed)
        if over:
            self.device.machine.event_synchronised(self._mark)
        return over

    @property
    def waited(self) -> bool:
        """Whether every wait that was queued is over, by the host's clock."""
        self.device.catch_up()
        return all(mark.processed for mark in self._waits)

    @property
    def cycle(self) -> int:
        """When the last record was over, in cycles.

        Raises:
            InvalidUseError: it is not.
        """
        if not self.complete:
            raise InvalidUseError(
                Code.RT_EVENT_TIMESTAMP_INVALID,
                f"the time of {self.name}, which is {'queued' if self._recorded else 'unrecorded'}",
                "events whose record is over",
                "record it, and synchronize with the stream first",
            )
        return self._time

    def record(self, stream: Stream) -> None:
        """Queue the event: it fires when all before it in the stream is over."""
        if self._mark is None or self._recorded:
            self._new_mark()
        self._recorded = True
        stream.put(RecordEntry(self.name, self._mark), self.device.chip.host.call, "record_event")

    def wait(self, stream: Stream) -> None:
        """Let what is queued on the stream from now on wait for the event."""
        if self._mark is None:
            self._new_mark()
        self._waits = [m for m in self._waits if not m.processed] + [self._mark]
        stream.put(
            WaitEntry(self.name, self._mark), self.device.chip.host.call, "stream_wait_event"
        )

    def reset(self) -> None:
        """Forget the record: waits that are queued from now on are for the next one."""
        self.device.call("reset_event")
        self._mark, self._recorded, self._time = None, False, -1

    def synchronize(self, timeout: float | None = None) -> None:
        """Wait on the host until the last record is over.

        Args:
            timeout: seconds.

        Raises:
            InvalidUseError: nothing is recorded.
            SyncTimeoutError: it took longer, or never will be over.
        """
        if not self._recorded:
            raise InvalidUseError(
                Code.RT_PARAM_INVALID,
                f"a synchronization with {self.name}, which is not recorded",
                "events that were recorded",
                "record the event on a stream first",
            )
        self.device.await_marks(
            [self._mark], f"synchronize {self.name}", timeout, Code.RT_EVENT_SYNC_TIMEOUT
        )
        self.device.machine.event_synchronised(self._mark)

    def elapsed_ms(self, start: Event) -> float:
        """Milliseconds from another event to this one.

        Raises:
            InvalidUseError: one of them is not over, or they are the other way round.
        """
        cycles = self.cycle - start.cycle
        if cycles < 0:
            raise InvalidUseError(
                Code.RT_EVENT_TIMESTAMP_REVERSAL,
                f"the time from {start.name} to {self.name}, which is earlier",
                "the earlier event first",
                "exchange the two",
            )
        return self.device.chip.seconds(cycles) * 1e3

    def _new_mark(self) -> None:
        mark = self._mark = self.device.machine.env.event()
        self._recorded, self._time = False, -1
        mark.callbacks.append(self._fired)

    def _fired(self, mark: Any) -> None:
        if mark is self._mark:
            self._time = self.device.machine.now
