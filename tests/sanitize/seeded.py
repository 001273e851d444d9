"""Bugs to plant: changes to the instruction streams of real kernels, and a way to launch them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import pytest

from npusim.chip import load_chip
from npusim.chip.spec import ChipSpec
from npusim.ir import DType, EpilogueStep, Layout
from npusim.kernels.cross_core import CROSS
from npusim.kernels.lang import Kernel
from npusim.kernels.queues import Alloc
from npusim.machine import launch as launching
from npusim.machine.launch import run_tile_level
from npusim.program.isa import Instr, Kind, Pipe
from npusim.program.kernel import (
    KernelArgs,
    Member,
    OperandSpec,
    Plan,
    choose_plan,
    get_kernel,
)
from npusim.program.region import Region
from npusim.sanitize import Finding, kernel_level, sanitize_launch

CHIPS = {n: load_chip(n) for n in ("toy", "ascend910a", "ascend910b2")}
F16, F32 = DType.FLOAT16, DType.FLOAT32

#: instruction → what is issued in its place
Mutation = Callable[[Instr], list[Instr]]


class Mutated:
    """A program with a mutation; errors still name the kernel's own lines."""

    def __init__(self, program: Any, mutate: Mutation) -> None:
        self._program, self._mutate = program, mutate
        self._ready: list[Instr] = []

    def __iter__(self) -> Iterator[Instr]:
        return self

    def __next__(self) -> Instr:
        while not self._ready:
            self._ready = self._mutate(next(self._program))
        return self._ready.pop(0)

    @property
    def gi_frame(self) -> Any:
        """Where the kernel stands."""
        return self._program.gi_frame

    @property
    def gi_yieldfrom(self) -> Any:
        """The generator that it is in."""
        return self._program.gi_yieldfrom


