"""LayerNorm and its gradient on a tile of rows, pass by pass as in CANN; see `row_programs`."""

from __future__ import annotations

from collections.abc import Iterator

from npusim.kernels.row_programs import Program, Spread
from npusim.program.isa import Instr
from npusim.program.region import Region


class LayerNorm(Program):
    """x, scale, offset → y, mean, variance."""

    temporaries = 2
    vectors = (1, 2)

    def prologue(self) -> Iterator[Instr]:
        self.scale = yield from self.rows.load_vector(1, "scale")
        self.offset = yield from self.rows.load_vector(2, "offset")

    def tile(self) -> Iterator[Instr]:
        k, rows = self.k, self.rows
        x = yield from rows.wide(0, "x")
        square = rows.temp("square")
        mean = yield from self.mean("mean", x, square)
        y = yield from rows.result(rows.first_out, "x")
        yield k.vec("sub", y, x, (yield from rows.spread("row", mean)))
        yield from rows.release(0)
        yield k.vec("mul", square, y, y)
        variance = yield from self.mean("variance", square, square)
        inverse = yield from self.inverse_root("inverse", variance)
        yield k.vec("mul", y, y, (yield from rows.spread("row", inverse)))
        if rows.n1 > 1:
            yield rows.by_column("madd", y, self.scale, self.offset)
        else:
            yield rows.by_column("mul", y, self.scale)
            yield rows.by_column("add", y, self.offset)
        for j, value in enumerate((mean, variance)):
            yield from rows.store_rows(rows.first_out + 1 + j, value)
        yield from rows.store(rows.first_out, y)

    def mean(self, name: str, x: Region, work: Region) -> Spread:
        """Mean per row: ND scales the elements, NZ the sums."""
        k, rows = self.k, self.rows
        share = 1.0 / (rows.n1 * rows.lanes)
        if rows.n1 == 1:
            yield k.vec("muls", work, x, scalar=share)
            return (yield from rows.row_sum(name, work))
        mean = yield from rows.row_sum(name, x)
        yield k.vec("muls", mean, mean, scalar=share)
        return mean


class LayerNormXBackprop(Program):
    """dy, x, variance, mean, scale → dx, (x - mean)/σ in fp32.

    In NZ the mean is spread in one step, block by block; the other three values in two; the scale
    over all rows of the tile first.
    """

    temporaries = 4
    vectors = (4,)
    strips = True

    def prologue(self) -> Iterator[Instr]:
        self.scale = yield from self.rows.load_vector(4, "scale")

    def tile(self) -> Iterator[Instr]:
        k, rows = self.k, self.rows
        n = rows.n1 * rows.lanes
        dy = yield from rows.wide(0, "dy")
        x = yield from rows.wide(1, "x")
        variance = yield from rows.load_rows(2, "variance")
        mean = yield from rows.load_rows(3, "mean")
        work = rows.temp("work")
        if rows.n1 > 1:
            yield rows.over_rows(work, self.scale)
            yield k.vec("mul", dy, dy, work)
        else:
            yield rows.by_column("mul", dy, self.scale)
        inverse = yield from self.inverse_root("inverse", variance)
        square = rows.per_row("square")
        yield k.vec("mul", square, inverse, inverse)
        yield k.vec("sub", x, x, (yield from rows.spread_by_scalar("row", mean)))
        yield k.vec("mul", work, dy, x)
        total = yield from rows.row_sum("total", work)
        shift = yield from rows.row_sum("shift", dy)
        yield k.vec("mul", shift, shift, inverse)
        yield k.vec("muls", shift, shift, scalar=-1.0 / n)
        yield k.vec("mul", total, total, square)
        yield k.vec("mul", total, total, inverse)
        yield k.vec("muls", total, total, scalar=-1.0 / n)
        wide = yield from rows.spread("row", inverse)
        yield k.vec("mul", dy, dy, wide)
        standard = yield from rows.result(rows.first_out + 1, "work")
        yield k.vec("mul", standard, x, wide)
        yield from rows.store(rows.first_out + 1, standard)
        yield k.vec("mul", x, x, (yield from rows.spread("row", total)))
        yield k.vec("add", dy, dy, x)
        dx = yield from rows.result(rows.first_out, "dy")
        yield k.vec("add", dx, dy, (yield from rows.spread("row", shift)))
        yield from rows.release(0, 1)
        yield from rows.store(rows.first_out, dx)
