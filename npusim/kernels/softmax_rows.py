"""Softmax and its gradients on a tile of rows, as in CANN; see `row_programs`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from npusim.ir import DType
from npusim.kernels.row_programs import Program
from npusim.kernels.rows import F32
from npusim.program.isa import Instr
from npusim.program.region import Region


class Softmax(Program):
    """Along rows: maximum and shift in the stored type, 1 / Σ per row."""

    temporaries = 2
    halves = True

    def tile(self) -> Iterator[Instr]:
        k, rows = self.k, self.rows
        x = rows.temp("x")
        raw = yield from rows.raw(0)
        top = yield from rows.row_max("top", raw)
        shifted = rows.temp("shifted", raw.dtype)
        yield k.vec("sub", shifted, raw, (yield from rows.spread("top", top)))
        yield rows.stage.free(0)
        yield k.vec("conv" if raw.dtype != F32 else "copy", x, shifted)
        yield k.vec("exp", x, x)
        total = yield from rows.row_sum("total", x)
        yield k.vec("rec", total, total)
        yield k.vec("mul", x, x, (yield from rows.spread("row", total)))
        yield from rows.store(rows.first_out, x)


class _Gradient(Program):
    """Base of the gradients: a sum of products in fp32, subtracted in the stored type."""

    temporaries = 2

    by_scalar: ClassVar[bool] = False  #: the sums are spread over the lanes by the scalar unit

    def less_sum(self, result: Region, y: Region, dy: Region) -> Iterator[Instr]:
        """result = dy - Σ y·dy, all of the stored type."""
        k, rows = self.k, self.rows
        work = rows.temp("work", y.dtype)
        yield k.vec("mul", work, y, dy)
        product = work
        if y.dtype != F32:
            product = rows.temp("product")
            yield k.vec("conv", product, work)
        total = yield from rows.row_sum("total", product)
        narrow = total
        if y.dtype != F32:
            narrow = rows.per_row("narrow", y.dtype)
            yield k.vec("conv", narrow, total)
        spread = rows.spread_lanes if self.by_scalar else rows.spread
        yield k.vec("sub", result, dy, (yield from spread("row", narrow)))


class SoftmaxGradExt(_Gradient):
    """y, dy → (dy - Σ y·dy)·y·factor."""

    def tile(self) -> Iterator[Instr]:
        k, rows = self.k, self.rows
        y = yield from rows.raw(0)
        dy = yield from rows.raw(1)
        work = rows.temp("work", y.dtype)
        yield from self.less_sum(work, y, dy)
        yield rows.stage.free(1)
        yield k.vec("mul", work, work, y)
        yield rows.stage.free(0)
        out = yield from rows.out(rows.first_out, work)
        yield k.vec("muls", out, work, scalar=self.attr("factor", 1.0))
        yield from rows.stage.store(rows.gm(rows.first_out), out)


class ConfusionSoftmaxGrad(_Gradient):
    """y, dy → dy - Σ y·dy."""

    by_scalar = True

    def tile(self) -> Iterator[Instr]:
        rows = self.rows
        y = yield from rows.raw(0)
        dy = yield from rows.raw(1)
        out = yield from rows.out(rows.first_out, y)
        yield from self.less_sum(out, y, dy)
        yield rows.stage.free(1)
        yield rows.stage.free(0)
        yield from rows.stage.store(rows.gm(rows.first_out), out)


class SoftmaxGrad(Program):
    """y, dy → (dy - Σ y·dy)·y, in fp32."""

    stored = (DType.FLOAT16, DType.FLOAT32, DType.BFLOAT16)

    def tile(self) -> Iterator[Instr]:
        k, rows = self.k, self.rows
        y = yield from rows.wide(0, "y")
        dy = yield from rows.wide(1, "dy")
        product = rows.temp("product")
        yield k.vec("mul", product, y, dy)
        total = yield from rows.row_sum("total", product)
        yield k.vec("sub", dy, dy, (yield from rows.spread("row", total)))
        yield k.vec("mul", dy, dy, y)
        yield from rows.store(rows.first_out, dy)


class LogSoftmaxGrad(Program):
    """dy, y = log softmax → dy - e^y · Σ dy, in fp32."""

    temporaries = 2

    def tile(self) -> Iterator[Instr]:
        k, rows = self.k, self.rows
        dy = yield from rows.wide(0, "dy")
        y = yield from rows.wide(1, "y")
        power = rows.temp("y")
        yield k.vec("exp", power, y)
        total = yield from rows.row_sum("total", dy)
        yield k.vec("mul", power, power, (yield from rows.spread("row", total)))
        dx = yield from rows.result(rows.first_out, "dy")
        yield k.vec("sub", dx, dy, power)
        yield from rows.release(0, 1)
        yield from rows.store(rows.first_out, dx)
