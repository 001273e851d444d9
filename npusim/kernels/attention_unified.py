"""FlashAttentionScore where one core is cube and vector core in one (910A).

A block takes bands of query rows of a head; against each piece of keys

    cube    scores of piece t                      L0C → UB
    vector  probabilities of piece t - 1           UB → L1
    cube    their product with V                   L0C → UB
    vector  the band's sums, brought to the newest maximum, in UB

so neither scores nor probabilities leave the core.

Tiling: s1 rows of a band, s2 keys of a piece, cores among which bands are dealt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from npusim.chip.spec import ChipSpec
from npusim.kernels.attention_bias import Bias
from npusim.kernels.attention_cube import Cube, pieces
from npusim.kernels.attention_shape import (
    F32,
    LINE,
    Band,
    Problem,
    band,
    band_starts,
    load_nz,
    up,
)
from npusim.kernels.attention_vector import F16, U8, hide, stat_rows
from npusim.kernels.cross_core import ub_to_l1
from npusim.kernels.lang import Kernel, fits
from npusim.kernels.row_softmax import MOST_ROWS, RowSoftmax
from npusim.ops.training_attention import HIDDEN, STATS
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks
from npusim.program.region import Region

SIZES = ((64, 256), (64, 128), (32, 128), (16, 64))  #: rows of a band, keys of a piece


def tilings(args: KernelArgs, p: Problem, chip: ChipSpec) -> Iterator[Tiling]:
    """Bands and pieces that fit the core, not longer than the rows."""
    for rows, keys in SIZES:
        s1, s2 = min(rows, up(p.shape.s1, 16)), min(keys, up(p.shape.s2, 16))
        if fits(chip, args, lambda k, s1=s1, s2=s2: _Core(k, p, s1, s2, 0)):  # type: ignore[misc]
            yield {"s1": s1, "s2": s2, "cores": chip.cores.count}


@dataclass(frozen=True)
class Piece:
    """Keys [column, column + columns) of a band."""

    band: Band
    column: int
    columns: int

    @property
    def first(self) -> bool:
        """The band's first piece."""
        return self.column == 0

    @property
    def last(self) -> bool:
        """The band's last piece."""
        return self.column + self.columns >= self.band.columns

    def bias(self, p: Problem) -> Region:
        """What is added to its scores."""
        b = self.band
        return p.bias_tile(b.batch, b.head, b.row, b.rows, self.column, self.columns)

    def mask(self, p: Problem) -> Region | None:
        """The mask of its scores, where any is hidden."""
        b = self.band
        return p.mask_tile(b.batch, b.head, b.row, b.rows, self.column, self.columns)


def _share(p: Problem, t: Tiling, block: int) -> list[Piece]:
    starts = band_starts(p.shape, t["s1"], t["cores"])
    bands = (band(p.shape, t["s1"], i) for i in range(starts[block], starts[block + 1]))
    return [
        Piece(b, column, min(t["s2"], b.columns - column))
        for b in bands
        for column in range(0, b.columns, t["s2"])
    ]


def plan(args: KernelArgs, p: Problem, t: Tiling) -> Plan:
    """Bytes piece by piece; blocks are alike when their pieces are."""
    a, es, out = p.shape, p.dtype.itemsize, len(args.inputs)
    blocks = len(band_starts(a, t["s1"], t["cores"])) - 1
    moved = {i: 0 for i, o in enumerate(args.operands) if o is not None}
    keys = []
    for block in range(blocks):
        mine = _share(p, t, block)
        keys.append(tuple((i.band.rows, i.column, i.columns, i.mask(p) is not None) for i in mine))
        for i in mine:
            moved[1] += i.columns * a.d * es
            moved[2] += i.columns * a.d * es
            mask = i.mask(p)
            if mask is not None:
                moved[p.mask] += prod(mask.shape)
            if p.bias >= 0:
                moved[p.bias] += prod(i.bias(p).shape) * es
            if i.last:
                moved[0] += i.band.rows * a.d * es
                moved[out] += i.band.rows * STATS * 4
                moved[out + 1] += i.band.rows * STATS * 4
                moved[out + 2] += i.band.rows * a.d * es
    sizes = {i: p.distinct(i, args.operands[i].nbytes) for i in moved}
    traffic = {i: Traffic(min(n, sizes[i]), n) for i, n in moved.items() if n}
    return Plan(t, blocks, traffic, group_blocks(keys))


