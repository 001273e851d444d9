"""What programs on a tile of rows (N1, m, L) are made of; see `row_tiles`.

A value per row is a sum over N1 by accumulating adds and over the lanes by vcadd, one repeat a
row. CANN spreads it back over the tile in two ways:

* NZ rows in two steps: over (m, 16) once per tile, then over N1, which an instruction's strides do
  at full rate;
* ND rows, and NZ rows in one step, by the scalar unit: for each run of lanes it reads the value
  from UB and issues one vector_dup with it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
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
#: Cycles of the scalar unit to read one value from UB and issue a vector_dup with it: nine scalar
#: instructions of two cycles (LayerNormXBackpropV2 in NZ: 18 cycles per row and block of 16).
SCALAR_DUP = 18
#: Of a binary instruction's cycles per repeat: an add whose sum stays in place streams one operand
#: (BiasAddGrad in NZ 6.4 cycles per 128 elements in all, 4.25 of them the conversion).
HELD_SHARE = 0.5
Spread = Generator[Instr, None, Region]


def held_sum(k: Kernel, part: Region, x: Region) -> Instr:
    """part = Σ of x over its first axis, added onto `part`, which the instruction holds."""
    rate = k.chip.core.vector.costs["binary"]
    per = rate.b16 if x.dtype.itemsize == 2 else rate.b32
    held = None if per is None else per * HELD_SHARE
    return k.vec_by("accumulate", lambda a: a.sum(0), x, part, x, per_repeat=held)


class Rows:
    """The current tile: rows [r0, r1) of batch b; its loads, stores, reductions and spreads."""

    def __init__(
        self, k: Kernel, args: KernelArgs, shape: tuple[int, int, int, int], m: int, slots: int
    ) -> None:
        self.k, self.args, self.shape, self.m = k, args, shape, m
        self.stage = Stage(k, slots)
        self.first_out = len(args.inputs)
        self.b = self.r0 = self.r1 = 0
        _, self.n1, _, self.lanes = shape
        self._direct: set[int] = set()  # outputs computed in their own tile
        self._held: set[int] = set()  # operands whose loaded tile is still in use
        self._reducers: dict[tuple[str, str], RowReducer] = {}

    def at(self, b: int, r0: int, r1: int) -> None:
        """Move to a tile."""
        self.b, self.r0, self.r1 = b, r0, r1

    def _dtype(self, index: int) -> np.dtype:
        return self.args.operands[index].dtype.np

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
        dtype = self._dtype(index)
        whole = Region.dense("GM", index, 0, self.shape, dtype)
        return whole[self.b, :, self.r0 : self.r1]

    def _gm_rows(self, index: int) -> Region:
        batch, _, rows, _ = self.shape
        dtype = self._dtype(index)
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
        """Load a tile, in fp32: converted into temporary `name`, else as loaded till `release`."""
        x = yield from self.raw(index)
        if x.dtype == F32:
            self._held.add(index)
            return x
        wide = self.temp(name)
        yield self.k.vec("conv", wide, x)
        yield self.stage.free(index)
        return wide

    def release(self, *indices: int) -> Iterator[Instr]:
        """The vector pipe has read what `wide` gave."""
        for index in indices:
            if index in self._held:
                self._held.remove(index)
                yield self.stage.free(index)

    def load_rows(self, index: int, name: str) -> Spread:
        """Load a value per row, in fp32."""
        x = yield from self.stage.load(self._gm_rows(index), self.m)
        wide = self.per_row(name)
        yield self.k.vec("conv" if x.dtype != F32 else "copy", wide, x)
        yield self.stage.free(index)
        return wide

    def load_vector(self, index: int, name: str) -> Spread:
        """A value per column, in fp32, once per block; NZ: four rows' worth, a whole repeat."""
        gm = Region.dense("GM", index, 0, (self.n1, 1, self.lanes), self._dtype(index))
        x = yield from self.stage.load(gm, self.n1 * self.lanes)
        wide = self.stage.temp(name + " row", x.shape, F32)
        yield self.k.vec("conv" if x.dtype != F32 else "copy", wide, x)
        yield self.stage.free(index)
        if self.n1 == 1:
            return wide
        group = self.stage.temp(name, (self.n1, GROUP, self.lanes), F32)
        yield self.k.vec("copy", group, wide)
        return group

    def by_column(self, op: str, x: Region, *vectors: Region) -> Instr:
        """x = op(x, vectors…) with values per column (`load_vector`)."""
        if self.n1 == 1:
            return self.k.vec(op, x, x, *vectors)
        flat = x.split(1, GROUP)
        return self.k.vec(op, flat, flat, *(v.expand(1) for v in vectors))

    def over_rows(self, dst: Region, vector: Region) -> Instr:
        """A value per column of NZ (`load_vector`) over all rows of a tile."""
        return self.k.vec("copy", dst.split(1, GROUP), vector.expand(1))

    def result(self, index: int, name: str) -> Spread:
        """Where an output is computed: in its tile where that is fp32, else in a temporary."""
        if self._dtype(index) != F32:
            return self.temp(name)
        self._direct.add(index)
        return (yield from self.out(index, self.temp(name)))

    def store(self, index: int, value: Region) -> Iterator[Instr]:
        """Store a tile of an output, converted unless `result` gave its own place."""
        out = value
        if index not in self._direct:
            out = yield from self.out(index, value)
            yield self.k.vec("conv" if out.dtype != F32 else "copy", out, value)
        self._direct.discard(index)
        yield from self.stage.store(self.gm(index), out)

    def out(self, index: int, like: Region) -> Loading:
        """An output tile in its stored type, to be filled."""
        return self.stage.out(index, like.shape, self._dtype(index), self.room)

    def store_rows(self, index: int, value: Region) -> Iterator[Instr]:
        """Convert a value per row and store it."""
        dtype = self._dtype(index)
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
            yield held_sum(k, part, x)
            yield from self._pair_sums(total, part)
            return total
        yield from self._over_lanes("add", total, part)
        return total

    def _pair_sums(self, dst: Region, src: Region) -> Iterator[Instr]:
        """dst[m] = Σ src[m, 16]: vcpadd adds neighbours, four times."""
        m, lanes = src.shape
        while lanes > 1:
            lanes //= 2
            to = self.stage.temp(f"pairs{lanes}", (m, lanes), src.dtype, self.m * lanes)
            to = dst.expand(1) if lanes == 1 else to
            yield self.k.reduce("cpadd", to, src)
            src = to

    def row_max(self, name: str, x: Region) -> Spread:
        """Maximum over N1 and lanes, one value per row in x's type; x is kept."""
        k, top = self.k, self.per_row(name, x.dtype)
        part = x[0]
        if self.n1 > 1:
            halves = -(-self.n1 // 2)
            work = self.stage.temp(
                "halves", (halves, *self.tile[1:]), x.dtype, halves * self.m * self.lanes
            )
            part = self.stage.temp("maximum", self.tile[1:], x.dtype, self.m * self.lanes)
            yield from fold_rows(k, "max", part.expand(0)[0], x, work)
        yield from self._over_lanes("max", top, part)
        return top

    def _over_lanes(self, op: str, dst: Region, src: Region) -> Iterator[Instr]:
        if (op, src.dtype.name) not in self._reducers:
            reducer = RowReducer(self.k, op, self.m, self.lanes, src.dtype)
            self._reducers[op, src.dtype.name] = reducer
        yield from self._reducers[op, src.dtype.name](dst, src)

    def spread(self, name: str, value: Region) -> Spread:
        """A value per row in a form that broadcasts over the tile."""
        k, m = self.k, self.r1 - self.r0
        if self.n1 == 1:
            return (yield from self.spread_by_scalar(name, value))
        lanes = 32 // value.dtype.itemsize
        blocks = self.stage.temp("blocks" + name, (m, lanes), value.dtype, self.m * lanes)
        yield k.vec("brcb", blocks, value.expand(1))
        if lanes == self.lanes:
            return blocks.expand(0)
        wide = self.stage.temp("wide" + name, (m, self.lanes), F32, self.m * self.lanes)
        yield k.vec("copy", wide, blocks[:, :1])
        return wide.expand(0)

    def spread_by_scalar(self, name: str, value: Region) -> Spread:
        """A value per row over the whole tile: one vector_dup per row and block of N1."""
        whole = self.temp("whole" + name, value.dtype)
        yield from self._dups(whole, value)
        return whole

    def spread_lanes(self, name: str, value: Region) -> Spread:
        """A value per row over its lanes of one block of N1, by one vector_dup each."""
        shape, room = (1, *self.tile[1:]), self.m * self.lanes
        block = self.stage.temp("block" + name, shape, value.dtype, room)
        yield from self._dups(block, value)
        return block

    def _dups(self, whole: Region, value: Region) -> Iterator[Instr]:
        self.k.barrier()
        for i in range(whole.shape[0]):
            for r in range(whole.shape[1]):
                # all but the first, which waits for the values, differ in addresses only
                key = ("dup", value.dtype.name, i + r == 0)
                yield self.k.memo(key, self._dup(whole[i, r], value[r : r + 1]))

    def _dup(self, dst: Region, value: Region) -> Callable[[], Instr]:
        def build() -> Instr:
            dup = self.k.vec("copy", dst, value)
            dup.issue = SCALAR_DUP
            return dup

        return build


class Program:
    """One tile's computation.

    Class attributes:
        temporaries: tile-sized fp32 buffers (ND: one more where values per row are spread);
        vectors: inputs with a value per column.
        halves: maxima over N1 need half a tile in the stored type.
        strips: blocks split the rows of a matrix, and walk a batch of matrices one by one.
        stored: element types of operands.
    """

    temporaries: ClassVar[int] = 3
    vectors: ClassVar[tuple[int, ...]] = ()
    halves: ClassVar[bool] = False
    strips: ClassVar[bool] = False
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

    def inverse_root(self, name: str, value: Region) -> Spread:
        """1 / √(value + ε), per row: e^(-½ ln …), as CANN has it; sqrt is slow."""
        k, out = self.k, self.rows.per_row(name)
        yield k.vec("adds", out, value, scalar=self.attr("epsilon", 1e-12))
        yield k.vec("ln", out, out)
        yield k.vec("muls", out, out, scalar=-0.5)
        yield k.vec("exp", out, out)
        return out
