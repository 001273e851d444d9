"""A thread of a program on the host: its calls cost time, queue entries, and wait for streams."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import simpy

from npusim.machine.device import Device
from npusim.machine.entries import CopyEntry, Entry
from npusim.machine.loaded import LoadedExecutable
from npusim.timeline import HostUse, Span

Calls = Generator[simpy.Event, Any, None]  #: what a host program yields from


class HostThread:
    """One thread of the host.

    Life cycle: construct, give `device.env.process` a generator that yields from its calls, run
    the device, `use`. Every call first spends what it costs, then acts.

    Args:
        keep: keep what it did as spans. track: their track's name.
    """

    def __init__(self, device: Device, keep: bool = True, track: str = "host") -> None:
        self.device = device
        self._keep, self._track = keep, track
        self._spans: list[Span] = []
        self._busy = self._full = self._waiting = 0
        chip = device.chip
        self._call = chip.cycles(chip.host.call)
        self._graph_launch = chip.cycles(chip.host.graph_launch)
        self._sync = chip.cycles(chip.host.sync)
        self._depth = chip.scheduler.queue_depth
        self._end = device.now

    def use(self, exec: str = "graph", sink_size: int = 1) -> HostUse:
        """What its time went to, from its first call to its last."""
        return HostUse(
            exec, sink_size, self._end, self._busy, self._full, self._waiting, tuple(self._spans)
        )

    def submit(self, number: int, entry: Entry, cycles: int | None = None) -> Calls:
        """Queue an entry on a stream, when there is room.

        Args:
            cycles: that the call takes (default: `host.call`).
        """
        since = self.device.now
        yield self.device.stream(number).room(self._depth)
        self._full += self._since("queue full", since)
        yield from self.spend(self._call if cycles is None else cycles, entry.name)
        self.device.submit(number, entry)

    def copy(self, number: int, entry: CopyEntry) -> Calls:
        """aclrtMemcpyAsync: returns at once for pinned memory, after the copy for pageable."""
        yield from self.submit(number, entry)
        if entry.pageable:  # the last entry of its stream, as this thread queued it
            yield from self.synchronize((number,), entry.name)

    def launch_graph(self, loaded: LoadedExecutable, step: int = 0) -> Calls:
        """Launch a model whose tasks are on the device: one call for all of them."""
        yield from self.spend(self._graph_launch, f"launch {loaded.exe.name}")
        for number, entry in loaded.entries(self.device.env, step):
            self.device.submit(number, entry)

    def synchronize(self, numbers: Iterable[int], name: str) -> Calls:
        """Wait until streams are over."""
        waited = list(numbers)
        yield from self.wait((self.device.stream(n).drained() for n in waited), name)
        for number in waited:
            self.device.synchronised(number)

    def wait(self, events: Iterable[simpy.Event], name: str) -> Calls:
        """Wait for events of the device, and notice them at the cost of `host.sync`."""
        since = self.device.now
        for event in events:
            if not event.processed:
                yield event
        yield self.device.env.timeout(self._sync)
        self._waiting += self._since(f"synchronize {name}", since)

    def spend(self, cycles: int, name: str) -> Calls:
        """Work on the host."""
        since = self.device.now
        yield self.device.env.timeout(cycles)
        self._busy += self._since(name, since)

    def _since(self, name: str, since: int) -> int:
        """Note what was done since then; gives the cycles."""
        self._end = self.device.now
        if self._keep and self._end > since:
            self._spans.append(Span(self._track, name, since, self._end))
        return self._end - since
