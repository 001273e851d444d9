"""FusedDbnDw: BN's gradient by its input, then the filter gradient of the convolution before it.

The batch is split over blocks. A block runs BNTrainingReduceGrad over its images in UB, in
fp32: y = g·s1 + (x·s2 + s3) with three coefficients per channel that it derives once, so five
passes: two casts up, vmadd, vmla, a cast down. The result goes from UB to GM and to L1, where the
filter gradient takes it, chunk by chunk, and the vector unit works one chunk ahead of the cube.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.ir.layout import blocks
from npusim.kernels.conv_filter_grad import (
    FilterBody,
    Pair,
    filter_estimate,
    filter_plan,
    filter_tiles,
    part_of,
)
from npusim.kernels.conv_tiling import ConvProblem, conv_problem
from npusim.kernels.epilogue import F32
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.queues import Alloc
from npusim.ops import get_operator
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, OperandSpec, Plan, Tiling, Traffic, kernel
from npusim.program.region import GM, Region

#: Bytes of UB per element of a strip: three fp16 queues of two slots, two fp32 works.
PER_ELEMENT = 3 * 2 * 2 + 2 * 4
#: UB bytes per channel block: five fp32 operands, seven of their size to work in, and three
#: coefficients repeated over 64 lanes.
PER_BLOCK = (5 + 7) * 64 + 3 * 256
X, GRADIENT, DATA, STATS = 0, 1, 2, 3  #: operands; the statistics are five


def dw_problem(args: KernelArgs) -> ConvProblem:
    """The convolution whose weights' gradient is asked."""
    x, weights = args.inputs[X], args.outputs[1]
    attrs = tuple(a for a in args.attrs if a[0] not in ("epsilon", "kernel_shape"))
    w = OperandSpec(weights.shape, DType.FLOAT16, Layout.FRACTAL_Z)
    forward = KernelArgs("Conv", (x, w), (args.outputs[0],), attrs)
    return conv_problem(forward)


def _operands(args: KernelArgs) -> tuple[int, int, int]:
    """Where the filter gradient finds dY, X and dW."""
    return len(args.inputs), X, len(args.inputs) + 1


def _room(chip: ChipSpec) -> int:
    """UB bytes of a strip of dW."""
    return chip.core.ub.size // 8


