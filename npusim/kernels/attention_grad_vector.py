"""The vector cores' part of the attention gradient (dav-2201): P and dS of tiles of 64 × 128.

Each of the two takes half of a block's columns. Scores come and go in NZ and are worked on as
rows: a copy aside and a copy back with strides, both ways (SubGrapA and SubGrapB of CANN's kernel).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from math import prod

import numpy as np

from npusim.kernels.attention_grad_cube import DONE, READY
from npusim.kernels.attention_grad_shape import (
    DP,
    DSCORES,
    PROBS,
    SCORES,
    SUMS,
    TOP,
    TOTAL,
    Block,
    Workspace,
    halves,
)
from npusim.kernels.attention_shape import F32, Problem, up
from npusim.kernels.attention_vector import F16, U8, hide, stat_rows
from npusim.kernels.cross_core import await_signal, signal
from npusim.kernels.lang import Kernel
from npusim.ops.training_attention import HIDDEN, STATS
from npusim.program.isa import Instr, Pipe
from npusim.program.region import Region

#: Rows and columns of a tile (CANN's s1Inner, s2Inner): the first rows that UB holds.
ROWS, COLUMNS = (64, 32, 16, 8), 128
CUBE = 0  #: number of the cube core in the block
Tile = tuple[int, int, int, int]  #: row, rows, column, columns within the block


def tiles(b: Block, number: int, most: int) -> list[Tile]:
    """The tiles, of up to `most` rows, of vector core 0 or 1; rows innermost."""
    first, count = halves(b.columns)[number]
    return [
        (row, min(most, b.rows - row), column, min(COLUMNS, first + count - column))
        for column in range(first, first + count, COLUMNS)
        for row in range(0, b.rows, most)
    ]


def tile_mask(p: Problem, b: Block, tile: Tile) -> Region | None:
    """The mask of a tile."""
    row, rows, column, columns = tile
    return p.mask_tile(b.batch, b.head, b.row + row, rows, b.column + column, columns)


def tile_masks(p: Problem, b: Block, number: int, most: int) -> list[Region | None]:
    """The masks of a vector core's tiles."""
    return [tile_mask(p, b, t) for t in tiles(b, number, most)]


def vector_bytes(p: Problem, base: int, b: Block, number: int, most: int) -> dict[int, int]:
    """Operand → bytes that a vector core moves for a block."""
    es = p.dtype.itemsize
    moved = dict.fromkeys((TOP, TOTAL, *(base + i for i in (DP, SCORES, PROBS, DSCORES, SUMS))), 0)
    if p.mask >= 0:
        moved[p.mask] = 0
    for t in tiles(b, number, most):
        scores, stats = t[1] * up(t[3], 16), t[1] * STATS * 4
        for i, n in ((DP, 4), (SCORES, 4), (PROBS, es), (DSCORES, es)):
            moved[base + i] += scores * n
        for i in (TOP, TOTAL, base + SUMS):
            moved[i] += stats
        mask = tile_mask(p, b, t)
        if mask is not None:
            moved[p.mask] += prod(mask.shape)
    return moved


def vector_program(
    k: Kernel, p: Problem, mine: list[Block], workspace: Workspace, number: int, most: int
) -> Iterator[Instr]:
    """P and dS of the core's columns, block by block, `most` rows at a time."""
    core = Tiles(k, p, workspace, most)
    for index, b in enumerate(mine):
        yield await_signal(k, Pipe.FIXP, Pipe.MTE2, READY + number)
        for tile in tiles(b, number, most):
            yield from core.tile(b, index, tile)
        yield signal(k, CUBE, Pipe.MTE3, Pipe.MTE2, DONE + number)


