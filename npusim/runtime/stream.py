"""Streams: what is queued on one runs in order."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from npusim.machine.entries import CallbackEntry, Entry
from npusim.machine.stream import Stream as Queue
from npusim.runtime.codes import Code
from npusim.runtime.errors import TaskFailedError

if TYPE_CHECKING:
    from npusim.runtime.device import Device


class Stream:
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

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.device.destroy_stream(self, force=error is not None)

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
        return not self.queue.pending

    def put(self, entry: Entry, seconds: float, name: str) -> None:
        """Queue an entry; a full queue holds the host up.

        Args:
            seconds: what the call costs the host.
        """
        self.ready(seconds, name)
        self.queue.put(entry)

    def ready(self, seconds: float, name: str) -> None:
        """Wait for room in the queue, then spend what the call costs the host."""
        device, depth = self.device, self.device.chip.scheduler.queue_depth
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
        mark = self.queue.drained()
        name = f"synchronize stream {self.number}"
        self.device.await_marks([mark], name, timeout, Code.RT_STREAM_SYNC_TIMEOUT)
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
