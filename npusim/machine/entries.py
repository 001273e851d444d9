"""What a stream holds: tasks of compiled models, copies, other units' work, events, callbacks.

Entries are plain data. A stream runs them in order; who computes what they mean for the bytes of
memory is an `Effect`, begun when the entry starts and finished when it ends, in simulated time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import simpy

from npusim.program.executable import Task

if TYPE_CHECKING:
    from npusim.machine.loaded import LoadedExecutable

Range = tuple[int, int]  #: device address, bytes


class DeviceFaultError(Exception):
    """An entry failed on the device, as an AI Core exception does. Its stream stops there.

    Args:
        code: ACL's number for it (507015: AI Core exception). what: for the error's text.
    """

    def __init__(self, code: int, what: str) -> None:
        super().__init__(code, what)
        self.code, self.what = code, what


class Effect(Protocol):
    """What an entry does to memory."""

    def begin(self) -> None:
        """The entry starts to read."""

    def finish(self) -> None:
        """The entry ends: its results are in memory.

        Raises:
            DeviceFaultError: the entry cannot do what it should.
        """


class CopyKind(StrEnum):
    """Which way a copy goes; the names of msprof's MEMCPY_ASYNC tasks."""

    H2D = "host to device"
    D2H = "device to host"
    D2D = "device to device"


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """A task of a compiled model, in the memory that it was loaded to.

    Attributes:
        step: which execution of the model this belongs to.
    """

    task: Task
    home: LoadedExecutable
    step: int = 0

    @property
    def name(self) -> str:
        """The task's."""
        return self.task.name


@dataclass(frozen=True, slots=True)
class CopyEntry:
    """A copy over PCIe or by SDMA.

    Attributes:
        source, target: device addresses, None on the host's side; a copy on the device without a
            source fills its target.
        pageable: the host's side is not pinned, so that it goes through a staging buffer.
    """

    name: str
    kind: CopyKind
    nbytes: int
    source: int | None = None
    target: int | None = None
    pageable: bool = False
    effect: Effect | None = None


@dataclass(frozen=True, slots=True)
class PrefetchEntry:
    """Bytes of device memory into L2, by SDMA."""

    name: str
    source: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class UnitEntry:
    """Work of a unit beside the AI Cores: DVPP's decoder (JPEGD) and image unit (VPC).

    Attributes:
        unit: one of the chip's units; cycles: that it takes one of its channels.
        reads, writes: device memory.
    """

    name: str
    op_type: str
    unit: str
    cycles: int
    reads: tuple[Range, ...] = ()
    writes: tuple[Range, ...] = ()
    effect: Effect | None = None


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """EVENT_RECORD: the mark fires when all before it in the stream is over."""

    name: str
    mark: simpy.Event


@dataclass(frozen=True, slots=True)
class WaitEntry:
    """EVENT_WAIT: what comes after it in the stream waits for the mark.

    Attributes:
        maker: the task whose end the mark tells, '' when it is no task of a compiled model.
    """

    name: str
    mark: simpy.Event
    maker: str = ""


@dataclass(frozen=True, slots=True)
class CallbackEntry:
    """A function that the stream calls in its turn, taking `cycles` of its time.

    Attributes:
        blocks: the stream stands still while the function runs the device on, as a function of the
            host's does that calls the runtime; otherwise it goes on beside it.
    """

    name: str
    call: Callable[[], None]
    cycles: int = 0
    blocks: bool = True


Entry = TaskEntry | CopyEntry | PrefetchEntry | UnitEntry | RecordEntry | WaitEntry | CallbackEntry


class Observer(Protocol):
    """Is told what happens on a device, in order; changes nothing."""

    def submitted(self, entry: Entry, number: int) -> None:
        """The host queued an entry on a stream."""

    def started(self, entry: Entry, number: int) -> None:
        """A stream begins an entry; a wait when it is over, a record just before its mark fires."""

    def synchronised(self, number: int) -> None:
        """The host has seen the end of all that was queued on a stream."""

    def event_synchronised(self, mark: simpy.Event) -> None:
        """The host has seen a mark fire."""

    def host_access(self, what: str, reads: Iterable[Range], writes: Iterable[Range]) -> None:
        """The host touches device memory itself."""
