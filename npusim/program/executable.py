"""`Executable`: which tasks, where in memory, on which stream. The second waist.

Plain data: it can be printed, compared and saved. It names kernels, never holds code; numbers of
constants stay lazy until the machine loads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np

from npusim.errors import GraphError
from npusim.ir import Constant, DType, Layout, Node
from npusim.ir.layout import storage_bytes, storage_shape
from npusim.program.kernel import KernelArgs, Plan
from npusim.program.order import members, ordered_before

GM_ALIGN = 512  #: device addresses are multiples of this (best GM access: 512 B)


class TaskKind(StrEnum):
    """What runs a task."""

    AI_CORE = "AI_CORE"
    AI_CPU = "AI_CPU"


@dataclass(frozen=True)
class Buffer:
    """A tensor in device memory: `address` is a byte offset in the arena."""

    name: str
    address: int
    shape: tuple[int, ...]
    dtype: DType
    layout: Layout = Layout.ND

    @cached_property
    def nbytes(self) -> int:
        """Bytes, layout padding included."""
        return storage_bytes(self.shape, self.layout, self.dtype)

    @cached_property
    def storage_shape(self) -> tuple[int, ...]:
        """Shape of the array in the arena."""
        return storage_shape(self.shape, self.layout, self.dtype)


@dataclass(frozen=True)
class KernelCall:
    """A kernel launch: kernel by name, what it computes, how it is tiled."""

    kernel: str
    args: KernelArgs
    plan: Plan


@dataclass(frozen=True)
class Task:
    """One entry of a stream.

    Attributes:
        node: the operator, for numpy semantics (its inputs/outputs name buffers).
        inputs, outputs: buffer names, '' for absent inputs, in the node's order.
        call: the kernel launch (None on the AI CPU).
        flops: 2 × MACs + vector operations of the operator; macs: the MACs alone.
        compute_dtype: element type that decides the peak of the roofline.
        uses_cube: the work is matrix work that the cube does.
        waits: events that must be recorded before the task may start (EVENT_WAIT before it).
        records: the event recorded when it is over (EVENT_RECORD after it).
    """

    name: str
    op_type: str
    kind: TaskKind
    stream: int
    node: Node
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    call: KernelCall | None
    flops: int
    macs: int
    compute_dtype: DType
    uses_cube: bool
    waits: tuple[int, ...] = ()
    records: int | None = None


@dataclass(frozen=True)
class Lifetime:
    """A piece of device memory in use by activations, one after the other.

    Attributes:
        names: the tensors in it, in order: results in place of operands share one piece.
        address, nbytes: where, aligned.
        first, last: positions in `Executable.tasks` between which it is in use, both included.
        users: positions of the tasks that touch it: over several streams, the first of them to
            start and the last to end are not always `first` and `last`.
    """

    names: tuple[str, ...]
    address: int
    nbytes: int
    first: int
    last: int
    users: tuple[int, ...] = ()


@dataclass(frozen=True)
class MemoryPlan:
    """Sizes of device memory, in bytes, and who is alive when.

    Attributes:
        lower_bound: the most activation bytes that are alive at one time.
    """

    arena_bytes: int
    weight_bytes: int
    activation_bytes: int
    peak_bytes: int
    lower_bound: int = 0
    lifetimes: tuple[Lifetime, ...] = ()

    def peak(self) -> tuple[int, list[Lifetime]]:
        """The task with the most bytes alive, and what is alive there, largest first."""
        most, at = 0, 0
        for start in sorted({life.first for life in self.lifetimes}):
            total = sum(x.nbytes for x in self.alive(start))
            if total > most:
                most, at = total, start
        return at, sorted(self.alive(at), key=lambda x: -x.nbytes)

    def alive(self, task: int) -> list[Lifetime]:
        """What is in use while a task runs."""
        return [life for life in self.lifetimes if life.first <= task <= life.last]


@dataclass
class Executable:
    """A compiled model.

    Attributes:
        tasks: in submission order.
        buffers: every tensor in device memory by name.
        constants: buffer name → its value (packed to the buffer's layout and type on load).
        inputs, outputs: graph interface, as buffer names with logical shapes.
        notes: what the compiler wants the user to know (AI CPU fallbacks, refused fusions …).
        assumed: elements of inputs that shapes follow from; a run must be given the same.
    """

    name: str
    chip: str
    precision: str
    tasks: list[Task]
    buffers: dict[str, Buffer]
    constants: dict[str, Constant]
    inputs: list[str]
    outputs: list[str]
    memory: MemoryPlan
    notes: list[str] = field(default_factory=list)
    assumed: dict[str, np.ndarray] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        return (
            f"Executable({self.name!r} for {self.chip}, {self.precision}, {len(self.tasks)} tasks, "
            f"{self.memory.peak_bytes / 1e6:.1f} MB)"
        )


def verify_executable(exe: Executable) -> Executable:
    """Check the executable's own rules and return it.

    Raises:
        GraphError: a task names an unknown buffer, a buffer lies outside the arena, events do not
            add up, or tasks of two streams touch the same memory in no order.
    """
    for task in exe.tasks:
        for name in (*task.inputs, *task.outputs):
            if name and name not in exe.buffers:
                raise GraphError(
                    f"task {task.name!r} names buffer {name!r}", "planned buffers", "plan it"
                )
    for b in exe.buffers.values():
        if b.address % GM_ALIGN or b.address + b.nbytes > exe.memory.arena_bytes:
            raise GraphError(
                f"buffer {b.name!r} at {b.address} of {b.nbytes} B",
                f"{GM_ALIGN} B aligned addresses within {exe.memory.arena_bytes} B",
                "correct the memory plan",
            )
    several = len({task.stream for task in exe.tasks}) > 1
    if several or any(task.waits or task.records is not None for task in exe.tasks):
        _check_races(exe, ordered_before(exe.tasks))
    return exe


def _check_races(exe: Executable, before: list[int]) -> None:
    """Refuse tasks in no order of which one writes what the other touches."""
    reads = [[exe.buffers[n] for n in t.inputs if n] for t in exe.tasks]
    writes = [[exe.buffers[n] for n in t.outputs if n] for t in exe.tasks]
    for i, task in enumerate(exe.tasks):
        for j in members(~before[i] & ((1 << i) - 1)):
            if before[j] >> i & 1:
                continue
            shared = _overlap(writes[i], [*reads[j], *writes[j]]) or _overlap(writes[j], reads[i])
            if shared:
                raise GraphError(
                    f"tasks {exe.tasks[j].name!r} on stream {exe.tasks[j].stream} and "
                    f"{task.name!r} on stream {task.stream} both touch {shared}, in no order",
                    "an event between tasks of different streams that share memory",
                    "record an event after the first and wait for it before the second",
                )


def _overlap(a: list[Buffer], b: list[Buffer]) -> str:
    """The names of two buffers that share bytes, '' when none do."""
    for x in a:
        for y in b:
            if x.address < y.address + y.nbytes and y.address < x.address + x.nbytes:
                return f"{x.name!r} and {y.name!r}" if x.name != y.name else repr(x.name)
    return ""
