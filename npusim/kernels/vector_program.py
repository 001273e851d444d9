"""Straight-line vector programs over virtual UB registers.

`Builder` records vector instructions on SSA values. A value knows along which axes of the tile
it varies, so arithmetic on broadcast operands (per-channel vectors, scalars) stays small until
it meets a full tile; spreading it out then follows the hardware: a scalar is duplicated, a
per-row element fills one 32 B block that is read with block stride 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

F16 = np.dtype(np.float16)
F32 = np.dtype(np.float32)
I32 = np.dtype(np.int32)
BOOL = np.dtype(np.bool_)
FOLD = "fold "  #: how the steps that reduce a line begin

Pattern = tuple[bool, ...]  #: per axis of the tile: does the value vary along it?


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """A virtual register.

    Attributes:
        dtype: of its elements.
        varies: per axis of the tile.
        operand: GM operand that it is loaded from, -1 for results.
        is_mask: a compare mask (not bytes of a boolean tensor).
        spaced: each element stands at the start of its own 32 B block.
    """

    dtype: np.dtype
    varies: Pattern
    operand: int = -1
    is_mask: bool = False
    spaced: bool = False

    @property
    def full(self) -> bool:
        """Varies along every axis: as large as the tile."""
        return all(self.varies)


Arg = Value | float | int


@dataclass(frozen=True, slots=True)
class Step:
    """One vector instruction: dst = op(srcs…[, scalar])."""

    op: str
    dst: Value
    srcs: tuple[Value, ...]
    scalar: float | int | None = None


@dataclass(frozen=True)
class Program:
    """A finished program: steps in order, the operands it loads, its results in order.

    `slots` maps each full intermediate value to a register; `registers` are the bytes per
    element of each register.
    """

    steps: tuple[Step, ...]
    loads: tuple[Value, ...]
    results: tuple[Value, ...]
    slots: dict[Value, int]
    registers: tuple[int, ...]


class Builder:
    """Records steps. `work` is the type in which float arithmetic runs."""

    def __init__(self, work: np.dtype, rank: int) -> None:
        self.work = work
        self._rank = rank
        self._steps: list[Step] = []
        self._spread: dict[tuple[Value, Pattern], Value] = {}
        self._wide: dict[tuple[Value, np.dtype], Value] = {}

    def __call__(
        self,
        op: str,
        *srcs: Value,
        scalar: float | int | None = None,
        dtype: np.dtype | None = None,
        is_mask: bool = False,
    ) -> Value:
        """Record dst = op(srcs…[, scalar]); dst varies wherever a source does."""
        varies = tuple(any(axis) for axis in zip(*(s.varies for s in srcs), strict=True))
        spread = tuple(self.spread(s, varies) for s in srcs)
        return self._emit(op, varies, spread, scalar, dtype or srcs[0].dtype, is_mask)

    def _emit(
        self,
        op: str,
        varies: Pattern,
        srcs: tuple[Value, ...],
        scalar: float | int | None,
        dtype: np.dtype,
        is_mask: bool = False,
        spaced: bool = False,
    ) -> Value:
        dst = Value(np.dtype(dtype), varies, -1, is_mask, spaced)
        self._steps.append(Step(op, dst, srcs, scalar))
        return dst

    def by_scalar(self, op: str, x: Value, s: Value) -> Value:
        """x op s with a scalar that the instruction takes from a register: nothing is spread."""
        if any(s.varies):  # one element, as x then is
            return self(op, x, s)
        return self._emit(op, x.varies, (x, s), None, x.dtype)

    def spread(self, v: Value, varies: Pattern) -> Value:
        """`v` in a form that an instruction of the wider pattern can read."""
        if v.spaced or v.varies[-1] == varies[-1]:
            return v
        if not any(v.varies):
            key = (v, varies)
            if key not in self._spread:
                self._spread[key] = self._emit("copy", varies, (v,), None, v.dtype)
            return self._spread[key]
        key = (v, v.varies)
        if key not in self._spread:
            self._spread[key] = self._emit("brcb", v.varies, (v,), None, v.dtype, spaced=True)
        return self._spread[key]

    def fold(self, op: str, x: Value) -> Value:
        """`x` reduced by add, max, min or mul along the last two axes of the tile (its line)."""
        assert x.varies[-1], "nothing to reduce"
        return self._emit(f"{FOLD}{op}", (*x.varies[:-2], False, False), (x,), None, x.dtype)

    # -- types ---------------------------------------------------------------------------------

    def conv(self, v: Value, dtype: np.dtype) -> Value:
        """`v` in another type."""
        if v.dtype == dtype:
            return v
        key = (v, np.dtype(dtype))
        if key not in self._wide:
            self._wide[key] = self("conv", v, dtype=dtype)
        return self._wide[key]

    def num(self, a: Arg) -> Arg:
        """An operand of float arithmetic in the working type; int16 and int32 stay."""
        if not isinstance(a, Value) or a.dtype in (I32, np.dtype(np.int16)):
            return a
        if a.is_mask:
            a = self.to_bool(a)
        return self.conv(a, self.work)

    def const(self, value: float, like: Value) -> Value:
        """A register filled with a constant, as large as `like`."""
        return self._emit("dup", like.varies, (), value, like.dtype)

    def to_mask(self, v: Value) -> Value:
        """A boolean tensor's bytes as a compare mask: != 0."""
        if v.is_mask:
            return v
        x = self.conv(v, F16)
        return self("ne", x, self.const(0.0, x), dtype=BOOL, is_mask=True)

    def to_bool(self, v: Value) -> Value:
        """A compare mask as bytes: select 1 or 0, convert."""
        if not v.is_mask:
            return v
        like = Value(F16, v.varies)
        x = self("sel", v, self.const(1.0, like), self.const(0.0, like), dtype=F16)
        return self.conv(x, BOOL)

    # -- arithmetic on registers and constants ---------------------------------------------------

    def add(self, a: Arg, b: Arg) -> Any:
        """a + b."""
        return self._commutes("add", a, b)

    def mul(self, a: Arg, b: Arg) -> Any:
        """a · b."""
        return self._commutes("mul", a, b)

    def max(self, a: Arg, b: Arg) -> Any:
        """Elementwise maximum."""
        return self._commutes("max", a, b)

    def min(self, a: Arg, b: Arg) -> Any:
        """Elementwise minimum."""
        return self._commutes("min", a, b)

    def _commutes(self, op: str, a: Arg, b: Arg) -> Value:
        if not isinstance(a, Value):
            a, b = b, a
        assert isinstance(a, Value), "two constants"
        if isinstance(b, Value):
            return self(op, a, b)
        return self(op + "s", a, scalar=b)

    def neg(self, a: Value) -> Value:
        """-a."""
        return self("muls", a, scalar=-1)

    def sub(self, a: Arg, b: Arg) -> Value:
        """a - b."""
        if isinstance(a, Value) and isinstance(b, Value):
            return self("sub", a, b)
        if isinstance(a, Value):
            return self("adds", a, scalar=-b)  # type: ignore[operator]
        assert isinstance(b, Value), "two constants"
        return self("adds", self.neg(b), scalar=a)

    def div(self, a: Arg, b: Arg) -> Value:
        """a / b, by the dividing instruction."""
        if isinstance(a, Value):
            return self("div", a, b if isinstance(b, Value) else self.const(b, a))
        assert isinstance(b, Value), "two constants"
        return self("div", self.const(a, b), b)

    def as_value(self, a: Arg, like: Value) -> Value:
        """`a`, as a register if it is a constant."""
        return a if isinstance(a, Value) else self.const(a, like)

    # -- the end ------------------------------------------------------------------------------

    def finish(
        self,
        results: Sequence[Value],
        dtypes: Sequence[np.dtype],
        varies: Pattern | None = None,
    ) -> Program:
        """The program whose results are written in `dtypes`; they vary as the tile does."""
        whole = varies or (True,) * self._rank
        done: list[Value] = []
        for result, dtype in zip(results, dtypes, strict=True):
            done.append(self._final(result, dtype, whole, done))
        steps = _live(self._steps, done)
        loads = dict.fromkeys(s for step in steps for s in step.srcs if s.operand >= 0)
        slots, registers = _allocate(steps, done)
        return Program(tuple(steps), tuple(loads), tuple(done), slots, registers)

    def _final(
        self, result: Value, dtype: np.dtype, whole: Pattern, taken: Sequence[Value]
    ) -> Value:
        """A result in its stored type, as large as `whole` and in a place of its own."""
        result = self.conv(self.to_bool(result), dtype)
        if result.operand >= 0 or result.varies != whole or result in taken:
            result = self._emit("copy", whole, (self.spread(result, whole),), None, dtype)
        return result


def _live(steps: list[Step], results: Sequence[Value]) -> list[Step]:
    """The steps that the results depend on."""
    wanted, kept = set(results), []
    for step in reversed(steps):
        if step.dst in wanted:
            kept.append(step)
            wanted.update(step.srcs)
    return kept[::-1]


def _allocate(
    steps: list[Step], results: Sequence[Value]
) -> tuple[dict[Value, int], tuple[int, ...]]:
    """Registers of full intermediates, reused after the last use (by width of element)."""
    last = {s: i for i, step in enumerate(steps) for s in step.srcs}
    slots: dict[Value, int] = {}
    registers: list[int] = []
    free: dict[int, list[int]] = {}
    for i, step in enumerate(steps):
        for s in dict.fromkeys(step.srcs):
            if s in slots and last[s] == i:
                free.setdefault(s.dtype.itemsize, []).append(slots[s])
        dst = step.dst
        if dst in results or not dst.full:
            continue
        pool = free.get(dst.dtype.itemsize)
        if pool:
            slots[dst] = pool.pop()
        else:
            slots[dst] = len(registers)
            registers.append(dst.dtype.itemsize)
    return slots, tuple(registers)
