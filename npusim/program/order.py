"""Which task is over before which begins: the order that streams and events make.

Sets of tasks are bits of an int: bit i is the i-th task of the executable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from npusim.errors import GraphError


class Ordered(Protocol):
    """What the order of a task depends on (see `npusim.program.executable.Task`)."""

    @property
    def name(self) -> str: ...
    @property
    def stream(self) -> int: ...
    @property
    def waits(self) -> tuple[int, ...]: ...
    @property
    def records(self) -> int | None: ...


def recorders(tasks: Sequence[Ordered]) -> dict[int, int]:
    """Event → the task that records it.

    Raises:
        GraphError: two tasks record one event, or a task waits for one that none records.
    """
    found: dict[int, int] = {}
    for i, task in enumerate(tasks):
        if task.records is None:
            continue
        if task.records in found:
            raise GraphError(
                f"event {task.records} is recorded by {tasks[found[task.records]].name!r} and "
                f"by {task.name!r}",
                "one task that records an event",
                "give each its own event",
            )
        found[task.records] = i
    for task in tasks:
        for event in task.waits:
            if event not in found:
                raise GraphError(
                    f"task {task.name!r} waits for event {event}, which no task records",
                    f"events {', '.join(map(str, sorted(found))) or '(none)'}",
                    "let the task that it waits for record the event",
                )
    return found


def predecessors(tasks: Sequence[Ordered]) -> list[list[int]]:
    """Per task, the one before it in its stream and those whose events it waits for.

    Raises:
        GraphError: see `recorders`.
    """
    made_by = recorders(tasks)
    last: dict[int, int] = {}
    out = []
    for i, task in enumerate(tasks):
        before = [last[task.stream]] if task.stream in last else []
        out.append([*before, *(made_by[event] for event in task.waits)])
        last[task.stream] = i
    return out


def ordered_before(tasks: Sequence[Ordered]) -> list[int]:
    """Per task, the set of tasks that are over before it starts.

    Raises:
        GraphError: tasks wait for each other in a circle, or for nothing (see `recorders`).
    """
    direct = predecessors(tasks)
    before: list[int | None] = [None] * len(tasks)
    for i in range(len(tasks)):
        trail = [i]  # depth first, without recursion: chains are long
        while trail:
            at = trail[-1]
            if before[at] is not None:
                trail.pop()
                continue
            missing = [p for p in direct[at] if before[p] is None]
            if not missing:
                before[at] = union((before[p] or 0) | 1 << p for p in direct[at])
                trail.pop()
            elif missing[0] in trail:
                circle = trail[trail.index(missing[0]) :]
                names = " → ".join(tasks[t].name for t in reversed(circle))
                raise GraphError(
                    f"tasks wait for each other in a circle: {names}",
                    "events that are recorded before they are waited for",
                    "remove one of the waits",
                )
            else:
                trail.append(missing[0])
    return [b or 0 for b in before]


def union(sets: Iterator[int]) -> int:
    """All members of several sets."""
    total = 0
    for each in sets:
        total |= each
    return total


def members(tasks: int) -> Iterator[int]:
    """The tasks of a set, first to last."""
    while tasks:
        low = tasks & -tasks
        yield low.bit_length() - 1
        tasks ^= low
