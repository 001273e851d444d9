"""Copies and fills: which way, through which engine, and what they do to memory."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, SupportsInt

import numpy as np

from npusim.machine.entries import CopyEntry, CopyKind, PrefetchEntry
from npusim.machine.stream import Stream as Queue
from npusim.runtime.codes import Code
from npusim.runtime.effects import CopyBytes, FillBytes
from npusim.runtime.errors import InvalidUseError, TaskFailedError

if TYPE_CHECKING:
    from npusim.runtime.device import Device
    from npusim.runtime.stream import Stream

Place = SupportsInt | np.ndarray  #: an address, device memory, or an array of the host's


class Way(IntEnum):
    """Which way a copy goes; ACL's numbers."""

    HOST_TO_HOST = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
    DEFAULT = 4


_KINDS = {
    Way.HOST_TO_DEVICE: CopyKind.H2D,
    Way.DEVICE_TO_HOST: CopyKind.D2H,
    Way.DEVICE_TO_DEVICE: CopyKind.D2D,
}


class _Effect(Protocol):
    def begin(self) -> None: ...

    def finish(self) -> None: ...


class Transfers:
    """Copies of one device's."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._own: Queue | None = None
        self._count = 0

    def copy(self, target: Place, source: Place, nbytes: int, way: Way = Way.DEFAULT) -> None:
        """Copy beside all streams; returns when it is over.

        Raises:
            InvalidUseError: the addresses do not fit the way.
            TaskFailedError: memory not allocated.
        """
        device = self._device
        to, origin = address_of(target), address_of(source)
        way = self._way(to, origin, way, nbytes)
        if way is Way.HOST_TO_HOST:
            device.call("memcpy")
            device.clock.spend(nbytes / device.chip.host.memcpy, "memcpy")
            device.pinned.view(to, nbytes)[...] = device.pinned.view(origin, nbytes)
            return
        self._now(self._entry(to, origin, nbytes, way), "memcpy")

    def copy_async(
        self,
        target: Place,
        source: Place,
        nbytes: int,
        stream: Stream,
        way: Way = Way.DEFAULT,
    ) -> None:
        """Queue a copy. With pageable host memory it returns when the copy is over.

        Raises:
            InvalidUseError: the addresses do not fit the way; from host to host.
        """
        device = self._device
        to, origin = address_of(target), address_of(source)
        way = self._way(to, origin, way, nbytes)
        if way is Way.HOST_TO_HOST:
            raise InvalidUseError(
                Code.RT_FEATURE_NOT_SUPPORT,
                "an asynchronous copy from host to host",
                "copies of which one side is device memory",
                "use memcpy, or numpy",
            )
        entry = self._entry(to, origin, nbytes, way)
        stream.put(entry, device.chip.host.call, "memcpy_async")
        if entry.pageable:
            device.await_queue(stream.queue, "pageable memcpy_async")

    def fill(self, target: Place, value: int, nbytes: int, stream: Stream | None) -> None:
        """Fill device memory with a byte, on a stream, or at once.

        Raises:
            InvalidUseError: host memory, or a count below 0. TaskFailedError: memory not allocated.
        """
        device, to = self._device, address_of(target)
        if nbytes < 0 or not device.memory.owns(to):
            raise _misfit(f"a memset of {nbytes} B at {to:#x}", "device memory")
        name = self._name("memset")
        effect = FillBytes(name, device.memory, (to, nbytes), value)
        entry = CopyEntry(name, CopyKind.D2D, nbytes, None, to, effect=effect)
        if stream is None:
            self._now(entry, "memset")
        else:
            stream.put(entry, device.chip.host.call, "memset_async")

    def prefetch(self, source: Place, nbytes: int, stream: Stream) -> None:
        """Queue a prefetch of device memory into L2.

        Raises:
            InvalidUseError: host memory, or a count below 0.
        """
        device, origin = self._device, address_of(source)
        if nbytes < 0 or not device.memory.owns(origin):
            raise _misfit(f"a prefetch of {nbytes} B at {origin:#x}", "device memory")
        entry = PrefetchEntry(self._name("prefetch"), origin, nbytes)
        stream.put(entry, device.chip.host.call, "cmo_async")

    def entry(self, name: str, target: int, source: int, nbytes: int) -> CopyEntry:
        """A copy on the device, as a stream's entry."""
        effect = CopyBytes(name, self._device.memory, (source, nbytes), (target, nbytes))
        return CopyEntry(name, CopyKind.D2D, nbytes, source, target, effect=effect)

    def _entry(self, to: int, origin: int, nbytes: int, way: Way) -> CopyEntry:
        memory, pinned = self._device.memory, self._device.pinned
        name, kind = self._name("memcpy"), _KINDS[way]
        if kind is CopyKind.D2D:
            return self.entry(name, to, origin, nbytes)
        outward = kind is CopyKind.D2H
        host = to if outward else origin
        view = pinned.view(host, nbytes)
        inside = (origin, nbytes) if outward else (to, nbytes)
        effect = (
            CopyBytes(name, memory, inside, view)
            if outward
            else CopyBytes(name, memory, view, inside)
        )
        return CopyEntry(
            name,
            kind,
            nbytes,
            origin if outward else None,
            None if outward else to,
            not pinned.is_pinned(host),
            effect,
        )

    def _now(self, entry: CopyEntry, name: str) -> None:
        """Run an entry beside all streams, to its end."""
        device = self._device
        device.call(name)
        if self._own is None or self._own.fault is not None:
            number = device.chip.scheduler.max_streams  # no program's stream has it
            device.machine.destroy(number)
            self._own = device.machine.stream(number, counted=False)
        device.machine.submit(self._own.number, entry)
        device.await_queue(self._own, name)
        fault = self._own.fault
        if fault is not None:
            raise TaskFailedError(
                Code(fault.code), fault.what, "allocated device memory", "check the addresses"
            )
        device.memory.check_guards()

    def _way(self, to: int, origin: int, way: Way, nbytes: int) -> Way:
        owns = self._device.memory.owns
        found = Way(owns(to) * 1 + owns(origin) * 2)  # as the bits of ACL's numbers happen to be
        if nbytes < 0 or way not in (found, Way.DEFAULT):
            names = [f"{a:#x} ({'device' if owns(a) else 'host'})" for a in (origin, to)]
            raise _misfit(
                f"a copy of {nbytes} B, {way.name}, from {names[0]} to {names[1]}", way.name
            )
        return found

    def _name(self, what: str) -> str:
        self._count += 1
        return f"{what}_{self._count}"


def address_of(place: Place) -> int:
    """The address of an argument."""
    return place.ctypes.data if isinstance(place, np.ndarray) else int(place)


def _misfit(what: str, allowed: str) -> InvalidUseError:
    return InvalidUseError(
        Code.RT_PARAM_INVALID, what, f"addresses for {allowed}", "check the addresses"
    )
