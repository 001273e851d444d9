"""A compiled model in device memory: where its buffers are, and its tasks as stream entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import simpy

from npusim.machine.entries import Entry, Range, RecordEntry, TaskEntry, WaitEntry
from npusim.machine.functional import FunctionalExecutor
from npusim.program.executable import Executable, Task


@dataclass(eq=False)
class LoadedExecutable:
    """An executable whose memory plan starts at a device address.

    Attributes:
        executor: computes the tasks as they complete; None for timing only.
        base: device address of the plan's start.
        moved: buffers that are elsewhere, by name (a model's inputs and outputs in memory of the
            caller's): their device addresses.
    """

    exe: Executable
    executor: FunctionalExecutor | None = None
    base: int = 0
    moved: Mapping[str, int] = field(default_factory=dict)
    _ranges: dict[str, Range] = field(default_factory=dict, init=False, repr=False)

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

    def reads(self, task: Task) -> list[Range]:
        """Device ranges that a task reads."""
        return [self.range(n) for n in task.inputs if n]

    def writes(self, task: Task) -> list[Range]:
        """Device ranges that a task writes."""
        return [self.range(n) for n in task.outputs if n]
