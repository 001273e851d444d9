"""Which buffers of a plan lie at a model's inputs and outputs, when the caller's memory is used.

A model reads its inputs and writes its outputs where the caller says. Views of an input, and of
the tensor that becomes an output, move with it. What cannot move (an output that is an input, a
constant, or the same tensor as another output) is copied at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.program.executable import Executable, Lifetime


@dataclass(frozen=True)
class Placement:
    """Where inputs and outputs are found in a plan.

    Attributes:
        moves: input or output → the buffers that lie there.
        copies: outputs that are copied, and what they are a copy of.
        kept: (first, last) byte of the plan that is still needed; both 0 when nothing is.
    """

    moves: dict[str, tuple[str, ...]]
    copies: tuple[tuple[str, str], ...]
    kept: tuple[int, int]


def placement(exe: Executable) -> Placement:
    """The placement of an executable's inputs and outputs."""
    roots = {name: _root(exe, name) for name in exe.buffers if name not in exe.constants}
    owners = {name: name for name in exe.inputs}
    copies = []
    for name in exe.outputs:
        root = roots.get(name, "")
        if not root or root in owners:
            copies.append((name, name))
        else:
            owners[root] = name
    moves: dict[str, list[str]] = {owner: [] for owner in owners.values()}
    for name, root in roots.items():
        if root in owners:
            moves[owners[root]].append(name)
    moved = {name for names in moves.values() for name in names}
    touched = {n for t in exe.tasks for n in (*t.inputs, *t.outputs) if n}
    touched |= exe.constants.keys() | {name for name, _ in copies}
    left = [exe.buffers[n] for n in touched if n not in moved and n in exe.buffers]
    first = min((b.address for b in left), default=0)
    last = max((b.address + b.nbytes for b in left), default=0)
    return Placement({k: tuple(v) for k, v in moves.items()}, tuple(copies), (first, last))


def _root(exe: Executable, name: str) -> str:
    """The tensor of which `name` is a view, or itself; '' for a view of a constant."""
    address = exe.buffers[name].address
    slots = [slot for slot in exe.memory.lifetimes if slot.address == address]
    if any(name in slot.names for slot in slots):
        return name
    readers = [i for i, task in enumerate(exe.tasks) if name in task.inputs]
    at = readers[0] if readers else len(exe.tasks)
    for slot in slots:
        if _in_use(slot, at, len(exe.tasks)):
            made = {o: i for i, task in enumerate(exe.tasks) for o in task.outputs}
            before = [n for n in slot.names if made.get(n, -1) < at]
            return before[-1] if before else ""
    return ""


def _in_use(slot: Lifetime, at: int, end: int) -> bool:
    """Whether a slot is touched by the task `at`; at the end: whether it stays."""
    return at in slot.users if at < end else slot.last >= end - 1
