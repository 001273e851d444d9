"""What the row kernels compute on a tile of rows (N1, m, L), in fp32; see `row_tiles`.

A value per row is a sum over N1 by accumulating adds and over the lanes by vcadd; it is spread
back over (m, L) once per tile, which broadcasts over N1 at full rate. LayerNormXBackpropV2 in NZ
materialises its four per-row vectors block by block instead, one instruction each: that is what
makes it slow on the first-generation chips.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import ClassVar

import numpy as np

from npusim.ir import DType
from npusim.kernels.lang import Kernel
from npusim.kernels.rows import F32, RowReducer, fold_rows
from npusim.kernels.stage import Loading, Stage
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs
from npusim.program.region import Region

GROUP = 4  #: rows of 16 lanes in a repeat
Spread = Generator[Instr, None, Region]


class Rows:
    """The current tile: rows [r0, r1) of batch b; its loads, stores, reductions and spreads."""

    def __init__(
        self, k: Kernel, args: KernelArgs, shape: tuple[int, int, int, int], m: int
    ) -> None:
        self.k, self.args, self.shape, self.m = k, args, shape, m
        self.stage = Stage(k)
        self.first_out = len(args.inputs)
        self.b = self.r0 = self.r1 = 0
        _, self.n1, _, self.lanes = shape
        self._reducers: dict[tuple[str, str], RowReducer] = {}

    def at(self, b: int, r0: int, r1: int) -> None:
        """Move to a tile."""
        self.b, self.r0, self.r1 = b, r0, r1

    @property
    def tile(self) -> tuple[int, int, int]:
        """(N1, rows, lanes)."""
        return self.n1, self.r1 - self.r0, self.lanes

    @property
    def room(self) -> int:
        """Elements of the largest tile."""
        return self.n1 * self.m * self.lanes

    def gm(self, index: int) -> Region:
        """The tile of a whole operand in GM."""
        dtype = self.args.operands[index].dtype.np
        whole = Region.dense("GM", index, 0, self.shape, dtype)
        return whole[self.b, :, self.r0 : self.r1]

    def _gm_rows(self, index: int) -> Region:
        batch, _, rows, _ = self.shape
        dtype = self.args.operands[index].dtype.np
        return Region.dense("GM", index, 0, (batch, rows), dtype)[self.b, self.r0 : self.r1]

    def temp(self, name: str, dtype: np.dtype = F32) -> Region:
        """A tile-sized temporary."""
        return self.stage.temp(name, self.tile, dtype, self.room)

    def per_row(self, name: str, dtype: np.dtype = F32) -> Region:
        """One value per row."""
        return self.stage.temp(name, (self.r1 - self.r0,), dtype, self.m)

    def raw(self, index: int) -> Loading:
        """Load a tile as stored; free it when read."""
        return self.stage.load(self.gm(index), self.room)

    def wide(self, index: int, name: str) -> Spread:
        """Load a tile, in fp32, into temporary `name`."""
        x = yield from self.raw(index)
        wide = self.temp(name)
        yield self.k.vec("conv" if x.dtype != F32 else "copy", wide, x)
        yield self.stage.free(index)
        return wide

    def load_rows(self, index: int, name: str) -> Spread:
        """Load a value per row, in fp32."""
        x = yield from self.stage.load(self._gm_rows(index), self.m)
        wide = self.per_row(name)
        yield self.k.vec("conv" if x.dtype != F32 else "copy", wide, x)
        yield self.stage.free(index)
        return wide

    def load_vector(self, index: int, name: str) -> Spread:
        """A value per column, in fp32, once per block; NZ: four rows' worth, a whole repeat."""
        dtype = self.args.operands[index].dtype.np
        copies = 1 if self.n1 == 1 else GROUP
        shape = (self.n1, copies, self.lanes)
        gm = Region.dense("GM", index, 0, (self.n1, 1, self.lanes), dtype).broadcast(shape)
        x = yield from self.stage.load(gm, self.n1 * copies * self.lanes)
        wide = self.stage.temp(name, shape, F32)
        yield self.k.vec("conv" if x.dtype != F32 else "copy", wide, x)
        yield self.stage.free(index)
        return wide

    def by_column(self, op: str, x: Region, vector: Region) -> Instr:
        """x = op(x, vector) with a value per column (`load_vector`)."""
        if self.n1 == 1:
            return self.k.vec(op, x, x, vector)
        flat = x.split(1, GROUP)
        return self.k.vec(op, flat, flat, vector.expand(1))

    def store(self, index: int, value: Region) -> Iterator[Instr]:
        """Convert a tile to its stored type and store it."""
        out = yield from self.out(index, value)
        yield self.k.vec("conv" if out.dtype != F32 else "copy", out, value)
        yield from self.stage.store(self.gm(index), out)

    def out(self, index: int, like: Region) -> Loading:
        """An output tile in its stored type, to be filled."""
        dtype = self.args.operands[index].dtype.np
        return self.stage.out(index, like.shape, dtype, self.room)

    def store_rows(self, index: int, value: Region) -> Iterator[Instr]:
        """Convert a value per row and store it."""
        dtype = self.args.operands[index].dtype.np
        out = yield from self.stage.out(index, value.shape, dtype, self.m)
        yield self.k.vec("conv" if dtype != F32 else "copy", out, value)
        yield from self.stage.store(self._gm_rows(index), out)

    # -- across a row ----------------------------------------------------------------------------

    def row_sum(self, name: str, x: Region) -> Spread:
        """Σ over N1 and lanes, one value per row."""
        k, total = self.k, self.per_row(name, x.dtype)
        part = x[0]
        if self.n1 > 1:
            part = self.stage.temp("part", self.tile[1:], x.dtype, self.m * self.lanes)
            yield k.reduce("accumulate", part, x)
        yield from self._over_lanes("add", total, part)
        return total

    def row_max(self, name: str, x: Region) -> Spread:
        """Maximum over N1 and lanes of an fp16 tile, in fp32; x is kept."""
        k, narrow = self.k, self.per_row("narrow", x.dtype)
        part = x[0]
        if self.n1 > 1:
            halves = -(-self.n1 // 2)
            work = self.stage.temp(
                "halves", (halves, *self.tile[1:]), x.dtype, halves * self.m * self.lanes
            )
            part = self.stage.temp("maximum", self.tile[1:], x.dtype, self.m * self.lanes)
            yield from fold_rows(k, "max", part.expand(0)[0], x, work)
        yield from self._over_lanes("max", narrow, part)
        top = self.per_row(name)
        yield k.vec("conv" if x.dtype != F32 else "copy", top, narrow)
        return top

    def _over_lanes(self, op: str, dst: Region, src: Region) -> Iterator[Instr]:
        if (op, src.dtype.name) not in self._reducers:
            reducer = RowReducer(self.k, op, self.m, self.lanes, src.dtype)
            self._reducers[op, src.dtype.name] = reducer
        yield from self._reducers[op, src.dtype.name](dst, src)

    def spread(self, name: str, value: Region) -> Spread:
        """A value per row in a form that broadcasts over the tile."""
        k, m = self.k, self.r1 - self.r0
        lanes = 32 // value.dtype.itemsize
        blocks = self.stage.temp("blocks" + name, (m, lanes), value.dtype, self.m * lanes)
        yield k.vec("brcb", blocks, value.expand(1))
        if self.n1 == 1:
            return blocks[:, :1].expand(0)
        if lanes == self.lanes:
            return blocks.expand(0)
        wide = self.stage.temp("wide" + name, (m, self.lanes), F32, self.m * self.lanes)
        yield k.vec("copy", wide, blocks[:, :1])
        return wide.expand(0)

    def spread_by_block(self, name: str, value: Region) -> Spread:
        """A value per row materialised over the tile, one instruction per row and block of N1."""
        k, m = self.k, self.r1 - self.r0
        if self.n1 == 1:
            return (yield from self.spread(name, value))
        blocks = self.stage.temp("blocks" + name, (m, 8), F32, self.m * 8)
        yield k.vec("brcb", blocks, value.expand(1))
        whole = self.temp("whole")
        k.barrier()
        for i in range(self.n1):
            for r in range(m):
                key = ("block", i + r == 0)
                copy = partial(k.vec, "copy", whole[i, r], blocks[r, :1])
                yield k.memo(key, copy)
        return whole


class Program:
    """One tile's computation.

    Class attributes:
        temporaries: tile-sized fp32 buffers; vectors: inputs with a value per column;
        stored: element types of operands.
    """

    temporaries: ClassVar[int] = 3
    vectors: ClassVar[tuple[int, ...]] = ()
    stored: ClassVar[tuple[DType, ...]] = (DType.FLOAT16, DType.FLOAT32)

    def __init__(self, rows: Rows) -> None:
        self.rows, self.k = rows, rows.k

    def prologue(self) -> Iterator[Instr]:
        """Once per block."""
        yield from ()

    def tile(self) -> Iterator[Instr]:
        """One tile."""
        yield from ()

    def attr(self, name: str, default: float) -> float:
        """A float attribute of the launch."""
        return float(dict(self.rows.args.attrs).get(name, default))

    def inverse(self, name: str, value: Region) -> Spread:
        """1 / value, per row."""
        one, out = self.rows.per_row("one"), self.rows.per_row(name)
        yield self.k.vec("dup", one, scalar=1.0)
        yield self.k.vec("div", out, one, value)
        return out


class LayerNorm(Program):
    """x, scale, offset → y, mean, variance."""

    temporaries = 2
    vectors = (1, 2)

    def prologue(self) -> Iterator[Instr]:
        self.scale = yield from self.rows.load_vector(1, "scale")
        self.offset = yield from self.rows.load_vector(2, "offset")

    def tile(self) -> Iterator[Instr]:
        k, rows = self.k, self.rows
        n = rows.n1 * rows.lanes
        x = yield from rows.wide(0, "x")
        square = rows.temp("square")
        mean = yield from rows.row_sum("mean", x)
        yield k.vec("muls", mean, mean, scalar=1.0 / n)
        wide = yield from rows.spread("mean", mean)
        yield k.vec("sub", x, x, wide)
        yield k.vec("mul", square, x, x)
        variance = yield from rows.row_sum("variance", square)
        yield k.vec("muls", variance, variance, scalar=1.0 / n)
        root = rows.per_row("root")
        yield k.vec("adds", root, variance, scalar=self.attr("epsilon", 1e-12))
        yield k.vec("sqrt", root, root)
        root = yield from self.inverse("inverse", root)
        wide = yield from rows.spread("mean", root)
        yield k.vec("mul", x, x, wide)
        yield rows.by_column("mul", x, self.scale)
        yield rows.by_column("add", x, self.offset)
        for j, value in enumerate((mean, variance)):
            yield from rows.store_rows(rows.first_out + 1 + j, value)
        yield from rows.store(rows.first_out, x)


class LayerNormXBackprop(Program):
    """dy, x, variance, mean, scale → dx, (x - mean)/σ in fp32."""

    temporaries = 3
    vectors = (4,)

    def prologue(self) -> Iterator[Instr]:
        self.scale = yield from self.rows.load_vector(4, "scale")

    def tile(self) -> Iterator[Instr]:
        k, rows = self.k, self.rows
        n = rows.n1 * rows.lanes
        dy = yield from rows.wide(0, "dy")
        x = yield from rows.wide(1, "x")
        root = yield from rows.load_rows(2, "variance")
        mean = yield from rows.load_rows(3, "mean")
        product = rows.temp("whole")  # free while the product is needed
        yield rows.by_column("mul", dy, self.scale)
        yield k.vec("sub", x, x, (yield from rows.spread_by_block("row", mean)))
        yield k.vec("adds", root, root, scalar=self.attr("epsilon", 1e-12))
        yield k.vec("sqrt", root, root)
        inverse = yield from self.inverse("inverse", root)
        wide = yield from rows.spread_by_block("row", inverse)
        yield k.vec("mul", x, x, wide)
        yield k.vec("mul", dy, dy, wide)
        yield from rows.store(rows.first_out + 1, x)
        yield k.vec("mul", product, dy, x)
        total = yield from rows.row_sum("total", product)
        yield k.vec("muls", total, total, scalar=-1.0 / n)
        wide = yield from rows.spread_by_block("row", total)
        yield k.vec("mul", x, x, wide)
        shift = yield from rows.row_sum("shift", dy)
        yield k.vec("muls", shift, shift, scalar=-1.0 / n)
        yield k.vec("add", dy, dy, x)
        wide = yield from rows.spread_by_block("row", shift)
        yield k.vec("add", dy, dy, wide)
        yield from rows.store(rows.first_out, dy)


class Softmax(Program):
    """Along rows; the maximum is taken in the stored type."""

    def tile(self) -> Iterator[Instr]:
        k, rows = self.k, self.rows
        x = rows.temp("x")
        raw = yield from rows.raw(0)
        yield k.vec("conv" if raw.dtype != F32 else "copy", x, raw)
        top = yield from rows.row_max("top", raw)
        yield rows.stage.free(0)
        yield k.vec("sub", x, x, (yield from rows.spread("row", top)))
        yield k.vec("exp", x, x)
        total = yield from rows.row_sum("total", x)
        scale = yield from self.inverse("inverse", total)
        yield k.vec("mul", x, x, (yield from rows.spread("row", scale)))
        yield from rows.store(rows.first_out, x)


class SoftmaxGradExt(Program):
    """y, dy → (dy - Σ y·dy)·y·factor, in the stored type throughout."""

    temporaries = 1

    def tile(self) -> Iterator[Instr]:
        k, rows = self.k, self.rows
        y = yield from rows.raw(0)
        dy = yield from rows.raw(1)
        work = rows.temp("work", y.dtype)
        yield k.vec("mul", work, y, dy)
        total = yield from rows.row_sum("total", work)
        yield k.vec("sub", work, dy, (yield from rows.spread("row", total)))
        yield rows.stage.free(1)
        yield k.vec("mul", work, work, y)
        yield rows.stage.free(0)
        out = yield from rows.out(rows.first_out, work)
        yield k.vec("muls", out, work, scalar=self.attr("factor", 1.0))
        yield from rows.stage.store(rows.gm(rows.first_out), out)


class ConfusionSoftmaxGrad(Program):
    """y, dy → dy - Σ y·dy."""

    def tile(self) -> Iterator[Instr]:
        k, rows = self.k, self.rows
        y = yield from rows.wide(0, "y")
        dy = yield from rows.wide(1, "dy")
        product = rows.temp("product")
        yield k.vec("mul", product, y, dy)
        total = yield from rows.row_sum("total", product)
        yield k.vec("sub", dy, dy, (yield from rows.spread("row", total)))
        yield from rows.store(rows.first_out, dy)


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


class SoftmaxCrossEntropy(Program):
    """Logits, labels → loss per row, softmax - labels."""

    temporaries = 4

    def tile(self) -> Iterator[Instr]:
        k, rows = self.k, self.rows
        x = yield from rows.wide(0, "x")
        labels = yield from rows.wide(1, "labels")
        product, power = rows.temp("product"), rows.temp("power")
        top = yield from rows.row_max("top", x)
        yield k.vec("sub", x, x, (yield from rows.spread("row", top)))
        yield k.vec("exp", power, x)
        total = yield from rows.row_sum("total", power)
        logarithm = rows.per_row("logarithm")
        yield k.vec("ln", logarithm, total)
        scale = yield from self.inverse("inverse", total)
        yield k.vec("mul", power, power, (yield from rows.spread("row", scale)))
        yield k.vec("sub", power, power, labels)
        yield from rows.store(rows.first_out + 1, power)
        yield k.vec("sub", x, (yield from rows.spread("row", logarithm)), x)
        yield k.vec("mul", product, x, labels)
        loss = yield from rows.row_sum("loss", product)
        yield from rows.store_rows(rows.first_out, loss)


PROGRAMS: dict[str, type[Program]] = {
    "LayerNorm": LayerNorm,
    "LayerNormXBackpropV2": LayerNormXBackprop,
    "SoftmaxV2": Softmax,
    "SoftmaxGradExt": SoftmaxGradExt,
    "SoftmaxGrad": SoftmaxGrad,
    "ConfusionSoftmaxGrad": ConfusionSoftmaxGrad,
    "SoftmaxCrossEntropyWithLogits": SoftmaxCrossEntropy,
}
