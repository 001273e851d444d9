"""The program of a strided copy: how a tile of each kind passes through UB (see `strided`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from npusim.kernels.lang import Alloc, Kernel, Queue
from npusim.kernels.strided import Grid, Job, layout_of, narrow, passes, ub_tiles
from npusim.kernels.ub_pass import (
    buffers_of,
    row_commands,
    scalar_cycles,
    spread_cycles,
    swap_cycles,
)
from npusim.program import cost
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import Tiling
from npusim.program.region import Region


def body(k: Kernel, jobs: Sequence[Job], tiling: Tiling, block: int) -> Iterator[Instr]:
    """The program of one block: its tiles of every grid."""
    lay = layout_of(jobs, k.chip, tiling)
    mover = _Mover(k, jobs, lay.slot)
    for g, share in zip(lay.grids, lay.shares(block), strict=True):
        if not share.count:
            continue
        if g.job.src is None:
            yield from mover.constant(g)
        for i in k.loop(share.count):
            yield from mover.tile(g, share.start + i)


class _Mover:
    """The queues of a launch, and how a tile of each kind passes through them."""

    def __init__(self, k: Kernel, jobs: Sequence[Job], slot: int) -> None:
        self._k = k
        self._fills: dict[int, Region] = {}
        through = any(passes(j, k.chip) for j in jobs)
        direct = any(j.src is not None and not passes(j, k.chip) for j in jobs)
        self._slot = slot
        self._direct: Queue | None = None
        self._in: Queue | None = None
        self._out: Queue | None = None
        self._third: Alloc | None = None
        if any(j.convert and j.swap >= 0 for j in jobs):
            self._third = k.alloc("UB", slot)
        if direct:
            self._direct = k.queue("UB", slot, buffers_of(k.args), Pipe.MTE2, Pipe.MTE3)
        if through:
            self._in = k.queue("UB", slot, buffers_of(k.args), Pipe.MTE2, Pipe.V)
            self._out = k.queue("UB", slot, buffers_of(k.args), Pipe.V, Pipe.MTE3)

    def constant(self, g: Grid) -> Iterator[Instr]:
        """A slot full of the grid's constant, made once."""
        if g.job.fill in self._fills:
            return
        queue = self._k.queue("UB", self._slot, 1, Pipe.V, Pipe.MTE3)
        slot = yield from queue.alloc()
        dtype = g.job.dst.dtype
        tile = slot.region((self._slot // dtype.itemsize,), dtype)
        yield self._k.vec("dup", tile, scalar=g.job.fill)
        yield queue.enque()
        yield queue.deque()
        self._fills[g.job.fill] = tile

    def tile(self, g: Grid, index: int) -> Iterator[Instr]:
        """One tile of a grid."""
        dst, src = g.tile(index)
        if src is None:
            _, stored = ub_tiles(g, 0, self._fills[g.job.fill].offset)
            yield self._k.store(dst, stored)
        elif self._direct is not None and not passes(g.job, self._k.chip):
            slot = yield from self._direct.alloc()
            loaded, stored = ub_tiles(g, slot.offset, slot.offset)
            yield self._load(g, loaded, src)
            yield self._direct.enque()
            yield self._direct.deque()
            yield self._k.store(dst, stored)
            yield self._direct.free()
        else:
            yield from self._through(g, dst, src)

    def _through(self, g: Grid, dst: Region, src: Region) -> Iterator[Instr]:
        assert self._in is not None and self._out is not None
        before = yield from self._in.alloc()
        yield self._load(g, ub_tiles(g, before.offset, 0)[0], g.once(src))
        yield self._in.enque()
        yield self._in.deque()
        after = yield from self._out.alloc()
        loaded, stored = ub_tiles(g, before.offset, after.offset)
        if g.job.convert:
            yield from self._converted(g, stored, loaded, dst.size)
        elif g.job.swap >= 0:
            whole = narrow(stored, g.job.tile_shapes(g.chunk)[1])
            yield self._swap(whole, loaded, dst.size)
        else:
            yield self._spread(g, stored, narrow(loaded, g.once(src).shape))
        yield self._in.free()
        yield self._out.enque()
        yield self._out.deque()
        pieces = self._commands(dst, stored, False) if self._rows_alone(g) else None
        yield self._k.store_pairs([(dst, stored)], pieces)
        yield self._out.free()

    def _swap(self, whole: Region, loaded: Region, elements: int) -> Instr:
        """A tile transposed; `elements` of it are no padding."""
        cycles = swap_cycles(self._k.args, self._k.chip, whole.nbytes, elements)
        if cycles is None:
            return self._k.vec("transpose", whole, loaded)
        return self._k.vec_taking("transpose", cycles, whole, loaded)

    def _converted(self, g: Grid, stored: Region, loaded: Region, elements: int) -> Iterator[Instr]:
        """A tile converted, and transposed before or after, while it is narrow.

        Tiles are dense in UB, padding included, so that a conversion walks whole repeats.
        """
        k = self._k
        whole = narrow(stored, g.job.tile_shapes(g.chunk)[1])
        if self._third is None or g.job.swap < 0:
            yield k.vec("conv", _flat(whole), _flat(loaded))
            return
        widens = whole.dtype.itemsize > loaded.dtype.itemsize
        like, dtype = (whole, loaded.dtype) if widens else (loaded, whole.dtype)
        scale = dtype.itemsize / like.dtype.itemsize
        strides = tuple(int(s * scale) for s in like.strides)
        between = Region("UB", -1, self._third.offset, like.shape, strides, dtype)
        if widens:
            yield self._swap(between, loaded, elements)
            yield k.vec("conv", _flat(whole), _flat(between))
        else:
            yield k.vec("conv", _flat(between), _flat(loaded))
            yield self._swap(whole, between, elements)

    def _spread(self, g: Grid, stored: Region, loaded: Region) -> Instr:
        """The rows of a tile, repeated along broadcast axes or put together."""
        k = self._k
        if g.job.spread:
            cycles = spread_cycles(stored, loaded, k.chip)
        else:
            cycles = scalar_cycles(stored.size)
        if cycles is None:
            return k.vec("copy", stored, loaded)
        return k.vec_taking("copy", cycles, stored, loaded)

    def _load(self, g: Grid, loaded: Region, src: Region) -> Instr:
        short = any(m < n for m, n in zip(src.shape, loaded.shape, strict=True))
        rows, there = g.rows(narrow(loaded, src.shape)), g.rows(src)
        zero = loaded if short else None
        pieces = self._commands(rows, there, True) if self._rows_alone(g) else None
        return self._k.load_pairs([(rows, there)], zero, pieces)

    def _rows_alone(self, g: Grid) -> bool:
        """Whether rows may be commands: plain ones of a Transpose, channels of a TransData."""
        return (g.job.swap >= 0) is (self._k.args.op_type == "TransData")

    def _commands(self, a: Region, b: Region, load: bool) -> int | None:
        k = self._k
        return row_commands(k.args, k.chip, cost.bursts(a, b), a.nbytes, load)


def _flat(r: Region) -> Region:
    """A dense region of UB, in whatever order of axes, as one row."""
    return Region.dense("UB", r.operand, r.offset, (r.size,), r.dtype)
