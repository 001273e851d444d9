"""`Device`: a simulated NPU that a Python program drives call by call.

    with Device("ascend910b2") as device:
        stream, x = device.stream(), device.malloc(1 << 20)
        device.memcpy_async(x, host, host.nbytes, stream)
        stream.synchronize()
        print(device.timeline)

Every call costs the host's clock what it costs a host; the device runs as far as that clock before
anything is queued, and a synchronisation moves the clock to the end of what is awaited. Host and
device overlap as they do on hardware, and the times are the same on every run.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from npusim.chip import ChipSpec, load_chip
from npusim.errors import DeadlockError
from npusim.machine.device import Device as Machine
from npusim.machine.entries import Observer
from npusim.machine.recorder import KeepAll
from npusim.machine.stream import Stream as Queue
from npusim.program.executable import Executable
from npusim.runtime.codes import Code
from npusim.runtime.errors import InvalidUseError, ResourceLimitError, SyncTimeoutError
from npusim.runtime.event import Event
from npusim.runtime.host import HostClock
from npusim.runtime.managed import Managed
from npusim.runtime.memory import ALIGN, DeviceMemory
from npusim.runtime.pages import MemPolicy
from npusim.runtime.pinned import HostMemory
from npusim.runtime.stream import Stream
from npusim.runtime.transfers import Place, Transfers
from npusim.timeline import Timeline, check_timeline

if TYPE_CHECKING:
    from npusim.runtime.model import Model

_log = logging.getLogger("npusim.runtime")
_SHOWN = 8  #: streams and events in a report


@dataclass(frozen=True)
class DeviceBuffer:
    """Device memory of `Device.malloc`; `int()` gives its address."""

    device: Device
    address: int
    nbytes: int

    def __int__(self) -> int:
        return self.address

    def free(self) -> None:
        """Give it back.

        Raises:
            InvalidUseError: it is free. TaskFailedError: something was written behind it.
        """
        self.device.free(self.address)


class Device(Managed):
    """A device with its streams, events and memory. Life cycle: construct, use, `close`.

    Args:
        chip: a chip, or the name or file of one.
        overrides: "key=value" changes to a chip that is given by name.
        number: of the device, for errors.
        clock: the host's, where several devices share it.
        functional: models compute numbers; False times them only.
        observer: told of what is queued, begun and waited for, as
            `npusim.sanitize.StreamSanitizer`, which finds races between streams.

    Attributes:
        machine: the simulated hardware. default: the stream 0.
    """

    def __init__(
        self,
        chip: ChipSpec | str = "ascend910a",
        *,
        overrides: Sequence[str] = (),
        number: int = 0,
        clock: HostClock | None = None,
        functional: bool = True,
        observer: Observer | None = None,
    ) -> None:
        self.chip = load_chip(chip, overrides) if isinstance(chip, str) else chip
        self.number, self.functional = number, functional
        self.clock = clock or HostClock(self.chip)
        self.memory = DeviceMemory(self.chip.hbm.size, f"{self.chip.name} {number}", number)
        self.pinned = HostMemory()
        self.machine = Machine(self.chip, KeepAll(), observer=observer)
        self.transfers = Transfers(self)
        self._streams: dict[int, Stream] = {}
        self._events: dict[int, Event] = {}
        self._made = self._counted = 0
        self.default = self.stream()

    def _leave(self, failed: bool) -> None:
        """Streams and events end with the device; memory that is left is reported."""
        self._streams, self._events = {self.default.number: self.default}, {}
        self.close()

    # -- streams and events ----------------------------------------------------------------

    def stream(self, priority: int = 0) -> Stream:
        """A new stream.

        Args:
            priority: 0 (served first) to 7; others count as the nearest of these.

        Raises:
            ResourceLimitError: the chip has no more streams.
        """
        self.call("create_stream")
        made = Stream(self, self.machine.stream(self.free_number(), min(7, max(0, priority))))
        self._streams[made.number] = made
        return made

    def free_number(self) -> int:
        """The number of a stream that may be made.

        Raises:
            ResourceLimitError: there is none.
        """
        most = self.chip.scheduler.max_streams
        for number in range(most):
            if number not in self.machine.streams:
                return number
        raise ResourceLimitError(
            Code.RT_NO_STREAM_RESOURCE,
            f"one stream more than {most}",
            f"at most {most} at a time (scheduler.max_streams of {self.chip.name})",
            "destroy streams that are no longer needed",
        )

    @property
    def streams_left(self) -> int:
        """How many more streams there may be."""
        return self.chip.scheduler.max_streams - self.machine.counted

    def destroy_stream(self, stream: Stream, *, force: bool = False) -> None:
        """Wait for a stream, then give it back.

        Args:
            force: do not wait.

        Raises:
            SyncTimeoutError: it cannot end.
        """
        name = f"destroy stream {stream.number}"
        if force:
            self.call(name)
        else:
            self.await_queue(stream.queue, name)
        self._streams.pop(stream.number, None)
        self.machine.destroy(stream.number)

    def event(self, counted: bool = True) -> Event:
        """A new event.

        Args:
            counted: among those of which the chip has so many; events for times alone are not.

        Raises:
            ResourceLimitError: the chip has no more events.
        """
        self.call("create_event")
        if counted and self.events_left < 1:
            most = self.chip.scheduler.max_events
            raise ResourceLimitError(
                Code.RT_NO_EVENT_RESOURCE,
                f"one event more than {most}",
                f"at most {most} at a time (scheduler.max_events of {self.chip.name})",
                "destroy events that are no longer needed",
            )
        made = self._events[self._made] = Event(self, self._made, counted)
        self._made += 1
        self._counted += counted
        return made

    @property
    def events_left(self) -> int:
        """How many more events there may be."""
        return self.chip.scheduler.max_events - self._counted

    def destroy_event(self, event: Event) -> None:
        """Give an event back."""
        self.call("destroy_event")
        if self._events.pop(event.number, None) is not None:
            self._counted -= event.counted

    # -- memory ----------------------------------------------------------------------------

    def malloc(
        self,
        nbytes: int,
        policy: MemPolicy = MemPolicy.HUGE_FIRST,
        *,
        guard: int = ALIGN,
        by: str = "",
    ) -> DeviceBuffer:
        """Device memory, zero at first.

        Args:
            guard: bytes behind it that nothing may write to.
            by: who asks, for maps and leaks; by default the caller's file and line.

        Raises:
            InvalidUseError: no bytes asked for. OutOfMemoryError: with a map of what is allocated.
        """
        self.call("malloc")
        made = self.memory.allocate(nbytes, policy, by or _caller(), guard=guard)
        return DeviceBuffer(self, made.address, nbytes)

    def free(self, address: int | DeviceBuffer) -> None:
        """Give device memory back, at once: tasks that still use it will fail.

        Raises:
            InvalidUseError: no allocation starts there.
            TaskFailedError: something was written behind it.
        """
        self.call("free")
        self.memory.free(int(address), _caller())

    def malloc_host(self, nbytes: int) -> np.ndarray:
        """Pinned host memory, as an array of bytes.

        Raises:
            InvalidUseError: no bytes asked for.
        """
        self.call("malloc_host")
        return self.pinned.view(self.pinned.allocate(nbytes), nbytes)

    def free_host(self, memory: np.ndarray | int) -> None:
        """Give pinned memory back.

        Raises:
            InvalidUseError: no pinned memory starts there.
        """
        self.call("free_host")
        self.pinned.free(memory if isinstance(memory, int) else memory.ctypes.data)

    def memcpy(self, target: Place, source: Place, nbytes: int) -> None:
        """Copy and wait for the end; the way is told by the addresses.

        Raises:
            InvalidUseError: memory that cannot be copied so.
            TaskFailedError: memory that is not allocated.
        """
        self.transfers.copy(target, source, nbytes)

    def memcpy_async(self, target: Place, source: Place, nbytes: int, stream: Stream) -> None:
        """Queue a copy. From or to pageable host memory it returns when the copy is over.

        Raises:
            InvalidUseError: memory that cannot be copied so.
        """
        self.transfers.copy_async(target, source, nbytes, stream)

    def memset(self, target: Place, value: int, nbytes: int, stream: Stream | None = None) -> None:
        """Fill device memory with a byte; with a stream, queue that.

        Raises:
            InvalidUseError: no device memory. TaskFailedError: memory that is not allocated.
        """
        self.transfers.fill(target, value, nbytes, stream)

    def prefetch(self, source: Place, nbytes: int, stream: Stream) -> None:
        """Queue a prefetch of device memory into L2.

        Raises:
            InvalidUseError: no device memory.
        """
        self.transfers.prefetch(source, nbytes, stream)

    # -- models ----------------------------------------------------------------------------

    def load(self, exe: Executable) -> Model:
        """Load a compiled model: its weights and its workspace are allocated.

        Raises:
            OutOfMemoryError: they do not fit. InvalidUseError: it is compiled for another chip.
        """
        from npusim.runtime.model import Model

        return Model(self, exe)

    # -- time ------------------------------------------------------------------------------

    def call(self, name: str) -> None:
        """A call that queues nothing passes on the host."""
        self.clock.spend(self.chip.host.call, name)
        self.catch_up()

    def catch_up(self) -> None:
        """Let the device run as far as the host's clock."""
        self.machine.run_until(self.clock.now)

    def await_marks(self, marks: list[Any], name: str, timeout: float | None, code: Code) -> None:
        """Wait on the host until things on the device have happened.

        Args:
            marks: the machine's events; timeout: seconds; code: of the error after that time.

        Raises:
            SyncTimeoutError: it took longer, or it never happens; then the error names who waits
                for whom.
        """
        self.catch_up()
        machine, clock = self.machine, self.clock
        until = float("inf") if timeout is None else clock.now + self.chip.cycles(timeout)
        try:
            over = all(machine.run_while(mark, until) for mark in marks)
        except DeadlockError as error:
            raise SyncTimeoutError(
                Code.RT_TASK_TIMEOUT, error.what, error.allowed, error.fix
            ) from None
        clock.wait(machine.now, name)
        clock.spend(self.chip.host.sync, name)
        if not over:
            raise SyncTimeoutError(
                code, f"{name} is not over after {timeout} s", "a longer time", "wait longer"
            )

    def await_queue(self, queue: Queue, name: str, timeout: float | None = None) -> None:
        """Wait on the host until all that is queued on a stream is over.

        Raises:
            SyncTimeoutError: see `await_marks`.
        """
        self.await_marks([queue.drained()], name, timeout, Code.RT_STREAM_SYNC_TIMEOUT)
        self.machine.synchronised(queue.number)

    def synchronize(self, timeout: float | None = None) -> None:
        """Wait until all streams are over.

        Args:
            timeout: seconds.

        Raises:
            TaskFailedError: a task failed.
            SyncTimeoutError: it took longer, or they cannot end.
        """
        streams = list(self._streams.values())
        marks = [stream.queue.drained() for stream in streams]
        self.await_marks(marks, "synchronize device", timeout, Code.RT_STREAM_SYNC_TIMEOUT)
        for stream in streams:
            self.machine.synchronised(stream.number)
            stream.raise_fault()

    @property
    def timeline(self) -> Timeline:
        """What is over so far, checked.

        Raises:
            AccountingError: time or bytes do not close.
        """
        ops, used = self.machine.recorder.ops(), self.clock.use()
        end = max((used.end, *(op.end for op in ops)))
        found = Timeline(self.chip.name, self.chip.clock, ops, end, host=used)
        return check_timeline(found, self.chip.hbm_rate, self.chip.l2_rate)

    # -- the end ---------------------------------------------------------------------------

    def leaks(self) -> list[str]:
        """What was allocated or created and not given back, a line each."""
        return list(self._leaks())

    def close(self) -> None:
        """Report what was not given back (to the logger "npusim.runtime"); then the device is
        gone."""
        found = self.leaks()
        if found:
            _log.warning("device %d: not given back:\n%s", self.number, "\n".join(found))

    def _leaks(self) -> Iterator[str]:
        for made in self.memory.live:
            yield f"  {made}"
        for address, nbytes in self.pinned.live:
            yield f"  {address:#x} {nbytes:>13,} B  pinned host memory"
        streams = [str(s.number) for s in self._streams.values() if s is not self.default]
        for what, numbers in (("streams", streams), ("events", [*map(str, self._events)])):
            if numbers:
                shown = ", ".join(numbers[:_SHOWN]) + (" …" if len(numbers) > _SHOWN else "")
                yield f"  {len(numbers)} {what}: {shown}"

    def require_chip(self, exe: Executable) -> None:
        """Whether an executable is for this chip.

        Raises:
            InvalidUseError: it is for another one.
        """
        if exe.chip != self.chip.name:
            raise InvalidUseError(
                Code.GE_FAILURE,
                f"{exe.name} is compiled for {exe.chip}, the device is {self.chip.name}",
                f"models compiled for {self.chip.name}",
                "compile it for the device's chip",
            )


def _caller() -> str:
    """File and line of the first caller that is not the package's."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("npusim."):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return "npusim"
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