def strip_rows(chip: ChipSpec) -> int:
    """Positions of a strip of BN's gradient, in whole fractals; a chunk is a strip long."""
    return max(1, chip.core.ub.size // 2 // PER_ELEMENT // 256) * 16


@kernel("FusedDbnDw")
class FusedDbnDw(TileKernel):
    """BNTrainingReduceGrad + Conv2DBackpropFilter; dW is zeroed before."""

    core_type = "AIC"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Types, layouts and sizes this kernel does not do."""
        if chip.core.fixp is not None:
            return "L0C does not leave through the vector unit"
        if chip.core.mte3.l1_rate is None:
            return "no way from UB to L1"
        if any(t is None or t.layout is not Layout.NC1HWC0 for t in args.inputs):
            return "needs NC1HWC0 inputs"
        if [args.operands[i].dtype for i in (X, GRADIENT, DATA)] != [DType.FLOAT16] * 3:
            return "fp16 gradients and images"
        if args.outputs[1].layout is not Layout.FRACTAL_Z:
            return "needs a FRACTAL_Z output"
        if dw_problem(args).n1 * PER_BLOCK > chip.core.ub.size // 4:
            return "BN's coefficients do not fit UB"
        return ""

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Tiles of the filter gradient, all of N in one where it fits; the batch is split."""
        p = dw_problem(args)
        split = (blocks(p.batch, blocks(p.batch, chip.cores.count)), 1, 1, 1)
        longest = strip_rows(chip) // 16
        if longest * 256 * PER_ELEMENT > chip.core.ub.size // 2:
            return
        tiles = list(filter_tiles(p, chip, split, _room(chip), 2, longest, made=True))
        yield from [t for t in tiles if t["n0"] == p.k1] or tiles

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """Of the filter gradient: the rest is the same for every tiling."""
        return filter_estimate(dw_problem(args), chip, tiling)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Traffic of the filter gradient, and dY-sized tensors in and out."""
        operands = _operands(args)
        plan = filter_plan(dw_problem(args), args, tiling, operands)
        nbytes = args.outputs[0].nbytes
        traffic = {**plan.traffic, GRADIENT: Traffic(nbytes, nbytes), DATA: Traffic(nbytes, nbytes)}
        n_tiles = blocks(dw_problem(args).k1, tiling["n0"])
        again = plan.traffic[operands[0]].total * (n_tiles - 1) // n_tiles
        traffic[operands[0]] = Traffic(nbytes, nbytes + again)
        for i in range(STATS, STATS + 5):
            size = args.operands[i].nbytes
            traffic[i] = Traffic(size, size * plan.block_dim)
        return Plan(plan.tiling, plan.block_dim, traffic, plan.classes)

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """See the module's text."""
        p = dw_problem(args)
        s = part_of(p, tiling, block)
        body = _Body(k, p, tiling, s, _operands(args), _room(k.chip))
        yield from body.with_gradient(_BnGradient(k, args, p))


class _Body(FilterBody):
    """The filter gradient of a dY that is made on the way, chunk by chunk."""

    ahead = False

    def _buffers(self, dy: int, x: int) -> None:
        """dY comes from UB; X, and dY for n tiles after the first, from GM."""
        k = self.k
        self.made = k.queue("L1", dy, 2, Pipe.MTE3, Pipe.MTE1)
        self.again = self.s.n * self.p.taps > self.t["n0"]
        slots, partner = (1, ("L1", dy)) if self.again else (self.t["slots"], None)
        self.l1 = k.queue("L1", x, slots, Pipe.MTE2, Pipe.MTE1, partner)
        self.ready, self.waits = k.flag_id(), False

    def with_gradient(self, bn: _BnGradient) -> Iterator[Instr]:
        """The block's program."""
        self.bn = bn
        self.order = [c for rows in self.m_tiles() for c in self.chunks(rows)]
        self.at = self.done = 0
        yield from bn.coefficients()
        yield from self.run()

    def _tile(self, rows: Pair, channels: Pair, columns: Pair) -> Iterator[Instr]:
        """As ever; once the first n tile is done, all its dY is in GM."""
        self.fresh = columns[0] == self.s.n0 * self.p.taps
        if self.again and not self.fresh and self.waits:
            yield self.k.wait_flag(Pipe.MTE3, Pipe.MTE2, self.ready)
            self.waits = False
        yield from super()._tile(rows, channels, columns)
        if self.again and self.fresh:
            yield self.k.set_flag(Pipe.MTE3, Pipe.MTE2, self.ready)
            self.waits = True

    def _load(self, images: Pair, span: Pair, rows: Pair, channels: Pair) -> Iterator[Instr]:
        """X, then the next chunk's dY; n tiles after the first find dY in GM."""
        if self.fresh:
            yield from self._make(0)
        alloc = yield from self.l1.alloc()
        yield self._load_x(alloc, images, span, channels)
        if not self.fresh:
            yield self._load_dy(self.l1.back_partner, images, span, rows)
        yield self.l1.enque()
        if self.fresh:
            yield from self._make(1)
            self.at += 1

    def _make(self, ahead: int) -> Iterator[Instr]:
        """BN's gradient up to the chunk that is `ahead` of the one at hand."""
        while self.done <= min(self.at + ahead, len(self.order) - 1):
            slot = yield from self.made.alloc()
            yield from self.bn.run(slot, *self.order[self.done])
            yield self.made.enque()
            self.done += 1

    def _deque(self) -> Iterator[Instr]:
        """MTE1 waits for X and for dY, wherever it comes from."""
        yield self.l1.deque()
        if self.fresh:
            yield self.made.deque()
            self.chunk = self.made.front, self.l1.front
        else:
            self.chunk = self.l1.front_partner, self.l1.front

    def _free(self) -> Iterator[Instr]:
        """MTE1 has read X and dY."""
        yield self.l1.free()
        if self.fresh:
            yield self.made.free()


class _BnGradient:
    """BNTrainingReduceGrad over pieces of a block's images."""

    def __init__(self, k: Kernel, args: KernelArgs, p: ConvProblem) -> None:
        self.k, self.args, self.p = k, args, p
        self.rows = min(blocks(p.m) * 16, strip_rows(k.chip))
        size = self.rows * 16
        self.loaded = k.queue("UB", size * 2, 2, Pipe.MTE2, Pipe.V, ("UB", size * 2))
        self.result = k.queue("UB", size * 2, 2, Pipe.V, Pipe.MTE3)
        self.work = [k.alloc("UB", size * 4) for _ in range(2)]
        self.stats = k.queue("UB", 5 * p.n1 * 64, 1, Pipe.MTE2, Pipe.V)
        self.scratch = [k.alloc("UB", p.n1 * 64) for _ in range(4)]
        self.repeated = [k.alloc("UB", p.n1 * 256) for _ in range(3)]

    def run(self, slot: Alloc, images: Pair, span: Pair, rows: Pair) -> Iterator[Instr]:
        """All strips of a chunk, to GM and to (images, Co1 blocks, positions, 16) in L1."""
        padded = blocks(span[1]) * 16
        chunk = slot.region((images[1], rows[1], padded, 16), np.dtype(np.float16))
        for image in range(images[1]):
            for n1 in range(rows[1]):
                for at in range(0, span[1], self.rows):
                    count = min(self.rows, span[1] - at)
                    dst = chunk[image, n1, at : padded if at + count == span[1] else at + count]
                    place = (images[0] + image, rows[0] + n1, span[0] + at)
                    yield from self._strip(dst, place, count)

    def coefficients(self) -> Iterator[Instr]:
        """s1 = scale/σ, s2 = -s1·d_scale/(σ·n), s3 = -s1·d_offset/n - s2·mean, over 64 lanes."""
        k, n = self.k, self.p.n1 * 16
        op = get_operator(self.args.op_type)
        epsilon = {**op.attrs, **dict(self.args.attrs)}["epsilon"]
        alloc = yield from self.stats.alloc()
        rows = [alloc.region((n,), F32, i * n * 4) for i in range(5)]
        for i, row in enumerate(rows):
            yield k.load(row, Region.dense(GM, STATS + i, 0, (n,), F32))
        yield self.stats.enque()
        yield self.stats.deque()
        d_scale, d_offset, scale, mean, variance = rows
        s1, s2, s3, one = (a.region((n,), F32) for a in self.scratch)
        share = -1.0 / (self.args.outputs[0].shape[0] * prod(self.args.outputs[0].shape[2:]))
        yield k.vec("adds", s2, variance, scalar=epsilon)
        yield k.vec("sqrt", s2, s2)
        yield k.vec("dup", one, scalar=1.0)
        yield k.vec("div", one, one, s2)
        yield k.vec("mul", s1, scale, one)
        yield k.vec("mul", s2, s1, one)
        yield k.vec("mul", s2, s2, d_scale)
        yield k.vec("muls", s2, s2, scalar=share)
        yield k.vec("mul", s3, s1, d_offset)
        yield k.vec("muls", s3, s3, scalar=share)
        yield k.vec("mul", one, s2, mean)
        yield k.vec("sub", s3, s3, one)
        for value, wide in zip((s1, s2, s3), self.repeated, strict=True):
            lanes = wide.region((self.p.n1, 4, 16), F32)
            yield k.vec("copy", lanes, value.split(0, 16).expand(1))
        yield self.stats.free()

    def _strip(self, l1: Region, place: tuple[int, int, int], count: int) -> Iterator[Instr]:
        """`count` positions of an image's channel block; place: image, block, first position."""
        k, half = self.k, np.dtype(np.float16)
        g_alloc = yield from self.loaded.alloc()
        x_alloc = self.loaded.back_partner
        for operand, alloc in ((GRADIENT, g_alloc), (DATA, x_alloc)):
            src = self._gm(operand, *place, count)
            yield k.load(alloc.region((count, 16), half), src)
        yield self.loaded.enque()
        out = yield from self.result.alloc()
        yield self.loaded.deque()
        yield from self._gradient(g_alloc, x_alloc, out, place[1], blocks(count, 4))
        yield self.loaded.free()
        yield self.result.enque()
        yield self.result.deque()
        made = out.region((count, 16), half)
        yield k.ub_to_l1(l1[:count], made, l1 if count < l1.shape[0] else None)
        yield k.store(self._gm(len(self.args.inputs), *place, count), made)
        yield self.result.free()

    def _gm(self, operand: int, image: int, n1: int, first: int, count: int) -> Region:
        p = self.p
        shape = (p.batch, p.n1, p.m, 16)
        whole = Region.dense(GM, operand, 0, shape, np.dtype(np.float16))
        return whole[image, n1, first : first + count]

    def _gradient(
        self, g_alloc: Alloc, x_alloc: Alloc, out: Alloc, n1: int, rows: int
    ) -> Iterator[Instr]:
        """y = g·s1 + (x·s2 + s3) on `rows` rows of 64 lanes (the last may hold stale lanes)."""
        k, half = self.k, np.dtype(np.float16)
        g, x = (a.region((rows, 64), F32) for a in self.work)
        s1, s2, s3 = (a.region((1, 64), F32, n1 * 256) for a in self.repeated)
        yield k.vec("conv", g, g_alloc.region((rows, 64), half))
        yield k.vec("conv", x, x_alloc.region((rows, 64), half))
        yield k.vec_by("mla", _multiply_add, x, x, x, s2, s3)  # vmadd
        yield k.vec("mla", x, x, g, s1)
        yield k.vec("conv", out.region((rows, 64), half), x)


def _multiply_add(x: np.ndarray, factor: np.ndarray, addend: np.ndarray) -> np.ndarray:
    return x * factor + addend