def body(k: Kernel, args: KernelArgs, p: Problem, t: Tiling, block: int) -> Iterator[Instr]:
    """Scores of a piece, then everything else of the piece before."""
    core = _Core(k, p, t["s1"], t["s2"], len(args.inputs))
    mine = _share(p, t, block)
    for i in range(len(mine) + 1):
        if i < len(mine):
            yield from core.scores(mine[i])
        if i:
            yield from core.probabilities(mine[i - 1])
            yield from core.values(mine[i - 1])
            yield from core.sums(mine[i - 1])


class _Core:
    """Buffers of a block."""

    def __init__(self, k: Kernel, p: Problem, s1: int, s2: int, out: int) -> None:
        self.k, self.p, self.out = k, p, out
        es, d, width = p.dtype.itemsize, p.shape.d, up(s2, LINE)
        self.cube = Cube(k, p.dtype, s1)
        self.score_tiles = self.cube.results(2, Pipe.V)
        self.product_tile = self.cube.results(1, Pipe.V)
        self.q = k.queue("L1", s1 * d * es, 2, Pipe.MTE2, Pipe.MTE1)
        self.keys = k.queue("L1", up(s2, 16) * d * es, 2, Pipe.MTE2, Pipe.MTE1)
        self.vals = k.queue("L1", up(s2, 16) * d * es, 2, Pipe.MTE2, Pipe.MTE1)
        self.panel = k.queue("L1", s1 * width * es, 2, Pipe.MTE3, Pipe.MTE1)
        self.work = k.alloc("UB", s1 * width * 4)
        self.narrow = k.queue("UB", s1 * width * es, 1, Pipe.V, Pipe.MTE3)
        self.mask = k.queue("UB", s1 * width, 1, Pipe.MTE2, Pipe.V) if p.mask >= 0 else None
        self.bias = Bias(k, p, s1 * width) if p.bias >= 0 else None
        self.total = k.alloc("UB", s1 * d * 4)
        self.scratch = k.alloc("UB", max(s1 * d * 4, s1 * width * 2))
        self.stats = RowSoftmax(k, s1, 1, floored=p.bias >= 0)
        self._ready, self._stored = k.flag_id(), k.flag_id()
        self._bands = 0

    def scores(self, i: Piece) -> Iterator[Instr]:
        """Q·Kᵀ of a piece into L0C, 128 columns a tile; the vector pipe takes them later."""
        k, p, b, d = self.k, self.p, i.band, self.p.shape.d
        if i.first:
            slot = yield from self.q.alloc()
            yield load_nz(k, slot, p.rows(0, b.batch, b.head, b.row, b.rows), ("q",))
            yield self.q.enque()
            yield self.q.deque()
        slot = yield from self.keys.alloc()
        keys = p.kv_rows(1, b.batch, b.head, i.column, i.columns)
        yield load_nz(k, slot, keys, ("k",))
        yield self.keys.enque()
        yield self.keys.deque()
        a = self.cube.panel(self.q.front, b.rows, d)
        whole = self.cube.panel(self.keys.front, i.columns, d)
        for n0, n in pieces(i.columns):
            c = yield from self.score_tiles.alloc()
            yield from self.cube.product(c, a, False, whole[:, n0 : n0 + up(n, 16)], False, True)
            yield self.score_tiles.enque()
        yield self.keys.free()
        if i.last:
            yield self.q.free()

    def probabilities(self, i: Piece) -> Iterator[Instr]:
        """Scores from L0C: scale, mask, softmax; probabilities into L1."""
        k, p, rows = self.k, self.p, i.band.rows
        width, stored = up(i.columns, LINE), up(i.columns, 16)
        mask = i.mask(p)
        if mask is not None:
            yield from self._load_mask(mask, width)
        if i.first and self._bands:
            yield k.wait_flag(Pipe.MTE3, Pipe.V, self._stored)
        x = self.work.region((rows, width), F32)
        for n0, n in pieces(i.columns):
            yield self.score_tiles.deque()
            blocks = up(n, 16) // 16
            src = self.score_tiles.front.region((blocks, up(rows, 16), 16), F32)[:, :rows]
            dst = x[:, n0 : n0 + blocks * 16].split(1, 16).permute(1, 0, 2)
            yield k.memo(("l0c", rows, n, width), lambda d=dst, s=src: k.l0c_to_ub(d, s))  # type: ignore[misc]
            yield self.score_tiles.free()
        yield k.memo(("scale", *x.shape), lambda: k.vec("muls", x, x, scalar=p.scale))
        if mask is not None:
            assert self.mask is not None
            yield self.mask.deque()
            wide = self.scratch.region(x.shape, F16)
            yield from hide(k, x, self.mask.front.region(x.shape, U8), wide, x.shape)
            yield self.mask.free()
        if self.bias is not None:
            yield from self.bias(x, i.columns, i.bias(p), self.scratch)
        if i.columns < width:
            edge = x[:, i.columns :]
            yield k.memo(("edge", *edge.shape), lambda: k.vec("dup", edge, scalar=HIDDEN))
        for row in range(0, rows, MOST_ROWS):
            yield from self.stats(x[row : row + MOST_ROWS], row, i.first, 0, 0)
        place = yield from self.narrow.alloc()
        narrow = place.region((rows, width), p.dtype)
        yield k.memo(("p", *x.shape), lambda: k.vec("conv", narrow, x))
        yield self.narrow.enque()
        slot = yield from self.panel.alloc()
        yield self.narrow.deque()
        dst = self.cube.panel(slot, rows, stored)[:, :rows]
        src = narrow[:, :stored].split(1, 16).permute(1, 0, 2)
        yield k.memo(("to l1", rows, stored, width), lambda: ub_to_l1(k, dst, src))
        yield self.narrow.free()
        yield self.panel.enque()

    def _load_mask(self, mask: Region, width: int) -> Iterator[Instr]:
        assert self.mask is not None
        rows, columns = mask.shape
        slot = yield from self.mask.alloc()
        tile = slot.region((rows, width), U8)[:, :columns]
        yield self.k.memo(("mask", width, *mask.shape), lambda: self.k.load(tile, mask))
        yield self.mask.enque()

    def values(self, i: Piece) -> Iterator[Instr]:
        """P·V of a piece into L0C."""
        k, b, d = self.k, i.band, self.p.shape.d
        slot = yield from self.vals.alloc()
        values = self.p.kv_rows(2, b.batch, b.head, i.column, i.columns)
        yield load_nz(k, slot, values, ("v",))
        yield self.vals.enque()
        c = yield from self.product_tile.alloc()
        yield self.panel.deque()
        yield self.vals.deque()
        stored = up(i.columns, 16)
        probs = self.cube.panel(self.panel.front, b.rows, stored)
        vals = self.cube.panel(self.vals.front, i.columns, d)
        for k0, depth in pieces(stored):
            part = probs[k0 // 16 : (k0 + depth) // 16]
            yield from self.cube.product(c, part, False, vals[:, k0 : k0 + depth], True, k0 == 0)
        yield self.panel.free()
        yield self.vals.free()
        yield self.product_tile.enque()

    def sums(self, i: Piece) -> Iterator[Instr]:
        """The product onto the band's sums; after the last one, the results to GM."""
        k, rows, d = self.k, i.band.rows, self.p.shape.d
        total = self.total.region((rows, d), F32)
        new = total if i.first else self.scratch.region((rows, d), F32)
        yield self.product_tile.deque()
        src = self.product_tile.front.region((d // 16, up(rows, 16), 16), F32)[:, :rows]
        dst = new.split(1, 16).permute(1, 0, 2)
        yield k.memo(("product", i.first, rows), lambda: k.l0c_to_ub(dst, src))
        yield self.product_tile.free()
        if not i.first:
            lane = self.stats.lane(self.stats.factors[0], 0, rows)
            yield k.memo(("rescale", rows), lambda: k.vec("mul", total, total, lane))
            yield k.memo(("total", rows), lambda: k.vec("add", total, total, new))
        if i.last:
            yield from self._finish(i.band, total)

    def _finish(self, b: Band, total: Region) -> Iterator[Instr]:
        k, p, rows = self.k, self.p, b.rows
        lane = self.stats.lane(self.stats.sums[0], 0, rows)
        narrow = self.scratch.region(total.shape, p.dtype)
        yield k.memo(("divide", rows), lambda: k.vec("div", total, total, lane))
        yield k.memo(("cast", rows), lambda: k.vec("conv", narrow, total))
        yield k.set_flag(Pipe.V, Pipe.MTE3, self._ready)
        yield k.wait_flag(Pipe.V, Pipe.MTE3, self._ready)
        for index, kept in enumerate((self.stats.top, self.stats.sums[0])):
            dst = stat_rows(self.out + index, p, b.batch, b.head, b.row, rows)
            src = self.stats.stat(kept, 0, rows)
            yield k.memo(("keep", index, rows), lambda d=dst, s=src: k.store(d, s))  # type: ignore[misc]
        y = p.rows(self.out + 2, b.batch, b.head, b.row, rows)
        yield k.memo(("store", rows), lambda: k.store(y, narrow))
        yield k.set_flag(Pipe.MTE3, Pipe.V, self._stored)
        self._bands += 1
