"""The memory plan: weights first, then activations by lifetime, 512 B aligned.

Lifetimes are over the execution order: from the task that makes a tensor to the last that reads
it. On several streams the order is partial: memory is free for a task when all that touch what is
there are over before it, by the order of its stream and by events. Tensors that share memory
(views, results in place of a dying operand) are one slot. Slots are placed one by one, each into
the smallest gap that is free during its whole life; of a few orders the one that needs least is
taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from npusim.chip.spec import ChipSpec
from npusim.compiler.lower import Lowered
from npusim.errors import UnsupportedError
from npusim.ir import Graph
from npusim.program.executable import GM_ALIGN, Buffer, Lifetime, MemoryPlan, Task
from npusim.program.kernel import get_kernel
from npusim.program.order import members, ordered_before


@dataclass(frozen=True)
class PlannedMemory:
    """Every tensor's place, and the sizes."""

    buffers: dict[str, Buffer]
    plan: MemoryPlan


def align(nbytes: int) -> int:
    """Rounded up to the GM alignment, at least one unit."""
    return max(1, -(-nbytes // GM_ALIGN)) * GM_ALIGN


@dataclass
class Slot:
    """Memory that tensors use one after the other.

    Attributes:
        size: aligned bytes; first, last: tasks between which it is in use, both included.
        names: tensors in it, in order.
        offset: where it was placed.
        users: the tasks that touch it, as bits; one past the last task for what must stay.
        before: the tasks that are over before it is first touched, as bits; None where tasks
            run one after the other, as they are listed.
    """

    size: int
    first: int
    last: int
    names: list[str] = field(default_factory=list)
    offset: int = 0
    users: int = 0
    before: int | None = None

    def meets(self, other: Slot) -> bool:
        """Whether both can be in use at one time."""
        if self.before is None or other.before is None:
            return self.first <= other.last and other.first <= self.last
        return bool(self.users & ~other.before and other.users & ~self.before)


def plan_memory(
    graph: Graph, lowered: Lowered, chip: ChipSpec, *, reuse: bool = True
) -> PlannedMemory:
    """Place every tensor that a task touches, and the graph's inputs and outputs.

    Args:
        reuse: False gives every tensor memory of its own, to see what reuse saves.

    Raises:
        UnsupportedError: the plan does not fit the chip's HBM.
    """
    root = lowered.alias
    named = {root.get(n, n) for t in lowered.tasks for n in (*t.inputs, *t.outputs) if n}
    named |= {root.get(n, n) for n in (*graph.inputs, *graph.outputs)}
    addresses: dict[str, int] = {}
    weights = 0
    for name in graph.constants:
        if name in named:
            addresses[name] = weights
            weights += align(graph.tensors[name].nbytes)
    slots = slots_of(graph, lowered) if reuse else separate_slots(graph, lowered)
    activations = place(slots)
    lifetimes = []
    for slot in slots:
        for name in slot.names:
            addresses[name] = weights + slot.offset
        lifetimes.append(
            Lifetime(
                tuple(slot.names), weights + slot.offset, slot.size, slot.first, slot.last,
                tuple(members(slot.users & ((1 << len(lowered.tasks)) - 1))),
            )
        )  # fmt: skip
    total = weights + activations
    plan = MemoryPlan(total, weights, activations, total, lower_bound(slots), tuple(lifetimes))
    if total > chip.hbm.size:
        raise _too_large(graph, lowered, chip, plan)
    buffers = {}
    for name in (*addresses, *root):
        base = root.get(name, name)
        if base in addresses:
            t = graph.tensors[name]
            buffers[name] = Buffer(name, addresses[base], t.shape, t.dtype, t.layout)
    return PlannedMemory(buffers, plan)


# -- lifetimes -----------------------------------------------------------------------------


def slots_of(graph: Graph, lowered: Lowered) -> list[Slot]:
    """The activations' slots, results in place of operands where that is legal."""
    first, last = _lifetimes(graph, lowered)
    users = _users(graph, lowered, first)
    before = _order(lowered)
    slots: dict[str, Slot] = {}
    taken_over: set[str] = set()
    makers = {o: t for t in lowered.tasks for o in t.outputs}
    fixed = {lowered.alias.get(o, o) for o in (*graph.outputs, *graph.inputs, *graph.constants)}

    def may_go(at: int, base: str) -> bool:
        """Nobody but the task touches the operand while it runs, or later."""
        if base in fixed or base in taken_over:
            return False
        if before is None:
            return last[base] == at
        return not users[base] & ~(1 << at) & ~before[at]

    for name in first:
        size = align(graph.tensors[name].nbytes)
        task = makers.get(name)
        dying = None
        if task is not None:
            dying = _replaced(graph, lowered.alias, task, name, partial(may_go, first[name]))
        if dying is not None and slots[dying].size == size:
            taken_over.add(dying)
            slot = slots[name] = slots[dying]
            slot.last = max(slot.last, last[name])
            slot.names.append(name)
            slot.users |= users[name]
        else:
            slot = slots[name] = Slot(size, first[name], last[name], [name], users=users[name])
            if before is not None:
                slot.before = before[first[name]] if task is not None else 0
    return list({id(s): s for s in slots.values()}.values())


def _order(lowered: Lowered) -> list[int] | None:
    """Per task, the tasks that are over before it; None where all run one after the other."""
    if len({task.stream for task in lowered.tasks}) < 2:
        return None
    return ordered_before(lowered.tasks)


def _users(graph: Graph, lowered: Lowered, names: Iterable[str]) -> dict[str, int]:
    """The tasks that touch each activation, as bits.

    Outputs are read after them all; an input that no task reads stays, as it is loaded all the
    same.
    """
    root = lowered.alias
    out = dict.fromkeys(names, 0)
    for i, task in enumerate(lowered.tasks):
        for name in (*task.inputs, *task.outputs):
            base = root.get(name, name)
            if base in out:
                out[base] |= 1 << i
    unread = [name for name in graph.inputs if not out.get(name)]
    for base in (*unread, *(root.get(name, name) for name in graph.outputs)):
        if base in out:
            out[base] |= 1 << len(lowered.tasks)
    return out


def separate_slots(graph: Graph, lowered: Lowered) -> list[Slot]:
    """Every activation with memory of its own for the whole run."""
    first, _ = _lifetimes(graph, lowered)
    end = max(0, len(lowered.tasks) - 1)
    return [Slot(align(graph.tensors[n].nbytes), 0, end, [n]) for n in first]


def _lifetimes(graph: Graph, lowered: Lowered) -> tuple[dict[str, int], dict[str, int]]:
    """First and last task of every activation (of its root, where it is a view), in order."""
    root, end = lowered.alias, max(0, len(lowered.tasks) - 1)
    first: dict[str, int] = {}
    last: dict[str, int] = {}

    def touch(name: str, at: int) -> None:
        name = root.get(name, name)
        if name and name not in graph.constants:
            first.setdefault(name, at)
            last[name] = max(at, last.get(name, 0))

    for name in graph.inputs:
        touch(name, 0)
    for i, task in enumerate(lowered.tasks):
        for name in (*task.inputs, *task.outputs):
            touch(name, i)
    for name in graph.outputs:
        touch(name, end)
    return first, last


def _replaced(
    graph: Graph, root: dict[str, str], task: Task, name: str, may_go: Callable[[str], bool]
) -> str | None:
    """An operand (its root) of the task whose memory its result may take.

    Only kernels that load a tile once, before they store over it, can work in place.

    Args:
        may_go: whether nobody wants a root after the task.
    """
    if task.call is None:
        return None
    out = graph.tensors[name]
    bases = [root.get(i, i) for i in task.inputs]
    for i in get_kernel(task.call.kernel).replaceable(task.call.args):
        operand, base = task.inputs[i], bases[i]
        if not base or bases.count(base) > 1 or not may_go(base):
            continue
        t = graph.tensors[operand]
        if t.storage_shape == out.storage_shape and t.dtype.size == out.dtype.size:
            return base
    return None


def lower_bound(slots: Iterable[Slot]) -> int:
    """The most bytes in use at one time, tasks one after the other: no plan needs less."""
    changes: dict[int, int] = {}
    for s in slots:
        changes[s.first] = changes.get(s.first, 0) + s.size
        changes[s.last + 1] = changes.get(s.last + 1, 0) - s.size
    live = most = 0
    for at in sorted(changes):
        live += changes[at]
        most = max(most, live)
    return most


# -- placement -----------------------------------------------------------------------------

_Order = Callable[[Slot], tuple[int, ...]]
#: Orders of placement: large first, long-lived first, large areas first, as they come.
_ORDERS: tuple[_Order, ...] = (
    lambda s: (-s.size, s.first),
    lambda s: (-(s.last - s.first), -s.size),
    lambda s: (-(s.last - s.first + 1) * s.size, s.first),
    lambda s: (s.first, -s.size),
)


_ROUNDS = 24  #: tries to better an order by placing first what ended highest


def place(slots: list[Slot]) -> int:
    """Give every slot an offset; returns the bytes that all need together."""
    best, chosen, floor = 0, None, lower_bound(slots)
    for order in _ORDERS:
        ordered = sorted(slots, key=order)
        for _ in range(_ROUNDS):
            top = _placed(ordered)
            if chosen is None or top < best:
                best, chosen = top, [s.offset for s in slots]
            if best <= floor:
                break
            highest = [s for s in ordered if s.offset + s.size == top]
            ordered = [*highest, *(s for s in ordered if s.offset + s.size < top)]
        if best <= floor:
            break
    for slot, offset in zip(slots, chosen or (), strict=True):
        slot.offset = offset
    return best


def _placed(ordered: list[Slot]) -> int:
    """Place slots in this order; returns the end of the last one."""
    done: list[Slot] = []  # by offset
    top = 0
    for slot in ordered:
        slot.offset = _gap(slot, [o for o in done if o.meets(slot)])
        top = max(top, slot.offset + slot.size)
        done.append(slot)
        done.sort(key=lambda s: s.offset)
    return top


def _gap(slot: Slot, others: list[Slot]) -> int:
    """Offset of the smallest gap between `others` that holds the slot, else after them all."""
    best: tuple[int, int] | None = None
    end = 0
    for other in others:
        room = other.offset - end
        if room >= slot.size and (best is None or room < best[0]):
            best = (room, end)
        end = max(end, other.offset + other.size)
    return end if best is None else best[1]


def _too_large(
    graph: Graph, lowered: Lowered, chip: ChipSpec, plan: MemoryPlan
) -> UnsupportedError:
    """What does not fit, by how much, at which op, and what would help."""
    over = plan.arena_bytes - chip.hbm.size
    at, live = plan.peak()
    op = lowered.tasks[at].name if lowered.tasks else graph.name
    names = ", ".join(n for life in live[:3] for n in life.names[-1:])
    helps = ["a smaller --batch", "a narrower --precision"]
    if plan.weight_bytes > chip.hbm.size:
        helps = ["a narrower --precision", "a chip with more memory"]
    return UnsupportedError(
        f"{graph.name} needs {plan.arena_bytes / 2**30:.2f} GiB of device memory, {chip.name} has "
        f"{chip.hbm.size / 2**30:.2f} GiB: {over / 2**20:.1f} MiB too much "
        f"at {op!r}, where {names} are alive",
        f"weights ({plan.weight_bytes / 2**30:.2f} GiB) and activations "
        f"({plan.activation_bytes / 2**30:.2f} GiB) within hbm.size",
        f"use {', '.join(helps)}, or --set hbm.size=…",
    )