@dataclass(frozen=True)
class Launch:
    """A launch of a real kernel."""

    chip: ChipSpec
    kernel: str
    args: KernelArgs

    @property
    def plan(self) -> Plan:
        """As the compiler would choose it."""
        return choose_plan(self.kernel, self.args, self.chip)

    def mutated(self, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Mutation]) -> None:
        """From here on, every core runs the kernel with a mutation of its own."""
        real = get_kernel(self.kernel)

        class Broken(real):  # type: ignore[valid-type, misc]
            @classmethod
            def members(cls, *args: Any, **named: Any) -> list[Member]:
                return [
                    Member(m.context, Mutated(m.program, make()), m.count)
                    for m in real.members(*args, **named)
                ]

        for module in (kernel_level, launching):
            monkeypatch.setattr(module, "get_kernel", lambda name: Broken)

    def reordered(
        self, monkeypatch: pytest.MonkeyPatch, reorder: Callable[[list[Instr]], list[Instr]]
    ) -> None:
        """From here on, the instructions of every core come in another order."""
        real = get_kernel(self.kernel)

        class Broken(real):  # type: ignore[valid-type, misc]
            @classmethod
            def members(cls, *args: Any, **named: Any) -> list[Member]:
                return [
                    Member(m.context, iter(reorder(list(m.program))), m.count)
                    for m in real.members(*args, **named)
                ]

        monkeypatch.setattr(kernel_level, "get_kernel", lambda name: Broken)

    def in_one_phase(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From here on, a block runs the programs of all phases without SyncAll between."""
        real, phases = get_kernel(self.kernel), self.plan.phases

        class Broken(real):  # type: ignore[valid-type, misc]
            @classmethod
            def members(
                cls, args: KernelArgs, chip: ChipSpec, plan: Plan, block: int, phase: int,
                functional: bool,
            ) -> list[Member]:  # fmt: skip
                parts = [
                    real.members(args, chip, plan, block, i, functional) for i in range(phases)
                ]
                assert all(len(members) == 1 for members in parts)
                program = chain(*(members[0].program for members in parts))
                return [Member(parts[0][0].context, program)]

        monkeypatch.setattr(kernel_level, "get_kernel", lambda name: Broken)

    def findings(self, phases: int | None = None) -> list[Finding]:
        """What the sanitizer says (with another number of phases)."""
        plan = self.plan if phases is None else replace(self.plan, phases=phases)
        return sanitize_launch(self.chip, self.kernel, self.args, plan)

    def outputs(self) -> list[np.ndarray]:
        """The numbers at tile level, in simulated time."""
        rng = np.random.default_rng(0)
        inputs = [
            None if o is None else rng.standard_normal(o.storage_shape).astype(o.dtype.np)
            for o in self.args.inputs
        ]
        results = [np.zeros(o.storage_shape, o.dtype.np) for o in self.args.outputs]
        run_tile_level(self.chip, self.kernel, self.args, self.plan, [*inputs, *results])
        return results


def flags_between(src: Pipe, dst: Pipe) -> Callable[[Instr], bool]:
    """set_flag and wait_flag from one pipe to another of the same core."""
    return lambda i: i.kind >= Kind.SET and i.flag[:2] == (src, dst) and i.flag[2] < CROSS


def signals(ins: Instr) -> bool:
    """Flags between cores."""
    return bool(ins.kind >= Kind.SET and ins.flag[2] >= CROSS)


def dropped(which: Callable[[Instr], bool], first: int = 0, last: int = 1 << 30) -> Mutation:
    """Without the instructions of a kind, from the `first` to the `last`."""
    count = iter(range(1 << 30))

    def mutate(ins: Instr) -> list[Instr]:
        return [] if which(ins) and first <= next(count) <= last else [ins]

    return mutate


def without_barriers(ins: Instr) -> list[Instr]:
    """No pipe barriers."""
    ins.serial = False
    return [ins]


def changed(which: Callable[[Instr], bool], change: Callable[[Any], Any]) -> Mutation:
    """The effects of instructions of a kind, changed."""

    def mutate(ins: Instr) -> list[Instr]:
        if not which(ins) or ins.effect is None:
            return [ins]
        other = copy.copy(ins)
        other.effect = change(ins.effect)
        return [other]

    return mutate


def shifted(name: str, nbytes: int) -> Callable[[Any], Any]:
    """An effect whose regions of that field (or the sides of its pairs) lie `nbytes` further."""

    def move(r: Region) -> Region:
        return Region(r.space, r.operand, r.offset + nbytes, r.shape, r.strides, r.dtype)

    def change(effect: Any) -> Any:
        assert is_dataclass(effect)
        new = copy.copy(effect)
        if name in {f.name for f in fields(effect)}:
            setattr(new, name, move(getattr(effect, name)))
        elif hasattr(effect, "pairs"):
            at = ("dst", "src").index(name)
            new.pairs = [
                tuple(move(r) if i == at else r for i, r in enumerate(pair))
                for pair in effect.pairs
            ]
        return new

    return change


def unpadded(effect: Any) -> Any:
    """A copy that leaves the padding of its tile as it is."""
    new = copy.copy(effect)
    new.zero = None
    return new


def shrink_allocations(monkeypatch: pytest.MonkeyPatch, space: str, nbytes: int) -> None:
    """Allocations of a buffer lie `nbytes` closer together than they are long."""
    real = Kernel.alloc

    def alloc(self: Kernel, where: str, size: int) -> Alloc:
        if where != space:
            return real(self, where, size)
        found = real(self, where, max(32, size - nbytes))
        return Alloc(where, found.offset, size)

    monkeypatch.setattr(Kernel, "alloc", alloc)


# -- launches --------------------------------------------------------------------------------


def early(which: Callable[[Instr], bool]) -> Callable[[list[Instr]], list[Instr]]:
    """Instructions of a kind come before the last instruction of their pipe."""

    def reorder(program: list[Instr]) -> list[Instr]:
        out: list[Instr] = []
        for ins in program:
            at = len(out)
            if which(ins):
                at = max((i for i, x in enumerate(out) if x.pipe == ins.pipe), default=at)
            out.insert(at, ins)
        return out

    return reorder


def _launch(
    chip: str, kernel: str, op: str, shapes: list[OperandSpec | None], out: OperandSpec,
    *steps: EpilogueStep, **attrs: Any,
) -> Launch:  # fmt: skip
    args = KernelArgs(op, tuple(shapes), (out,), tuple(sorted(attrs.items())), steps)
    return Launch(CHIPS[chip], kernel, args)


def softmax(chip: str, rows: int = 600, columns: int = 100) -> Launch:
    """Rows in UB."""
    x = OperandSpec((rows, columns), F16)
    return _launch(chip, "Softmax", "Softmax", [x], x, axis=-1)


def add(chip: str, n: int = 60000) -> Launch:
    """MTE2 → V → MTE3, double buffered."""
    x = OperandSpec((n,), F16)
    return _launch(chip, "Elementwise", "Add", [x, x], x)


def matmul(chip: str, m: int = 100, k: int = 200, n: int = 90) -> Launch:
    """All pipes of the cube, ragged tiles."""
    a, b, y = (OperandSpec(s, F16, Layout.FRACTAL_NZ) for s in ((m, k), (k, n), (m, n)))
    return _launch(chip, "MatMul", "MatMul", [a, b], y)


def matmul_nd(chip: str) -> Launch:
    """Operands as they come, zero-filled where the last fractal of K is not full."""
    a, b, y = (OperandSpec(s, F16) for s in ((50, 70), (70, 90), (50, 90)))
    return _launch(chip, "MatMul", "MatMul", [a, b], y)


def conv(chip: str) -> Launch:
    """img2col."""
    x = OperandSpec((1, 40, 12, 12), F16, Layout.NC1HWC0)
    w = OperandSpec((50, 40, 3, 3), F16, Layout.FRACTAL_Z)
    y = OperandSpec((1, 50, 12, 12), F16, Layout.NC1HWC0)
    return _launch(chip, "Conv2D", "Conv", [x, w], y, group=1, strides=(1, 1), pads=(1,) * 4,
                   dilations=(1, 1))  # fmt: skip


def norm(chip: str) -> Launch:
    """Statistics, parameters kept in UB."""
    x, g = OperandSpec((40, 200), F16), OperandSpec((200,), F16)
    return _launch(chip, "Norm", "LayerNormalization", [x, g, g], x, axis=-1, epsilon=1e-5)
