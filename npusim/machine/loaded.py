"""A compiled model in device memory: where its buffers are, and its tasks as stream entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import simpy

from npusim.machine.entries import Entry, Range, RecordEntry, TaskEntry, WaitEntry
from npusim.machine.functional import FunctionalExecutor
from npusim.machine.gm import Footprint
from npusim.program.executable import Executable, Task


class MemoryChecks(Protocol):
    """What knows the device's memory, page by page."""

    def check(self, who: str, reads: Sequence[Range], writes: Sequence[Range]) -> None:
        """Whether `who` may touch these ranges.

        Raises:
            DeviceFaultError: some of it is not allocated.
        """

    def page_bytes(self, address: int) -> int:
        """Size of the page at an address."""


@dataclass(eq=False)
class LoadedExecutable:
    """An executable whose memory plan starts at a device address.

    Attributes:
        executor: computes the tasks as they complete; None for timing only.
        base: device address of the plan's start.
        moved: buffers that are elsewhere, by name (a model's inputs and outputs in memory of the
            caller's): their device addresses.
        memory: looks after the ranges that tasks touch; None for a plan that has the device to
            itself, in huge pages.
        footprints: of launches, by task; made as they are needed.
    """

    exe: Executable
    executor: FunctionalExecutor | None = None
    base: int = 0
    moved: Mapping[str, int] = field(default_factory=dict)
    memory: MemoryChecks | None = None
    footprints: dict[str, Footprint] = field(default_factory=dict, init=False, repr=False)
    _ranges: dict[str, Range] = field(default_factory=dict, init=False, repr=False)

    def check(self, task: Task) -> None:
        """Whether the task may touch its operands now.

        Raises:
            DeviceFaultError: it may not.
        """
        if self.memory is not None:
            self.memory.check(task.name, self.reads(task), self.writes(task))

    def range(self, name: str) -> Range:
        """Device address and bytes of a buffer."""
        found = self._ranges.get(name)
        if found is None:
            buffer = self.exe.buffers[name]
            found = self.moved.get(name, self.base + buffer.address), buffer.nbytes
            self._ranges[name] = found
        return found

    @property
    def makers(self) -> dict[int, str]:
        """Event number → the task that records it."""
        return {t.records: t.name for t in self.exe.tasks if t.records is not None}

    def entries(self, env: simpy.Environment, step: int = 0) -> Iterator[tuple[int, Entry]]:
        """(stream, entry) for one execution, in submission order.

        Args:
            step: executions before this one; each has marks of its own.
        """
        marks: dict[int, simpy.Event] = {}
        makers = self.makers
        for task in self.exe.tasks:
            for event in task.waits:
                mark = marks.setdefault(event, env.event())
                yield task.stream, WaitEntry(f"event {event}", mark, makers.get(event, ""))
            yield task.stream, TaskEntry(task, self, step)
            if task.records is not None:
                mark = marks.setdefault(task.records, env.event())
                yield task.stream, RecordEntry(f"event {task.records}", mark)

    def join(self, env: simpy.Environment) -> Iterator[tuple[int, Entry]]:
        """(stream, entry) that keep the next execution behind this one, on all its streams.

        Both use the same memory: without this, a stream that is through early would overwrite
        what another still reads.
        """
        first, *others = sorted({task.stream for task in self.exe.tasks})
        for number in others:
            mark = env.event()
            yield number, RecordEntry(f"end of stream {number}", mark)
            yield first, WaitEntry(f"end of stream {number}", mark)
        if others:
            go = env.event()
            yield first, RecordEntry("end of step", go)
            for number in others:
                yield number, WaitEntry("end of step", go)

    def reads(self, task: Task) -> list[Range]:
        """Device ranges that a task reads."""
        return [self.range(n) for n in task.inputs if n]

    def writes(self, task: Task) -> list[Range]:
        """Device ranges that a task writes."""
        return [self.range(n) for n in task.outputs if n]
