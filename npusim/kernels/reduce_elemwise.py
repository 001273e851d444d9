"""ReduceElemwise: elementwise operators and reductions along rows, fused; a row stays in UB.

A tile holds whole rows, from their loads through every step to the store of the result, which is
rows again or one value per row. Arithmetic is fp32. Rows that do not fit UB whole are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, ClassVar

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.errors import GraphError, UnsupportedError
from npusim.ir import Layout, TensorType
from npusim.kernels.broadcast import Space, merged_axes
from npusim.kernels.elementwise import Elementwise, constants_of
from npusim.kernels.expressions import lower
from npusim.kernels.lang import Kernel
from npusim.kernels.reduce import RECIPES
from npusim.kernels.rows import RowReducer, has_reduction, padded
from npusim.kernels.ub_chain import Job, Run
from npusim.kernels.vector_program import F32, FOLD, Builder, Step, Value
from npusim.ops import get_operator
from npusim.ops.cann_fused import FusedStep, types_of
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, Tiling, kernel

Shape = tuple[int, ...]
Fold = tuple[str, np.dtype]  #: a reduction and the type in which it runs


def _softmax(b: Builder, x: Value) -> Value:
    power = b("exp", b.sub(x, b.fold("max", x)))
    return b.mul(power, b.div(1.0, b.fold("add", power)))


def _log_softmax(b: Builder, x: Value) -> Value:
    shifted = b.sub(x, b.fold("max", x))
    return b.sub(shifted, b("ln", b.fold("add", b("exp", shifted))))


#: Operators that need a row whole and give one.
ROW_OPS: dict[str, Callable[[Builder, Value], Value]] = {
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
}


def is_row_op(op_type: str) -> bool:
    """Whether the operator is a reduction, or needs a row whole."""
    return op_type in RECIPES or op_type in ROW_OPS


def _reduction(b: Builder, op_type: str, x: Value, count: int) -> Value:
    recipe = RECIPES[op_type]
    if recipe.before:
        x = b.mul(x, x) if recipe.before == "square" else b(recipe.before, x)
    result = b.fold(recipe.combine, x)
    if recipe.after == "mean":
        return b.mul(result, 1.0 / count)
    return b(recipe.after, result) if recipe.after else result


# -- rows ----


@dataclass(frozen=True)
class Rows:
    """How shapes see rows: `lead` axes, then the `axes` that make a row of `length` elements."""

    lead: Shape
    axes: Shape

    @property
    def length(self) -> int:
        """Elements of a row."""
        return prod(self.axes)

    def pattern(self, shape: Shape, reduced: bool) -> tuple[Shape, bool]:
        """(leading axes of a value, 1 where it does not vary; whether it varies along the row).

        Args:
            reduced: the shape has no row axes: it stands behind a reduction that drops them.

        Raises:
            UnsupportedError: it does not broadcast to the rows.
        """
        rank = len(self.lead) + (0 if reduced else len(self.axes))
        whole = (1,) * (rank - len(shape)) + shape
        lead, axes = whole[: len(self.lead)], whole[len(self.lead) :]
        fits = len(whole) == rank and all(a in (1, b) for a, b in zip(lead, self.lead, strict=True))
        varies = axes == self.axes and self.length > 1
        if not fits or not (varies or prod(axes) == 1):
            raise UnsupportedError(
                f"{shape} with rows {self.lead} of {self.axes}",
                "what broadcasts to the rows: whole rows, or one value per row",
                "leave the operator outside",
            )
        return lead, varies


def reduced_axes(step: FusedStep, rank: int) -> Shape:
    """Axes along which a row operator works, counted from the front, in order."""
    given = step.axes
    if given is None:
        named = step.op_type in ROW_OPS
        given = (int(step.attributes()["axis"]),) if named else tuple(range(rank))
    return tuple(sorted(a % rank for a in given))


def _rows_of(step: FusedStep, shape: Shape) -> Rows:
    """The rows of a reduction's operand.

    Raises:
        UnsupportedError: the axes are not the last ones.
    """
    axes = [a for a in reduced_axes(step, len(shape)) if shape[a] > 1]
    first = min(axes, default=len(shape))
    if not axes or any(shape[a] > 1 and a not in axes for a in range(first, len(shape))):
        raise UnsupportedError(
            f"{step.op_type} over axes {reduced_axes(step, len(shape))} of {shape}",
            "the last axes",
            "leave the reduction alone",
        )
    return Rows(shape[:first], shape[first:])


class _Lowering:
    """A launch on its way to a vector program."""

    def __init__(self, args: KernelArgs) -> None:
        self.args = args
        self.steps: tuple[FusedStep, ...] = args.attr("steps")
        self.count = len(args.inputs)
        scalar = {i: dict(args.attrs).get(f"const{i}") for i in range(self.count)}
        self.constants = {i: v for i, v in scalar.items() if v is not None}
        first = next(o.dtype for o in args.inputs if o is not None)
        given = [TensorType(o.shape, o.dtype) if o else TensorType((), first) for o in args.inputs]
        self.types = types_of(given, self.steps)
        head = next(s for s in self.steps if is_row_op(s.op_type))
        self.rows = _rows_of(head, self.types[head.operands[0]].shape)
        self.reduced = self._reduced()

    def _reduced(self) -> dict[int, bool]:
        """Value → whether its shape has lost the row axes."""
        found: dict[int, bool] = {}
        for i, step in enumerate(self.steps, self.count):
            known = [found[j] for j in step.operands if j >= self.count]
            inside = any(known)
            if any(k is not inside for k in known):
                raise UnsupportedError(
                    f"{step.op_type} of values with and without the reduced axes",
                    "one or the other", "keep the dimensions of reductions",
                )  # fmt: skip
            for j in step.operands:
                if found.setdefault(j, inside) is not inside:
                    raise UnsupportedError(
                        f"input {j} read with and without the reduced axes",
                        "one or the other", "keep the dimensions of reductions",
                    )  # fmt: skip
            drops = step.op_type in RECIPES and not step.attributes()["keepdims"]
            found[i] = inside or drops
        return found

    def job(self) -> RowJob:
        """The launch as a program over (leading axes…, 1, padded row)."""
        out, rows = self.args.outputs[0], self.rows
        specs = {i: o for i, o in enumerate(self.args.inputs) if o is not None}
        places = {i: rows.pattern(o.shape, self.reduced[i]) for i, o in specs.items()}
        last = rows.pattern(out.shape, self.reduced[self.count + len(self.steps) - 1])
        if last[0] != rows.lead:
            raise UnsupportedError(f"a result {out.shape}", "a value for every row", "-")
        merged = merged_axes([lead for lead, _ in places.values()], rows.lead)
        masks = [m for _, m in merged] or [(True,) * len(places)]
        patterns = {
            i: (*(m[at] for m in masks), varies, varies)
            for at, (i, (_, varies)) in enumerate(places.items())
        }
        width = min(t.dtype.size for t in (*specs.values(), out))
        outer = tuple(n for n, _ in merged) or (1,)
        unit = padded(rows.length, 32 // width)
        space = Space(outer, rows.length, unit, 0, tuple(patterns.values()))
        b = Builder(F32, len(outer) + 2)
        values = {i: Value(o.dtype.np, patterns[i], i) for i, o in specs.items()}
        result = self._program(b, values)
        whole = (*[True] * len(outer), last[1], last[1])
        return RowJob(space, b.finish([result], [out.dtype.np], whole), True)

    def _program(self, b: Builder, values: dict[int, Value]) -> Value:
        found: dict[int, Any] = {**values, **self.constants}
        for i, step in enumerate(self.steps, self.count):
            operands = [found[j] for j in step.operands]
            if is_row_op(step.op_type):
                found[i] = self._row_op(b, step, operands[0])
                continue
            if not get_operator(step.op_type).elementwise:
                raise UnsupportedError(f"{step.op_type} in a tile of rows", "elementwise ones", "-")
            attrs = step.attributes()
            (found[i],) = lower(b, step.op_type, attrs, constants_of(attrs, operands))
        return found[self.count + len(self.steps) - 1]

    def _row_op(self, b: Builder, step: FusedStep, operand: Any) -> Value:
        shape = self.types[step.operands[0]].shape
        x = b.num(operand)
        if not isinstance(x, Value) or x.dtype != F32 or not x.varies[-1]:
            kind = operand.dtype.name if isinstance(operand, Value) else "a constant"
            raise UnsupportedError(f"{step.op_type} of {shape} {kind}", "rows of floats", "-")
        if _rows_of(step, shape).length != self.rows.length:
            raise UnsupportedError(
                f"{step.op_type} over other rows than {self.rows.axes}", "the same", "-"
            )
        if step.op_type in ROW_OPS:
            return ROW_OPS[step.op_type](b, x)
        return _reduction(b, step.op_type, x, self.rows.length)


@lru_cache(maxsize=4096)
def lowered_rows(args: KernelArgs) -> RowJob:
    """The launch as a program.

    Raises:
        UnsupportedError: steps, types or shapes that the kernel does not take.
    """
    try:
        return _Lowering(args).job()
    except GraphError as e:
        raise UnsupportedError(e.what, e.allowed, e.fix) from None


# -- the kernel ----


@dataclass(frozen=True)
class RowJob(Job):
    """A launch, lowered: see `Job`. The row is the unit, and no tile cuts it."""

    def folds(self) -> list[Fold]:
        """Kinds of reductions."""
        found = [(s.op[len(FOLD) :], s.dst.dtype) for s in self.program.steps if _is_fold(s)]
        return list(dict.fromkeys(found))

    def cut_axes(self) -> int:
        return len(self.space.outer)

    def nbytes_shared(self, args: KernelArgs) -> int:
        return max(o.nbytes for o in args.operands if o)

    def rows(self, axis: int, chunk: int) -> int:
        """Rows of a tile."""
        return chunk * prod(self.space.outer[axis + 1 :])

    def footprint(self, chip: ChipSpec, axis: int, chunk: int) -> int:
        """Also of what the reductions take beside their results."""
        rows, line = self.rows(axis, chunk), self.space.line
        sizes = [RowReducer.scratch(chip, op, rows, line, dtype) for op, dtype in self.folds()]
        scratch = sum(padded(n, 32) for each in sizes for n in each)
        return super().footprint(chip, axis, chunk) + scratch

    def vector_cycles(self, chip: ChipSpec, elements: int) -> float:
        """Also of the reductions, and of the values that each row's statistic is spread from."""
        vec, rows = chip.core.vector, elements // self.space.unit
        total = super().vector_cycles(chip, elements)
        per = vec.repeat_bytes // 4
        for step in self.program.steps:
            if step.op == "brcb":
                total += rows / 8 * (vec.costs["transpose"].b32 or 1.0)
            elif _is_fold(step):
                direct = has_reduction(chip, step.op[len(FOLD) :], step.dst.dtype)
                cost = vec.costs["reduce" if direct else "binary"].b32 or 1.0
                total += rows * -(-self.space.line // per) * cost
        return total

    def instructions(self, chip: ChipSpec) -> int:
        """Also of the levels in which a row is reduced."""
        levels = 0
        for op, dtype in (
            (s.op[len(FOLD) :], s.dst.dtype) for s in self.program.steps if _is_fold(s)
        ):
            if not has_reduction(chip, op, dtype):
                levels += 2 * max(1, (self.space.line // 8).bit_length())
            elif self.space.line > chip.core.vector.repeat_bytes // 4:
                levels += 2
        return super().instructions(chip) + levels


def _is_fold(step: Step) -> bool:
    return step.op.startswith(FOLD)


class RowRun(Run):
    """One block at work: `Run`, and the reductions."""

    def __init__(self, k: Kernel, job: RowJob, inputs: int, tiling: Tiling, block: int) -> None:
        super().__init__(k, job, inputs, tiling, block)
        rows, self.line = job.rows(self.axis, self.chunk), job.space.line
        self.reducers = {
            (op, dtype): RowReducer(k, op, rows, self.line, dtype) for op, dtype in job.folds()
        }

    def compute(self, step: Step, size: int) -> Iterator[Instr]:
        if not _is_fold(step):
            yield from super().compute(step, size)
            return
        src, unit = step.srcs[0], self.job.space.unit
        rows = prod(self.job.dims(src, self.axis, size)) // unit
        lines = self.places[src].region((rows, unit), src.dtype)[:, : self.line]
        result = self.places[step.dst].region((rows,), src.dtype)
        yield from self.reducers[step.op[len(FOLD) :], src.dtype](result, lines)


@kernel("ReduceElemwise")
class ReduceElemwise(Elementwise):
    """Rows through elementwise steps and reductions; see the module's text.

    Attribute `steps` holds them; a constant input is given as attribute `const<i>` instead.
    """

    run: ClassVar[type[Run]] = RowRun

    @classmethod
    def job(cls, args: KernelArgs, chip: ChipSpec) -> Job:
        return lowered_rows(args)

    @classmethod
    def refuse(cls, args: KernelArgs, chip: ChipSpec) -> str:
        if args.op_type != "ReduceElemwise" or args.epilogue:
            return f"operator {args.op_type}, or an epilogue"
        if any(o and (o.layout is not Layout.ND or not o.nbytes) for o in args.operands):
            return "takes ND tensors that are not empty"
        return super().refuse(args, chip)
