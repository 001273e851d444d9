"""The passes of batch normalisation in training over a tile, one class per operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from npusim.kernels import vector_ops
from npusim.kernels.batchnorm_grid import C0, Box, Job, Tile
from npusim.kernels.lang import Kernel, Queue
from npusim.kernels.rows import F32
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs
from npusim.program.region import Region

REPEAT = 64  #: fp32 elements of a repeat: what a channel vector is spread to
PAIR = 128  #: elements of a compare
FUSED = {"FusionOp_BNTrainingUpdate_ReLUV2": False, "FusionOp_BNTrainingUpdate_Add_ReLUV2": True}
SUMS = ("BNTrainingReduce", "BNTrainingUpdateGrad")
#: Cycles of a pass per 256 B repeat: these kernels lay their tiles out without bank conflicts, so
#: that a repeat takes a cycle. Slope of BNTrainingUpdateGrad over H·W at 16 busy cores: 7 passes
#: in 7.0-7.4 cycles per 64 elements (30-core 910); 910B: VADD 1 without a conflict (asc).
FREE = {4: 1.06, 2: 1.15}
#: Cycles per 128 elements of a compare to the mask where tiles do not end on a repeat: compare and
#: move of the mask register, which do not repeat; by whether the whole repeats are odd in number,
#: so that their 16 B masks end inside a 32 B block. Slopes of FusionOp_BNTrainingUpdate_ReLUV2:
#: even (17 × 17, 71 × 71, 73 × 73, 147 × 147) 8-10, odd (35 × 35, 149 × 149) 24.
UNEVEN_COMPARE = (8.5, 24.0)


class Program:
    """One block at work: `begin`, the tiles of each group of slices, `end`."""

    #: Vectors of one value per channel that the program keeps beside its operands.
    vectors: ClassVar[int] = 0
    #: True when all images of a channel block are walked before the next one.
    by_channel: ClassVar[bool] = False

    def __init__(self, k: Kernel, args: KernelArgs, job: Job, box: Box) -> None:
        self.k, self.args, self.job, self.box = k, args, job, box
        self.room = job.room()
        self.first_out = len(args.inputs)
        self._queues: dict[Any, Queue] = {}
        self._kept: dict[str, Region] = {}

    # -- tiles -------------------------------------------------------------------------------------

    def slices(self, n: int, c: int, count: int) -> Iterator[Instr]:
        """`count` neighbouring slices of an image, tile by tile."""
        for h0, h1 in self.job.cuts(self.box):
            yield from self.tile(Tile(n, c, count, h0, h1))

    def tile(self, tile: Tile) -> Iterator[Instr]:
        """One tile."""
        yield from ()

    def size(self, tile: Tile) -> int:
        """Elements of one slice's part of a tile."""
        return (tile.h1 - tile.h0) * self.job.width * C0

    def gm(self, index: int, tile: Tile, per: int = C0) -> Region:
        """A tile in GM, flat, `per` elements a position."""
        job, dtype = self.job, self.args.operands[index].dtype.np
        first = (tile.n * job.c1 + tile.c) * job.positions + tile.h0 * job.width
        count = tile.count * self.size(tile) // C0 * per
        return Region.dense("GM", index, first * per * dtype.itemsize, (count,), dtype)

    def queue(self, index: int, nbytes: int, slots: int, src: Pipe, dst: Pipe) -> Queue:
        """The queue of an operand, made at its first use."""
        if index not in self._queues:
            self._queues[index] = self.k.queue("UB", nbytes, slots, src, dst)
        return self._queues[index]

    def load(self, index: int, tile: Tile) -> Any:
        """A tile of an image in UB."""
        gm = self.gm(index, tile)
        queue = self.queue(index, self.room * gm.dtype.itemsize, 2, Pipe.MTE2, Pipe.V)
        region = (yield from queue.alloc()).region(gm.shape, gm.dtype)
        yield self.k.load(region, gm)
        yield queue.enque()
        yield queue.deque()
        return region

    def free(self, index: int) -> Instr:
        """The vector pipe has read the tile of operand `index`."""
        return self._queues[index].free()

    def out(self, index: int, count: int, nbytes: int, dtype: np.dtype, slots: int) -> Any:
        """An output tile for the vector pipe to fill."""
        queue = self.queue(index, nbytes, slots, Pipe.V, Pipe.MTE3)
        return (yield from queue.alloc()).region((count,), dtype)

    def store(self, gm: Region, tile: Region, atomic: bool = False) -> Iterator[Instr]:
        """Hand a filled tile over and store it."""
        queue = self._queues[gm.operand]
        yield queue.enque()
        yield queue.deque()
        yield self.k.store(gm, tile, atomic)
        yield queue.free()

    def temp(self, name: str, count: int) -> Region:
        """An fp32 temporary as large as a tile."""
        if name not in self._kept:
            self._kept[name] = self.k.alloc("UB", 4 * self.room).region((self.room,), F32)
        return self._kept[name][:count]

    # -- passes ------------------------------------------------------------------------------------

    def vec(self, op: str, dst: Region, *srcs: Region) -> Iterator[Instr]:
        """One pass after a barrier: whole repeats, then the rest.

        A source of REPEAT elements under a longer destination is a spread channel vector.
        """
        n = dst.shape[0]
        wide = max(r.dtype.itemsize for r in (dst, *srcs))
        per = 256 // wide
        whole = n // per * per
        self.k.barrier()
        if whole:
            yield self._part(op, dst[:whole], [_held(s, n, 0, whole, per) for s in srcs], per)
        if whole < n:  # another mask, no other operands: no barrier
            yield self._part(op, dst[whole:], [_held(s, n, whole, n, n - whole) for s in srcs], 0)

    def _part(self, op: str, dst: Region, srcs: list[Region], per: int) -> Instr:
        """Whole repeats of `per` elements, or (0) the rest."""
        wide = max((dst, *srcs), key=lambda r: r.dtype.itemsize)
        walked = Region.dense("UB", -1, 0, dst.shape, wide.dtype)
        if per:
            dst = dst.split(0, per)
        spec = vector_ops.get(op)
        fn = vector_ops.bind(spec, None, dst)
        rate = FREE[max(2, wide.dtype.itemsize)]
        costs = self.k.chip.core.vector.costs[spec.cost]
        own = costs.b16 if wide.dtype.itemsize <= 2 else costs.b32
        return self.k.vec_by(op, fn, walked, dst, *srcs, per_repeat=min(rate, own or rate))

    def channel_pass(self, op: str, tile: Tile, x: Region, values: Region) -> Iterator[Instr]:
        """x = x op value, slice by slice: a slice's 16 values are spread over a repeat first."""
        size = self.size(tile)
        for i in range(tile.count):
            spread = self.spread(values, tile.c + i)
            self.k.barrier()
            yield self.k.vec("copy", spread[1], spread[0])
            part = x[i * size : (i + 1) * size]
            yield from self.vec(op, part, part, _flat(spread[1]))

    def spread(self, values: Region, c: int) -> tuple[Region, Region]:
        """(source, place) of a channel block's values over a repeat."""
        if "spread" not in self._kept:
            self._kept["spread"] = self.k.alloc("UB", 4 * REPEAT).region((REPEAT,), F32)
        first = (c - self.box.c0) * C0
        copies = (REPEAT // C0, C0)
        source = values[first : first + C0].expand(0).broadcast(copies)
        return source, self._kept["spread"].split(0, C0)

    # -- values per channel ------------------------------------------------------------------------

    def small(self, name: str) -> Region:
        """One value per channel of the block."""
        if name not in self._kept:
            count = self.box.channels * C0
            room = min(self.job.per_c, self.job.c1) * C0 * 4
            self._kept[name] = self.k.alloc("UB", room).region((count,), F32)
        return self._kept[name]

    def channel(self, index: int) -> Any:
        """A per-channel operand's part, loaded once."""
        count = self.box.channels * C0
        queue = self.queue(index, self.job.per_c * C0 * 4, 1, Pipe.MTE2, Pipe.V)
        region = (yield from queue.alloc()).region((count,), F32)
        yield self.k.load(region, self._channels(index))
        yield queue.enque()
        yield queue.deque()
        return region

    def _channels(self, index: int) -> Region:
        count = self.box.channels * C0
        return Region.dense("GM", index, self.box.c0 * C0 * 4, (count,), F32)

    def put(self, index: int, value: Region, atomic: bool = False) -> Iterator[Instr]:
        """Store the block's channels of an output."""
        count = self.box.channels * C0
        tile = yield from self.out(index, count, self.job.per_c * C0 * 4, F32, 1)
        yield self.k.vec("copy", tile, value)
        yield from self.store(self._channels(index), tile, atomic)

    def inverse(self, dst: Region, variance: Region) -> Iterator[Instr]:
        """dst = 1 / √(variance + ε)."""
        one = self.small("one")
        epsilon = float(self.args.get("epsilon", 1e-4))
        yield self.k.vec("adds", dst, variance, scalar=epsilon)
        yield self.k.vec("sqrt", dst, dst)
        yield self.k.vec("dup", one, scalar=1.0)
        yield self.k.vec("div", dst, one, dst)

    def count(self) -> int:
        """Elements per channel."""
        return self.job.images * self.job.positions

    def begin(self) -> Iterator[Instr]:
        """Before the tiles of a block."""
        yield from ()

    def end(self) -> Iterator[Instr]:
        """After the tiles of a block."""
        yield from ()


def _held(r: Region, n: int, start: int, stop: int, per: int) -> Region:
    """A source's part [start, stop): repeats, or the channel vector that they all read."""
    if r.shape[0] != n:
        return r[: min(per, REPEAT)]
    part = r[start:stop]
    return part.split(0, per) if (stop - start) % per == 0 and start == 0 else part


def _flat(r: Region) -> Region:
    return Region.dense(r.space, r.operand, r.offset, (r.size,), r.dtype)


class Sums(Program):
    """Two sums per channel: over the lanes of a repeat, folded and added to GM at the end."""

    by_channel = True
    vectors = 9  # two accumulators of four values a channel, and one

    def begin(self) -> Iterator[Instr]:
        for j in (0, 1):
            yield self.k.vec("dup", _flat(self._lanes(j)), scalar=0.0)

    def _lanes(self, j: int) -> Region:
        """Accumulators: channel blocks × lanes."""
        name, channels = f"lanes{j}", self.box.channels
        if name not in self._kept:
            place = self.k.alloc("UB", self.job.per_c * REPEAT * 4)
            self._kept[name] = place.region((channels, REPEAT), F32)
        return self._kept[name]

    def accumulate(self, tile: Tile, *values: Region) -> Iterator[Instr]:
        """Halve the tiles side by side until a repeat is left of each; add it to the lanes."""
        n = values[0].shape[0]
        while n > REPEAT:
            half = -(-n // 2 // REPEAT) * REPEAT  # whole repeats stay below
            for v in values:
                if v is values[0]:
                    self.k.barrier()
                yield from self._fold(v[: n - half], v[half:n])
            n = half
        for j, v in enumerate(values):
            if not j:
                self.k.barrier()
            yield from self._fold(self._lanes(j)[tile.c - self.box.c0][:n], v[:n])

    def _fold(self, dst: Region, src: Region) -> Iterator[Instr]:
        """dst += src; the second half of a side-by-side pair needs no barrier."""
        n = dst.shape[0]
        whole = n // REPEAT * REPEAT
        if whole:
            low = dst[:whole].split(0, REPEAT)
            yield self._part("add", dst[:whole], [low, src[:whole].split(0, REPEAT)], REPEAT)
        if whole < n:
            yield self._part("add", dst[whole:], [dst[whole:], src[whole:]], 0)

    def end(self) -> Iterator[Instr]:
        for j in (0, 1):
            lanes = self._lanes(j)
            for half in (REPEAT // 2, REPEAT // 4):
                yield self.k.vec("add", lanes[:, :half], lanes[:, :half], lanes[:, half : 2 * half])
            total = self.small("total").split(0, C0)
            yield self.k.vec("copy", total, lanes[:, :C0])
            yield from self.put(self.first_out + j, self.small("total"), atomic=True)


class Reduce(Sums):
    """Σx, Σx²."""

    def tile(self, tile: Tile) -> Iterator[Instr]:
        n = self.size(tile)
        x, square = self.temp("x", n), self.temp("square", n)
        loaded = yield from self.load(0, tile)
        yield from self.vec("conv", x, loaded)
        yield self.free(0)
        yield from self.vec("mul", square, x, x)
        yield from self.accumulate(tile, x, square)


class UpdateGrad(Sums):
    """Σ g·(x - mean)/σ, Σ g."""

    vectors = 13  # and -mean, 1/σ, total, one; two spread vectors

    def begin(self) -> Iterator[Instr]:
        yield from super().begin()
        mean = yield from self.channel(2)
        variance = yield from self.channel(3)
        yield self.k.vec("muls", self.small("negative"), mean, scalar=-1.0)
        yield from self.inverse(self.small("inverse"), variance)
        self._spread_for = -1

    def tile(self, tile: Tile) -> Iterator[Instr]:
        n = self.size(tile)
        g, x = self.temp("g", n), self.temp("x", n)
        loaded = yield from self.load(0, tile)
        yield from self.vec("conv", g, loaded)
        yield self.free(0)
        loaded = yield from self.load(1, tile)
        yield from self.vec("conv", x, loaded)
        yield self.free(1)
        yield from self._channel(tile.c, "add", x, "negative")
        yield from self._channel(tile.c, "mul", x, "inverse")
        yield from self.vec("mul", x, x, g)
        yield from self.accumulate(tile, x, g)

    def _channel(self, c: int, op: str, x: Region, name: str) -> Iterator[Instr]:
        """x op= the channel block's value, spread without a barrier of its own."""
        key = f"spread {name}"
        if key not in self._kept:
            self._kept[key] = self.k.alloc("UB", 4 * REPEAT).region((REPEAT,), F32)
        place = self._kept[key]
        source, _ = self.spread(self.small(name), c)
        yield self.k.vec("copy", place.split(0, C0), source)
        yield from self.vec(op, x, x, place)


class ReduceGrad(Program):
    """y = (x·a + b + g)·c, with a = -dscale/(Mσ), b = -doffset/M - a·mean, c = scale/σ."""

    vectors = 4

    def begin(self) -> Iterator[Instr]:
        k, m = self.k, 1.0 / self.count()
        a, b, c = (self.small(n) for n in "abc")
        operands = []
        for i in range(2, 7):
            operands.append((yield from self.channel(i)))
        d_scale, d_offset, scale, mean, variance = operands
        yield from self.inverse(c, variance)
        yield k.vec("mul", a, d_scale, c)
        yield k.vec("muls", a, a, scalar=-m)
        yield k.vec("mul", b, a, mean)
        yield k.vec("muls", d_offset, d_offset, scalar=m)
        yield k.vec("add", b, b, d_offset)
        yield k.vec("muls", b, b, scalar=-1.0)
        yield k.vec("mul", c, c, scale)

    def tile(self, tile: Tile) -> Iterator[Instr]:
        n = tile.count * self.size(tile)
        g, x = self.temp("g", n), self.temp("x", n)
        loaded = yield from self.load(0, tile)
        yield from self.vec("conv", g, loaded)
        yield self.free(0)
        loaded = yield from self.load(1, tile)
        yield from self.vec("conv", x, loaded)
        yield self.free(1)
        yield from self.channel_pass("mul", tile, x, self.small("a"))
        yield from self.channel_pass("add", tile, x, self.small("b"))
        yield from self.vec("add", x, x, g)
        yield from self.channel_pass("mul", tile, x, self.small("c"))
        stored = self.args.outputs[0].dtype.np
        out = yield from self.out(self.first_out, n, self.room * stored.itemsize, stored, 2)
        yield from self.vec("conv", out, x)
        yield from self.store(self.gm(self.first_out, tile), out)


class Update(Program):
    """y = x·factor + shift, and the statistics once per channel block."""

    vectors = 4

    def __init__(self, k: Kernel, args: KernelArgs, job: Job, box: Box) -> None:
        super().__init__(k, args, job, box)
        self.fused = args.op_type in FUSED
        self.adds = FUSED.get(args.op_type, False)
        self.y_index = self.first_out + (4 if self.fused else 0)
        self.statistics = self.first_out + (0 if self.fused else 1)

    def begin(self) -> Iterator[Instr]:
        k, m = self.k, 1.0 / self.count()
        factor, shift, spare = (self.small(n) for n in ("factor", "shift", "spare"))
        operands = []
        for i in range(1, 7):
            operands.append((yield from self.channel(i)))
        mean, variance, scale, offset = operands[:4]
        yield k.vec("muls", mean, mean, scalar=m)
        yield k.vec("muls", variance, variance, scalar=m)
        yield k.vec("mul", spare, mean, mean)
        yield k.vec("sub", variance, variance, spare)
        yield from self.inverse(factor, variance)
        yield k.vec("mul", factor, factor, scale)
        yield k.vec("mul", spare, mean, factor)
        yield k.vec("sub", shift, offset, spare)
        if self.box.n0 == 0 and self.box.h0 == 0:
            yield from self._store_statistics(*operands)

    def _store_statistics(self, mean: Region, variance: Region, *rest: Region) -> Any:
        """Running mean and variance, batch mean and variance."""
        k, running, n = self.k, rest[2:], self.count()
        factor = float(self.args.get("factor", 0.1))
        spare = self.small("spare")
        for batch, kept, scale in zip(
            (mean, variance), running, (1.0, n / max(1, n - 1)), strict=True
        ):
            yield k.vec("muls", kept, kept, scalar=1.0 - factor)
            yield k.vec("muls", spare, batch, scalar=factor * scale)
            yield k.vec("add", kept, kept, spare)
        for j, value in enumerate((*running, mean, variance)):
            yield from self.put(self.statistics + j, value)

    def tile(self, tile: Tile) -> Iterator[Instr]:
        n = tile.count * self.size(tile)
        x = self.temp("x", n)
        loaded = yield from self.load(0, tile)
        yield from self.vec("conv", x, loaded)
        yield self.free(0)
        yield from self.channel_pass("mul", tile, x, self.small("factor"))
        yield from self.channel_pass("add", tile, x, self.small("shift"))
        stored = self.args.operands[self.y_index].dtype.np
        y = yield from self.out(self.y_index, n, self.room * stored.itemsize, stored, 1)
        yield from self.vec("conv", y, x)
        if self.adds:
            other = yield from self.load(7, tile)
            yield from self.vec("add", y, y, other)
            yield self.free(7)
        if self.fused:
            yield from self._relu(tile, y)
        yield from self.store(self.gm(self.y_index, tile), y)

    def _relu(self, tile: Tile, y: Region) -> Iterator[Instr]:
        """The mask, one bit per element, then ReLU in place."""
        index, n = self.y_index + 1, y.shape[0]
        byte = np.dtype(np.uint8)
        bits = yield from self.out(index, n // 8, self.room // 8, byte, 1)
        self.k.barrier()
        rate = UNEVEN_COMPARE[n // PAIR % 2] if n % PAIR else FREE[y.dtype.itemsize]
        fn = vector_ops.get("pack_positive").fn
        yield self.k.vec_by("pack_positive", fn, y, bits, y, per_repeat=rate)
        yield from self.vec("relu", y, y)
        yield from self.store(self.gm(index, tile, 2), bits)


PROGRAMS: dict[str, type[Program]] = {
    "BNTrainingReduce": Reduce,
    "BNTrainingUpdate": Update,
    "FusionOp_BNTrainingUpdate_ReLUV2": Update,
    "FusionOp_BNTrainingUpdate_Add_ReLUV2": Update,
    "BNTrainingUpdateGrad": UpdateGrad,
    "BNTrainingReduceGrad": ReduceGrad,
}
