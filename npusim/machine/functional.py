"""Operator-level execution: numpy on whole tensors, at their planned addresses."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from copy import copy

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import TensorType
from npusim.machine.arena import Arena
from npusim.machine.convolutions import Convolutions
from npusim.machine.launch import run_tile_level
from npusim.ops import compute_node, get_operator
from npusim.program.executable import Executable, Task

Observer = Callable[[Task, Arena], None]
Seen = dict[str, np.ndarray]  #: operand → its bytes at some time

TASKS, FLOPS = 64, 1e9  #: that wait for each other at most; 1 GFLOP are some 10 ms


class FunctionalExecutor:
    """Executes tasks on an arena in the order in which the timeline says they complete.

    Life: `complete` is told of each; small ones wait for each other, since a processor that turns
    from simulating to computing and back finds its caches full of the other. `catch_up` computes
    what waits, and is the end of a run. In memory that others use too (`at`), none waits.

    Args:
        tile_level: run AI Core kernels instruction by instruction on real bytes.
        observe: called after each task (to compare intermediate tensors).

    Attributes:
        computing_s: seconds spent on numbers so far.
    """

    def __init__(
        self,
        exe: Executable,
        chip: ChipSpec,
        arena: Arena,
        tile_level: bool = False,
        observe: Observer | None = None,
    ) -> None:
        self._exe, self._chip, self._arena = exe, chip, arena
        self._tile_level = tile_level
        self._observe = observe
        self.computing_s = 0.0
        self._due: list[Task] = []
        self._at_once = tile_level
        self._convolutions = Convolutions(exe)
        if not tile_level:
            self._convolutions.prepare(arena)

    def at(
        self, moved: Mapping[str, np.ndarray], data: np.ndarray | None = None
    ) -> FunctionalExecutor:
        """The same in other memory, as `Arena.at`."""
        other = copy(self)
        other._arena = self._arena.at(moved, data)
        other.computing_s, other._due, other._at_once = 0.0, [], True
        other._convolutions = self._convolutions.elsewhere()
        return other

    def look(self, task: Task) -> Seen:
        """The operands as they are when a task starts; constants, which stay, left out."""
        self.catch_up()
        names = {n for n in task.inputs if n and n not in self._exe.constants}
        return {n: self._arena.raw(n).copy() for n in sorted(names)}

    def complete(self, task: Task, seen: Seen | None = None) -> None:
        """A task is over: compute it, now or together with those to come.

        Args:
            seen: as for `execute`.
        """
        if seen is not None or self._at_once:
            self.catch_up()
            return self.execute(task, seen)
        self._due.append(task)
        if len(self._due) >= TASKS or sum(t.flops for t in self._due) >= FLOPS:
            self.catch_up()

    def catch_up(self) -> None:
        """Compute the tasks that wait."""
        due, self._due = self._due, []
        for task in due:
            self.execute(task)

    def execute(self, task: Task, seen: Seen | None = None) -> None:
        """Compute a task: read its inputs from the arena, write its outputs there.

        Args:
            seen: the operands at the task's start, where others run beside it. What changed since
                is read in part as it was and in part as it is, since a kernel reads from its start
                to its end: tasks that lack an event between them give wrong numbers.
        """
        started = time.perf_counter()
        changed = {}
        for name, old in (seen or {}).items():
            new = self._arena.raw(name)
            if not np.array_equal(old, new):
                changed[name] = new.copy()
                half = (old.size // 2) & ~31
                new[:half] = old[:half]
        self._compute(task)
        for name, new in changed.items():
            self._restore(name, new, task)
        self.computing_s += time.perf_counter() - started

    def _restore(self, name: str, value: np.ndarray, task: Task) -> None:
        """Put an operand's bytes back, but for those that the task wrote."""
        raw = self._arena.raw(name)
        mask = np.ones(value.size, bool)
        for out in (self._arena.raw(o) for o in task.outputs if o):
            offset = out.ctypes.data - raw.ctypes.data
            mask[max(0, offset) : max(0, offset + out.size)] = False
        raw[mask] = value[mask]

    def _compute(self, task: Task) -> None:
        if self._tile_level and task.call is not None:
            names = (*task.inputs, *task.outputs)
            operands = [self._arena.storage(n) if n else None for n in names]
            call = task.call
            run_tile_level(self._chip, call.kernel, call.args, call.plan, operands)
        else:
            self._operator_level(task)
        if self._observe is not None:
            self._observe(task, self._arena)

    def _operator_level(self, task: Task) -> None:
        arena, buffers = self._arena, self._exe.buffers
        if self._convolutions.run(task, arena):
            return
        ins = [buffers[n] if n else None for n in task.inputs]
        outs = [buffers[n] for n in task.outputs]
        node = task.node
        layouts = {b.layout for b in (*ins, *outs) if b is not None}
        elementwise = get_operator(node.op_type, node.name).elementwise
        if elementwise and len(layouts) == 1:
            # Element i depends on elements i only: the device arrays will do as they are.
            x = [arena.storage(n) if n else None for n in task.inputs]
            types = [TensorType(b.storage_shape, b.dtype) for b in outs]
            for name, value in zip(task.outputs, compute_node(node, x, types), strict=True):
                arena.storage(name)[...] = value
            return
        x = [arena.read(n) if n else None for n in task.inputs]
        types = [TensorType(b.shape, b.dtype) for b in outs]
        results = compute_node(node, x, types)
        for name, value in zip(task.outputs, results, strict=True):
            arena.write(name, np.asarray(value))
