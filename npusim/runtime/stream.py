"""Streams: what is queued on one runs in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from npusim.machine.entries import CallbackEntry, Entry
from npusim.machine.stream import Stream as Queue
from npusim.runtime.codes import Code
from npusim.runtime.errors import InvalidUseError, TaskFailedError
from npusim.runtime.managed import Managed

if TYPE_CHECKING:
    from npusim.runtime.device import Device


class Stream(Managed):
    """A stream of a device. Made by `Device.stream`.

    Attributes:
        device: that it is of. queue: the machine's.
        beside: queues of models that run on this stream, for their faults.
    """

    def __init__(self, device: Device, queue: Queue) -> None:
        self.queue = queue
        self.beside: list[Queue] = []
        self.device = device
        self._errors: list[Exception] = []

    def _leave(self, failed: bool) -> None:
        self.device.destroy_stream(self, force=failed)

    @property
    def number(self) -> int:
        """In the timeline."""
        return self.queue.number

    @property
    def priority(self) -> int:
        """0 is served first."""
        return self.queue.priority

    @property
    def done(self) -> bool:
        """Whether all that was queued is over, by the host's clock."""
        self.device.catch_up()
        over = not self.queue.pending
        if over:
            self.device.machine.synchronised(self.number)
        return over

    def put(self, entry: Entry, seconds: float, name: str) -> None:
        """Queue an entry; a full queue holds the host up.

        Args:
            seconds: what the call costs the host.
        """
        self.ready(seconds, name)
        self.device.machine.submit(self.number, entry)

    def ready(self, seconds: float, name: str) -> None:
        """Wait for room in the queue, then spend what the call costs the host.

        Raises:
            InvalidUseError: the stream is destroyed.
        """
        device, depth = self.device, self.device.chip.scheduler.queue_depth
        if device.machine.streams.get(self.number) is not self.queue:
            raise InvalidUseError(
                Code.RT_INVALID_HANDLE,
                f"{name} on stream {self.number}, which is destroyed",
                "streams that exist",
                "make a new one",
            )
        device.catch_up()
        if len(self.queue) >= depth:
            device.machine.run_while(self.queue.room(depth))
            device.clock.wait_for_room(device.machine.now)
        device.clock.spend(seconds, name)
        device.catch_up()

    def callback(self, call: Callable[[], None], blocks: bool = True) -> None:
        """Call a function in the stream's turn; what it raises, `synchronize` raises.

        Args:
            blocks: what is behind it waits until the function has returned.
        """

        def guarded() -> None:
            try:
                call()
            except Exception as error:  # a task on the device cannot raise into the simulation
                self._errors.append(error)

        self.put(
            CallbackEntry(getattr(call, "__name__", "callback"), guarded, blocks=blocks),
            self.device.chip.host.call,
            "launch_callback",
        )

    def synchronize(self, timeout: float | None = None) -> None:
        """Wait on the host until all that is queued is over.

        Args:
            timeout: seconds.

        Raises:
            TaskFailedError: a task failed. SyncTimeoutError: it took longer, or never will be over.
        """
        self.device.await_queue(self.queue, f"synchronize stream {self.number}", timeout)
        self.raise_fault()

    def raise_fault(self) -> None:
        """Raise what went wrong on the stream, if anything did.

        Raises:
            TaskFailedError: a task failed; the stream runs nothing any more.
        """
        for queue in (self.queue, *self.beside):
            if queue.fault is not None:
                raise TaskFailedError(
                    Code(queue.fault.code),
                    f"stream {queue.number} stopped: {queue.fault.what}",
                    "tasks that touch allocated device memory only",
                    "free memory after the tasks that use it are over; check sizes and addresses",
                )
        if self._errors:
            raise self._errors.pop(0)
        self.device.memory.check_guards()

    def destroy(self) -> None:
        """Wait for the stream, then give it back.

        Raises:
            SyncTimeoutError: it cannot end.
        """
        self.device.destroy_stream(self)