class Tiles:
    """Buffers of a vector core for tiles of `most` rows."""

    def __init__(self, k: Kernel, p: Problem, workspace: Workspace, most: int) -> None:
        self.k, self.p, self.workspace, self.most = k, p, workspace, most
        size = most * COLUMNS
        self.scores = k.queue("UB", size * 4, 1, Pipe.MTE2, Pipe.V)
        self.stats = k.queue("UB", 3 * most * STATS * 4, 1, Pipe.MTE2, Pipe.V)
        self.mask = k.queue("UB", size, 1, Pipe.MTE2, Pipe.V) if p.mask >= 0 else None
        self.aside = k.alloc("UB", size * 4)
        self.probs = k.alloc("UB", size * 4)
        self.out = k.queue("UB", size * p.dtype.itemsize, 2, Pipe.V, Pipe.MTE3)

    def tile(self, b: Block, index: int, tile: Tile) -> Iterator[Instr]:
        """P, then dS, of one tile."""
        k, (row, rows, _, columns) = self.k, tile
        stored = up(columns, 16)
        mask = tile_mask(self.p, b, tile)
        yield from self._load_stats(b, row, rows)
        yield from self._load(self._part(SCORES, b, index, tile), mask)
        yield self.stats.deque()
        x = yield from self._as_rows(rows, stored)
        yield from self._probabilities(x, columns, mask)
        probs = self.probs.region((rows, stored), F32)
        yield from self._leave(probs, self._part(PROBS, b, index, tile))
        yield self.scores.free()
        yield from self._load(self._part(DP, b, index, tile), None)
        x = yield from self._as_rows(rows, stored)
        sums = self._stat(2, rows)
        yield k.memo(("less sums", *x.shape), lambda: k.vec("sub", x, x, sums))
        yield k.memo(("ds", *x.shape), lambda: k.vec("mul", x, x, probs))
        yield from self._leave(x, self._part(DSCORES, b, index, tile))
        yield self.scores.free()
        yield self.stats.free()

    def _part(self, kind: int, b: Block, index: int, tile: Tile) -> Region:
        """(blocks, rows, 16) of a tile in workspace."""
        row, rows, column, columns = tile
        whole = self.workspace.scores(kind, b, index)
        return whole[column // 16 : (column + up(columns, 16)) // 16, row : row + rows]

    def _stat(self, which: int, rows: int) -> Region:
        """A statistic (maximum, sum, sum of dY·Y) to broadcast over a tile."""
        offset = which * self.most * STATS * 4
        return self.stats.front.region((rows, STATS), F32, offset)[:, :1]

    def _load_stats(self, b: Block, row: int, rows: int) -> Iterator[Instr]:
        k = self.k
        slot = yield from self.stats.alloc()
        sources = [stat_rows(i, self.p, b.batch, b.head, b.row + row, rows) for i in (TOP, TOTAL)]
        sources.append(self.workspace.sums(b.batch, b.head, b.row + row, rows))
        for i, src in enumerate(sources):
            dst = slot.region((rows, STATS), F32, i * self.most * STATS * 4)
            yield k.memo(("stats", i, rows), lambda d=dst, s=src: k.load(d, s))  # type: ignore[misc]
        yield self.stats.enque()

    def _load(self, src: Region, mask: Region | None) -> Iterator[Instr]:
        k = self.k
        slot = yield from self.scores.alloc()
        dst = slot.region(src.shape, F32)
        yield k.memo(("load", src.operand, *src.shape), lambda: k.load(dst, src))
        yield self.scores.enque()
        if mask is not None:
            assert self.mask is not None
            slot = yield from self.mask.alloc()
            tile = slot.region((mask.shape[0], src.shape[0] * 16), U8)[:, : mask.shape[1]]
            yield k.memo(("mask", src.shape, *mask.shape), lambda: k.load(tile, mask))
            yield self.mask.enque()
        yield self.scores.deque()

    def _as_rows(self, rows: int, stored: int) -> Generator[Instr, None, Region]:
        """The loaded tile from NZ to rows: aside, and back with strides."""
        k, size = self.k, rows * stored
        loaded, aside = self.scores.front.region((size,), F32), self.aside.region((size,), F32)
        yield k.memo(("aside", size), lambda: k.vec("copy", aside, loaded))
        x = self.scores.front.region((rows, stored), F32)
        blocks = self.aside.region((stored // 16, rows, 16), F32)
        turned = x.split(1, 16).permute(1, 0, 2)
        yield k.memo(
            ("rows", rows, stored), lambda: k.vec_by("copy", _same, loaded, turned, blocks)
        )
        return x

    def _probabilities(self, x: Region, columns: int, mask: Region | None) -> Iterator[Instr]:
        """probs = e^(scale · scores - maximum) / sum (SimpleSoftMax)."""
        k, key, scale = self.k, x.shape, self.p.scale
        yield k.memo(("scale", *key), lambda: k.vec("muls", x, x, scalar=scale))
        if mask is not None:
            assert self.mask is not None
            yield self.mask.deque()
            wide = self.aside.region(key, F16)
            yield from hide(k, x, self.mask.front.region(key, U8), wide, key)
            yield self.mask.free()
        if columns < key[1]:
            edge = x[:, columns:]
            yield k.memo(("edge", columns, *key), lambda: k.vec("dup", edge, scalar=HIDDEN))
        top, total, probs = (
            self._stat(0, key[0]),
            self._stat(1, key[0]),
            self.probs.region(key, F32),
        )
        yield k.memo(("shift", *key), lambda: k.vec("sub", x, x, top))
        yield k.memo(("exp", *key), lambda: k.vec("exp", x, x))
        yield k.memo(("divide", *key), lambda: k.vec("div", probs, x, total))

    def _leave(self, x: Region, dst: Region) -> Iterator[Instr]:
        """x (rows, columns) to workspace in the stored type, in NZ."""
        k, (rows, stored), dtype = self.k, x.shape, self.p.dtype
        place = yield from self.out.alloc()
        narrow = place.region((rows, stored), dtype)
        yield k.memo(("cast", rows, stored), lambda: k.vec("conv", narrow, x))
        aside = self.aside.region((rows, stored), dtype)
        yield k.memo(("aside 16", rows, stored), lambda: k.vec("copy", aside, narrow))
        turned = place.region((stored // 16, rows, 16), dtype)
        blocks = aside.split(1, 16).permute(1, 0, 2)
        yield k.memo(
            ("blocks", rows, stored), lambda: k.vec_by("copy", _same, narrow, turned, blocks)
        )
        yield self.out.enque()
        yield self.out.deque()
        yield k.memo(("store", dst.operand, *dst.shape), lambda: k.store(dst, turned))
        yield self.out.free()


def _same(x: np.ndarray) -> np.ndarray:
    return x
