"""The attention gradient's work on rows, before and after the blocks of scores, on vector cores.

Before: zeros into the fp32 sums of dQ, dK, dV; Σ dY·Y per row (SoftmaxGradFront). After: the sums
scaled and converted into dQ, dK, dV. Units are tiles of some rows of a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from npusim.kernels.attention_grad_shape import (
    ATTENTION,
    DK,
    DQ,
    DV,
    DY,
    SUMS,
    Workspace,
)
from npusim.kernels.attention_shape import F32, Problem, up
from npusim.kernels.grid import Share
from npusim.kernels.lang import Kernel
from npusim.kernels.rows import RowReducer
from npusim.ops.training_attention import STATS
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs
from npusim.program.region import Region

UNITS = (32, 16, 8, 4, 2, 1)  #: rows of a unit: the first that UB holds


def row_units(p: Problem, unit: int) -> tuple[int, int]:
    """Units of queries, and of keys."""
    a = p.shape
    return a.batch * a.heads * -(-a.s1 // unit), a.batch * a.kv_heads * -(-a.s2 // unit)


def _unit(heads: int, length: int, i: int, unit: int) -> tuple[int, int, int, int]:
    """(batch, head, row, rows) of unit i."""
    head, row = divmod(i, -(-length // unit))
    batch, head = divmod(head, heads)
    return batch, head, row * unit, min(unit, length - row * unit)


def ends(p: Problem, shares: Sequence[Sequence[Share]], unit: int) -> tuple[object, ...]:
    """Where the short units lie in the shares (they cost less)."""
    a = p.shape
    sizes = ((a.heads, a.s1), (a.kv_heads, a.s2))
    return tuple(
        tuple(
            tuple(i for i in range(s.count) if _unit(heads, length, s.start + i, unit)[3] < unit)
            for s, (heads, length) in zip(share, sizes, strict=True)
        )
        for share in shares
    )


def row_bytes(args: KernelArgs, p: Problem) -> dict[int, int]:
    """Operand → bytes of both phases."""
    a, base, es = p.shape, len(args.operands), p.dtype.itemsize
    rows, keys = a.batch * a.heads * a.s1 * a.d, a.batch * a.kv_heads * a.s2 * a.d
    out = len(args.inputs)
    return {
        DY: rows * es,
        ATTENTION: rows * es,
        out: rows * es,
        out + 1: keys * es,
        out + 2: keys * es,
        base + SUMS: rows // a.d * STATS * 4,
        base + DQ: 2 * rows * 4,
        base + DK: 2 * keys * 4,
        base + DV: 2 * keys * 4,
    }


class Rows:
    """One vector core at work on its units, before (phase 0) or after (phase 2)."""

    def __init__(self, k: Kernel, p: Problem, workspace: Workspace, phase: int, unit: int) -> None:
        self.k, self.p, self.workspace, self.phase, self.unit = k, p, workspace, phase, unit
        size, es = unit * up(p.shape.d, 16), p.dtype.itemsize
        if phase == 0:
            self.zeros = k.alloc("UB", size * 4)
            self.dy = k.queue("UB", size * es, 2, Pipe.MTE2, Pipe.V, ("UB", size * es))
            self.wide = [k.alloc("UB", size * 4) for _ in range(2)]
            self.scalars = k.alloc("UB", unit * 4)
            self.sums = k.queue("UB", unit * STATS * 4, 2, Pipe.V, Pipe.MTE3)
            self.add = RowReducer(k, "add", unit, p.shape.d, F32)
        else:
            self.grad = k.queue("UB", size * 4, 2, Pipe.MTE2, Pipe.V)
            self.out = k.queue("UB", size * es, 2, Pipe.V, Pipe.MTE3)

    def run(self, share: Sequence[Share]) -> Iterator[Instr]:
        """All units of queries, then of keys."""
        k, a = self.k, self.p.shape
        if self.phase == 0:
            ready = k.flag_id()
            zeros = self.zeros.region((self.unit, a.d), F32)
            yield k.vec("dup", zeros, scalar=0.0)
            yield k.set_flag(Pipe.V, Pipe.MTE3, ready)
            yield k.wait_flag(Pipe.V, Pipe.MTE3, ready)
        queries, keys = share
        for i in range(queries.start, queries.start + queries.count):
            unit = _unit(a.heads, a.s1, i, self.unit)
            if self.phase == 0:
                yield self._zero(DQ, unit)
                yield from self._sum(unit)
            else:
                yield from self._finish(DQ, unit, self.p.scale)
        for i in range(keys.start, keys.start + keys.count):
            unit = _unit(a.kv_heads, a.s2, i, self.unit)
            for kind in (DK, DV):
                if self.phase == 0:
                    yield self._zero(kind, unit)
                else:
                    yield from self._finish(kind, unit, self.p.scale if kind == DK else None)

    def _zero(self, kind: int, unit: tuple[int, int, int, int]) -> Instr:
        k, rows = self.k, unit[3]
        src = self.zeros.region((rows, self.p.shape.d), F32)
        dst = self.workspace.gradient(kind, *unit)
        return k.memo(("zero", kind, rows), lambda: k.store(dst, src))

    def _sum(self, unit: tuple[int, int, int, int]) -> Iterator[Instr]:
        """Σ dY·Y of the unit's rows."""
        k, p, rows = self.k, self.p, unit[3]
        shape = (rows, p.shape.d)
        slot = yield from self.dy.alloc()
        stored = [slot.region(shape, p.dtype), self.dy.back_partner.region(shape, p.dtype)]
        for operand, dst in zip((DY, ATTENTION), stored, strict=True):
            src = p.rows(operand, *unit)
            yield k.memo(("row", operand, rows), lambda d=dst, s=src: k.load(d, s))  # type: ignore[misc]
        yield self.dy.enque()
        yield self.dy.deque()
        wide = [w.region(shape, F32) for w in self.wide]
        for i in range(2):
            yield k.memo(
                ("wide", i, rows),
                lambda d=wide[i], s=stored[i]: k.vec("conv", d, s),  # type: ignore[misc]
            )
        yield self.dy.free()
        yield k.memo(("product", rows), lambda: k.vec("mul", wide[0], wide[0], wide[1]))
        scalars = self.scalars.region((rows,), F32)
        yield from self.add(scalars, wide[0])
        place = yield from self.sums.alloc()
        sums = place.region((rows, STATS), F32)
        yield k.memo(("sums", rows), lambda: k.vec("brcb", sums, scalars.expand(1)))
        yield self.sums.enque()
        yield self.sums.deque()
        dst = self.workspace.sums(*unit)
        yield k.memo(("store sums", rows), lambda: k.store(dst, sums))
        yield self.sums.free()

    def _finish(
        self, kind: int, unit: tuple[int, int, int, int], scale: float | None
    ) -> Iterator[Instr]:
        """fp32 sums → the gradient in the stored type."""
        k, p, rows = self.k, self.p, unit[3]
        shape = (rows, p.shape.d)
        slot = yield from self.grad.alloc()
        x = slot.region(shape, F32)
        src = self.workspace.gradient(kind, *unit)
        yield k.memo(("sum", kind, rows), lambda: k.load(x, src))
        yield self.grad.enque()
        yield self.grad.deque()
        if scale is not None:
            yield k.memo(("scale", rows), lambda: k.vec("muls", x, x, scalar=scale))
        place = yield from self.out.alloc()
        y = place.region(shape, p.dtype)
        yield k.memo(("cast", rows), lambda: k.vec("conv", y, x))
        yield self.grad.free()
        yield self.out.enque()
        yield self.out.deque()
        index = len(k.args.inputs) + kind - DQ
        dst = (p.rows if kind == DQ else self._keys)(index, *unit)
        yield k.memo(("store", kind, rows), lambda: k.store(dst, y))
        yield self.out.free()

    def _keys(self, operand: int, batch: int, head: int, row: int, rows: int) -> Region:
        """Rows of a key head."""
        return self.p.kv_rows(operand, batch, head * self.p.shape.group, row, rows)
