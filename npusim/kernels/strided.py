"""GM → UB → GM copies of strided regions: the engine behind Move, Transpose and TransData.

A launch is a list of `Job`s, each `dst = src` for two strided views of GM of one shape. Jobs
differ only in what happens in UB between the load and the store:

* nothing: rows (the longest run that is contiguous on both sides) pass through;
* spread: axes along which src is broadcast are loaded once and repeated by the vector unit;
* swap: src runs along another axis than dst, so 2-D tiles are transposed by the vector unit;
* fill: there is no src; a constant tile is stored again and again;
* convert: src and dst are fp16 and fp32 (or the other way), and a tile is converted; one that is
  transposed too has a third buffer, and is transposed while it is narrow.

Where src is shorter than dst along an axis (the padding of blocked layouts), dst gets zeros.
A job is cut into grids of equal tiles, which the blocks share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.kernels.grid import Share, deal
from npusim.kernels.lang import ALIGN
from npusim.kernels.ub_pass import (
    by_scalar,
    scalar_cycles,
    spread_cycles,
)
from npusim.program import cost
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks
from npusim.program.region import Region

BLOCK = 16  #: elements of a row that a transposing instruction takes (32 for one-byte types)
UB_SHARE = 0.75  #: of UB that tiles may use
MIN_BYTES = 2048  #: of a tile, before a launch spreads over more cores
RUN_BYTES = 512  #: contiguous run that a transposed tile aims at on both sides

_BITS = {n: np.dtype(f"uint{8 * n}") for n in (1, 2, 4, 8)}


@dataclass(frozen=True, eq=False)
class Job:
    """dst = src (None: the bit pattern `fill`).

    `swap`: the axis along which src is contiguous; `pick`: rows shorter than a block are put
    together in UB where the DMA cannot.
    """

    dst: Region
    src: Region | None
    fill: int = 0
    swap: int = -1
    spread: bool = False
    pick: bool = False

    @property
    def convert(self) -> bool:
        """Whether the elements become wider or narrower."""
        return self.src is not None and self.src.dtype.itemsize != self.dst.dtype.itemsize

    @property
    def itemsizes(self) -> tuple[int, int]:
        """Bytes of an element, on the narrower and on the wider side."""
        size = self.dst.dtype.itemsize
        other = size if self.src is None else self.src.dtype.itemsize
        return min(size, other), max(size, other)

    @property
    def unit(self) -> int:
        """Elements that a tile's padded rows are multiples of."""
        itemsize = self.itemsizes[0]
        return max(BLOCK, ALIGN // itemsize) if self.swap >= 0 else max(1, ALIGN // itemsize)

    def rounding(self, axis: int) -> int:
        """What a chunk of an axis is a multiple of (unless it is the whole axis)."""
        if axis in (self.swap, len(self.dst.shape) - 1) and self.swap >= 0:
            return self.unit
        if self.src is not None and self.src.shape[axis] < self.dst.shape[axis]:
            return BLOCK
        return 1

    def tile_shapes(self, chunk: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Padded shapes of the loaded and of the stored tile; the loaded one of a swap has the
        swapped axis last."""
        unit = self.unit
        out = (*chunk[:-1], -(-chunk[-1] // unit) * unit)
        if self.swap >= 0:
            rows = [n for a, n in enumerate(chunk) if a != self.swap]
            width = -(-chunk[self.swap] // unit) * unit
            rows[-1] = out[-1]
            return (*rows, width), (*chunk[: self.swap], width, *out[self.swap + 1 :])
        if self.spread and self.src is not None:
            once = [1 if s == 0 else n for n, s in zip(chunk, self.src.strides, strict=True)]
            once[-1] = -(-once[-1] // unit) * unit
            return tuple(once), out
        return out, out

    def slot_bytes(self, chunk: tuple[int, ...]) -> int:
        """Bytes of the larger of the two tiles."""
        return max(prod(s) for s in self.tile_shapes(chunk)) * self.itemsizes[1]


def job(dst: Region, src: Region | None, fill: int = 0) -> list[Job]:
    """The job `dst = src`, its axes collapsed; empty when there is nothing to move."""
    if dst.size == 0:
        return []
    if src is None or src.dtype.itemsize == dst.dtype.itemsize:
        dst = dst.as_type(_BITS[dst.dtype.itemsize])
        src = None if src is None else src.as_type(dst.dtype)
    if src is None:
        dst, _ = _collapse(dst, dst)
        return [Job(_rows(dst), None, fill)]
    dst, src = _collapse(dst, src)
    itemsize = src.dtype.itemsize
    along = [a for a, s in enumerate(src.strides) if s == itemsize]
    dense = dst.strides[-1] == dst.dtype.itemsize
    if dense and (src.strides[-1] == itemsize or 0 in src.strides[-1:]):
        return [Job(dst, src, spread=0 in src.strides)]
    if dense and along:
        return [Job(dst, src, swap=along[-1])]
    return [Job(_element(dst), _element(src), spread=0 in src.strides)]


def _rows(dst: Region) -> Region:
    return dst if dst.strides[-1] == dst.dtype.itemsize else _element(dst)


def _element(r: Region) -> Region:
    """Rows of one element: what a DMA moves when neighbours are apart on one side."""
    return Region(
        r.space, r.operand, r.offset, (*r.shape, 1), (*r.strides, r.dtype.itemsize), r.dtype
    )


def _collapse(dst: Region, src: Region) -> tuple[Region, Region]:
    """Drop axes of extent 1 and merge neighbours that are one run on both sides."""
    axes: list[tuple[int, int, int, int]] = []  # dst extent, src extent, dst stride, src stride
    for n, m, d, s in zip(dst.shape, src.shape, dst.strides, src.strides, strict=True):
        if n == 1:
            continue
        if axes:
            n0, m0, d0, s0 = axes[-1]
            if d0 == n * d and s0 == n * s and m == n:
                axes[-1] = (n0 * n, m0 * n, d, s)
                continue
        axes.append((n, m, d, s))
    if not axes:
        axes = [(1, 1, dst.dtype.itemsize, src.dtype.itemsize)]
    n_, m_, d_, s_ = zip(*axes, strict=True)
    return (
        Region(dst.space, dst.operand, dst.offset, n_, d_, dst.dtype),
        Region(src.space, src.operand, src.offset, m_, s_, src.dtype),
    )


# -- tiles ---------------------------------------------------------------------------------


def chunk_of(j: Job, limit: int) -> tuple[int, ...]:
    """The tile of a job whose slot takes at most `limit` bytes, or the smallest there is."""
    shape = j.dst.shape
    chunk = _smallest(j)
    last = len(shape) - 1
    order = [(a, shape[a]) for a in range(last, -1, -1)]
    if j.swap >= 0:
        run = RUN_BYTES // j.dst.dtype.itemsize
        order = [(last, BLOCK), (j.swap, run), (last, run), (j.swap, shape[j.swap]), *order]
    for axis, cap in order:
        chunk[axis] = max(chunk[axis], _grow(j, chunk, axis, min(cap, shape[axis]), limit))
    return tuple(_even(j, a, c) for a, c in enumerate(chunk))


def _smallest(j: Job) -> list[int]:
    """The smallest legal tile: one rounding step along each axis."""
    return [min(n, j.rounding(a)) for a, n in enumerate(j.dst.shape)]


def _grow(j: Job, chunk: list[int], axis: int, cap: int, limit: int) -> int:
    """The largest extent of one axis, at most `cap`, that keeps the slot within `limit` bytes."""
    step = j.rounding(axis)

    def fits(n: int) -> bool:
        return j.slot_bytes((*chunk[:axis], n, *chunk[axis + 1 :])) <= limit

    if fits(cap):
        if cap < j.dst.shape[axis]:
            cap = max(min(step, cap), cap // step * step)
        return cap
    low, high = 1, -(-cap // step)  # in steps: low is taken even when it does not fit
    while high - low > 1:
        mid = (low + high) // 2
        low, high = (mid, high) if fits(mid * step) else (low, mid)
    return min(low * step, cap)


def _even(j: Job, axis: int, c: int) -> int:
    """A chunk no larger than `c` that cuts the axis into as many, but equal, pieces."""
    n, step = j.dst.shape[axis], j.rounding(axis)
    if c >= n:
        return n
    even = -(-n // -(-n // c))
    return min(c, -(-even // step) * step)


@dataclass(frozen=True, eq=False)
class Grid:
    """A job (or the part of one) that equal tiles of `chunk` elements cover exactly."""

    job: Job
    chunk: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Tiles along each axis."""
        return tuple(-(-n // c) for n, c in zip(self.job.dst.shape, self.chunk, strict=True))

    def tile(self, index: int) -> tuple[Region, Region | None]:
        """dst and src of one tile."""
        starts = []
        for n, c in zip(reversed(self.counts), reversed(self.chunk), strict=True):
            index, i = divmod(index, n)
            starts.append(i * c)
        starts.reverse()
        dst = _box(self.job.dst, starts, self.chunk)
        return dst, None if self.job.src is None else _box(self.job.src, starts, self.chunk)

    def rows(self, r: Region) -> Region:
        """A region of a tile with the axis last along which src is contiguous."""
        swap = self.job.swap
        if swap < 0:
            return r
        axes = [a for a in range(len(r.shape)) if a != swap]
        return r.permute(*axes, swap)

    def once(self, src: Region) -> Region:
        """The elements of a src tile that are loaded: broadcast axes once."""
        if not self.job.spread:
            return src
        shape = tuple(1 if s == 0 else n for n, s in zip(src.shape, src.strides, strict=True))
        return Region(src.space, src.operand, src.offset, shape, src.strides, src.dtype)


def _box(r: Region, starts: Sequence[int], sizes: Sequence[int]) -> Region:
    offset = r.offset + sum(i * s for i, s in zip(starts, r.strides, strict=True))
    shape = tuple(min(c, n - i) for i, c, n in zip(starts, sizes, r.shape, strict=True))
    return Region(r.space, r.operand, offset, shape, r.strides, r.dtype)


def grids(j: Job, chunk: tuple[int, ...], axis: int = 0) -> list[Grid]:
    """The job as grids of equal tiles: full chunks, and the tails of ragged axes."""
    if axis == len(chunk):
        return [Grid(j, chunk)]
    n, c = j.dst.shape[axis], chunk[axis]
    covered = n if j.src is None else min(n, j.src.shape[axis])
    full = covered // c * c
    out: list[Grid] = []
    if full:
        out += grids(_part(j, axis, 0, full), chunk, axis + 1)
    if full < n:
        tail = (*chunk[:axis], n - full, *chunk[axis + 1 :])
        out += grids(_part(j, axis, full, n - full), tail, axis + 1)
    return out


def _part(j: Job, axis: int, start: int, size: int) -> Job:
    if start == 0 and size == j.dst.shape[axis]:
        return j
    starts = [0] * len(j.dst.shape)
    sizes = list(j.dst.shape)
    starts[axis], sizes[axis] = start, size
    src = None if j.src is None else _box(j.src, starts, sizes)
    return replace(j, dst=_box(j.dst, starts, sizes), src=src)


# -- the launch ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TiledLaunch:
    """A tiled launch: grids, slot bytes of its queues, blocks."""

    grids: tuple[Grid, ...]
    slot: int
    blocks: int

    def shares(self, block: int) -> list[Share]:
        """The block's tiles of each grid."""
        return deal([prod(g.counts) for g in self.grids], self.blocks, block)


def passes(j: Job, chip: ChipSpec) -> bool:
    """Whether a job's tiles are worked on in UB between load and store."""
    if j.src is None:
        return False
    return j.convert or j.swap >= 0 or j.spread or (j.pick and by_scalar(j.dst, j.src, chip))


def slots_of(jobs: Sequence[Job], chip: ChipSpec) -> int:
    """UB slots that a list of jobs needs in all."""
    direct = any(j.src is not None and not passes(j, chip) for j in jobs)
    through = any(passes(j, chip) for j in jobs)
    fills = len({j.fill for j in jobs if j.src is None})
    third = any(j.convert and j.swap >= 0 for j in jobs)
    return 2 * direct + 4 * through + third + fills


def slot_limit(jobs: Sequence[Job], chip: ChipSpec) -> int:
    """Bytes of UB that one tile may take."""
    return int(chip.core.ub.size * UB_SHARE) // max(1, slots_of(jobs, chip)) // ALIGN * ALIGN


def layout_of(jobs: Sequence[Job], chip: ChipSpec, tiling: Tiling) -> TiledLaunch:
    """A tiling's grids and block dim ("tile": bytes that a tile aims at; "blocks": at most)."""
    limit = min(tiling["tile"], slot_limit(jobs, chip))
    chunks = [chunk_of(j, limit) for j in jobs]
    cut = tuple(g for j, c in zip(jobs, chunks, strict=True) for g in grids(j, c))
    slot = max((g.job.slot_bytes(g.chunk) for g in cut), default=0)
    tiles = sum(prod(g.counts) for g in cut)
    return TiledLaunch(cut, slot, max(1, min(tiling["blocks"], tiles)))


def tilings(jobs: Sequence[Job], chip: ChipSpec) -> Iterator[Tiling]:
    """Tile sizes that give every core the same number of tiles, as far as the data allow."""
    total = sum(j.slot_bytes(j.dst.shape) for j in jobs)
    limit, cores = slot_limit(jobs, chip), chip.vector_cores()
    if any(j.slot_bytes(tuple(_smallest(j))) > limit for j in jobs):
        return
    waves = max(1, -(-total // (cores * limit)))
    seen = set()
    for n in (waves,) if len(jobs) > 8 else (waves, waves + 1, 2 * waves, 4 * waves):
        tile = min(limit, max(MIN_BYTES, -(-total // (cores * n))))
        if tile not in seen:
            seen.add(tile)
            yield {"tile": tile, "blocks": cores}


def estimate(jobs: Sequence[Job], chip: ChipSpec, tiling: Tiling) -> float:
    """Cycles of the busiest block, with the load of one tile and its store exposed."""
    lay = layout_of(jobs, chip, tiling)
    share = chip.l2_rate / lay.blocks
    steady = fill = 0.0
    latency = chip.l2.read_latency + chip.hbm.latency  # two slots hide it where tiles are large
    for g in lay.grids:
        load, vector, store = _tile_cycles(g, chip, share)
        turn = (load + latency + max(vector, store)) / 2 if vector else 0.0
        steady += -(-prod(g.counts) // lay.blocks) * max(load, vector, store, turn)
        fill = max(fill, load + vector + store - max(load, vector, store))
    return steady + fill + lay.blocks * chip.cycles(chip.scheduler.per_block)


def _tile_cycles(g: Grid, chip: ChipSpec, share: float) -> tuple[float, float, float]:
    mte2, mte3, itemsize = chip.core.mte2, chip.core.mte3, g.job.dst.dtype.itemsize
    dst, src = g.tile(0)
    loaded, stored = ub_tiles(g, 0, 0)
    cap = cost.dma_cap(dst.nbytes, cost.bursts(dst, stored), mte3.rate, mte3.burst, mte3.min_burst)
    store = mte3.head + dst.nbytes / min(cap, share)
    if src is None:
        return 0.0, 0.0, store
    once = g.once(src)
    pieces = cost.bursts(g.rows(narrow(loaded, once.shape)), g.rows(once))
    cap = cost.dma_cap(once.nbytes, pieces, mte2.ub_rate, mte2.burst, mte2.min_burst)
    load = mte2.head + once.nbytes / min(cap, share)
    if not passes(g.job, chip):
        return load, 0.0, store
    costs = chip.core.vector.costs["transpose" if g.job.swap >= 0 else "dup"]
    per = (costs.b16 if itemsize <= 2 else costs.b32) or 0.0
    vector: float | None = None
    if g.job.convert:
        cast = _cast_cycles(g, stored, chip)
        return load, cast + (per * stored.size * 2 / 256 if g.job.swap >= 0 else 0.0), store
    if g.job.swap < 0:
        rows, spread = narrow(loaded, once.shape), g.job.spread
        vector = spread_cycles(stored, rows, chip) if spread else scalar_cycles(stored.size)
    return load, per * stored.nbytes / 256 if vector is None else vector, store


def _cast_cycles(g: Grid, stored: Region, chip: ChipSpec) -> float:
    """Cycles to convert a tile: a repeat is 256 B of the wider type."""
    costs = chip.core.vector.costs["conv"]
    return (costs.b32 or 0.0) * stored.size * g.job.itemsizes[1] / 256


def ub_tiles(g: Grid, loaded_at: int, stored_at: int) -> tuple[Region, Region]:
    """The loaded and the stored tile in UB, axes in dst's order; the stored one not padded."""
    loaded, stored = g.job.tile_shapes(g.chunk)
    dtype = g.job.dst.dtype
    was = dtype if g.job.src is None else g.job.src.dtype
    src = Region.dense("UB", -1, loaded_at, loaded, was)
    dst = Region.dense("UB", -1, stored_at, stored, dtype)
    if g.job.swap >= 0:
        axes = list(range(len(loaded) - 1))
        axes.insert(g.job.swap, len(loaded) - 1)
        src = src.permute(*axes)
    return src, narrow(dst, g.chunk)


def narrow(r: Region, shape: Sequence[int]) -> Region:
    """A region cut down to a shape."""
    return Region(r.space, r.operand, r.offset, tuple(shape), r.strides, r.dtype)


def plan(jobs: Sequence[Job], args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
    """Block dim, classes and traffic of a launch."""
    lay = layout_of(jobs, chip, tiling)
    total: dict[int, int] = {}
    for g in lay.grids:
        dst, src = g.tile(0)
        tiles = prod(g.counts)
        total[dst.operand] = total.get(dst.operand, 0) + dst.nbytes * tiles
        if src is not None:
            loaded = g.once(src).nbytes * tiles
            total[src.operand] = total.get(src.operand, 0) + loaded
    traffic = {o: Traffic(min(n, args.operands[o].nbytes), n) for o, n in total.items()}
    keys = [tuple(s.count for s in lay.shares(b)) for b in range(lay.blocks)]
    return Plan(tiling, lay.blocks, traffic, group_blocks(keys))


def bits_of(value: Any, dtype: np.dtype) -> int:
    """The bit pattern of a value in an element type."""
    return int(np.asarray(value, dtype).reshape(1).view(_BITS[np.dtype(dtype).itemsize])[0])
