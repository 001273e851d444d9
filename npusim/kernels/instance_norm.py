"""InstanceNorm in the passes of TBE's `instance_norm`: three sweeps over every (image, channel).

The sweeps take the mean, the variance, and normalise; the source broadcasts mean, variance, scale,
offset and a tensor of ones to full tiles, and takes the root and the quotient of full tiles. All
in fp32, fp16 converted on the way in and out.

Where an image's channel is a whole number of 32 B blocks it is one run, cut only by UB. Else the
schedule keeps the last axis apart and works row by row: a load, some thirty instructions, and the
next row. On the 310 rows of 45 to 61 values cost the same 690 cycles each, ten times what their
elements would in long runs.

One block: the statistics are single values side by side, in 32 B blocks that cores must not share.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from math import prod

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.elementwise import unsupported_type
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.passes import F32, Passes, partials
from npusim.kernels.stage import Stage
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, kernel
from npusim.program.region import GM, Region

SWEEPS = 3
UB_SHARE = 0.75  #: of UB that tiles take
BLOCK = 8  #: fp32 elements of a 32 B block
PER_REPEAT = 84  #: cycles of 64 elements through all passes, for the estimate
INSTRUCTIONS = 32  #: of a piece, for the estimate


@dataclass(frozen=True)
class Job:
    """A launch: `slices` = images × channels, of `size` elements; rows of the last axis."""

    images: int
    channels: int
    size: int
    row: int
    epsilon: float

    @property
    def slices(self) -> int:
        """Runs that are normalised each."""
        return self.images * self.channels


def _job(args: KernelArgs) -> Job:
    x = args.operands[0]
    n, c, *rest = x.shape
    whole = prod(rest) * x.dtype.size % 32 == 0
    size = prod(rest)
    return Job(n, c, size, size if whole else rest[-1], float(args.get("epsilon", 1e-6)))


def _footprint(args: KernelArgs, piece: int) -> int:
    """UB bytes: two slots in and out, three fp32 tiles, partial sums, the channels' vectors."""
    width, channels = args.operands[0].dtype.size, args.operands[0].shape[1]
    small = 2 * channels * (width + 4) + 16 * 32 + 256
    return piece * (4 * width + 12) + partials(piece) + small


@kernel("InstanceNorm")
class InstanceNorm(TileKernel):
    """Tiling: `piece` elements of a slice at a time; one block."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """fp16 or fp32 in ND, all operands of one type."""
        if args.op_type != "InstanceNorm" or args.epilogue or len(args.outputs) != 3:
            return f"no such program for {args.op_type} with {len(args.outputs)} outputs"
        if any(o is None or o.layout is not Layout.ND for o in args.operands):
            return "takes ND tensors"
        x = args.operands[0]
        if x.dtype not in (DType.FLOAT16, DType.FLOAT32) or not x.nbytes or len(x.shape) < 3:
            return f"{x.dtype.value} of shape {x.shape}"
        if any(o.dtype is not x.dtype for o in args.operands):
            return "operands of several types"
        return unsupported_type(x.dtype, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """The longest pieces of a slice, or of a row, that fit."""
        row, room = _job(args).row, int(chip.core.ub.size * UB_SHARE)
        pieces = 1
        while _footprint(args, -(-row // pieces)) > room:
            if pieces >= row:
                return
            pieces += 1
        piece = -(-row // pieces)
        piece = min(row, -(-piece // 64) * 64 if pieces > 1 else piece)
        if _footprint(args, piece) <= chip.core.ub.size:
            yield {"piece": piece}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling."""
        job, vec = _job(args), chip.core.vector
        runs = job.slices * (job.size // job.row) * -(-job.row // tiling["piece"])
        repeats = -(-tiling["piece"] // 64)
        return float(runs * (INSTRUCTIONS * (vec.head + vec.tail) + PER_REPEAT * repeats))

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """x once a sweep (once in all where a slice is one piece), everything else once."""
        traffic = {i: Traffic(o.nbytes, o.nbytes) for i, o in enumerate(args.operands)}
        job, x = _job(args), args.operands[0]
        sweeps = 1 if tiling["piece"] >= job.size else SWEEPS
        # What L2 holds of a slice is read from HBM once.
        hit = job.size * x.dtype.size <= chip.l2.size // 2
        traffic[0] = Traffic(x.nbytes * (1 if hit else sweeps), x.nbytes * sweeps)
        return Plan(tiling, 1, traffic, ((0, 1),))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """Slice by slice."""
        run = _Run(k, args, tiling)
        yield from run.prepare()
        for i in k.loop(run.job.slices):
            yield from run.slice(i)


class _Run:
    """The block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling) -> None:
        self.k, self.args, self.job, self.piece = k, args, _job(args), tiling["piece"]
        self.stored = args.operands[0].dtype.np
        self.stage, self.passes = Stage(k), Passes(k)
        self.held: Region | None = None  #: a slice of one piece, loaded once for all sweeps
        self.partial = k.alloc("UB", partials(self.piece))
        names = ("total", "mean", "variance", "scale", "offset", "sum")
        self.small = {n: k.alloc("UB", 32) for n in names}

    def value(self, name: str, n: int = 1) -> Region:
        """The first elements of a 32 B block of fp32."""
        return self.small[name].region((n,), F32)

    def prepare(self) -> Iterator[Instr]:
        """Scale and offset of all channels, in fp32."""
        for index, name in ((1, "scales"), (2, "offsets")):
            gm = self.k.input(index)
            x = yield from self.stage.load(gm, gm.size)
            wide = self.stage.temp(name, x.shape, F32)
            yield from self.passes("copy" if x.dtype == F32 else "conv", wide, x)
            yield self.stage.free(index)

    def pieces(self) -> Iterator[tuple[int, int]]:
        """(first element, count) of every piece of a slice."""
        rows, row = self.job.size // self.job.row, self.job.row
        per = -(-row // self.piece)
        whole = row % self.piece == 0
        for i in self.k.loop(rows * per) if whole or rows == 1 else range(rows * per):
            r, p = divmod(i, per)
            yield r * row + p * self.piece, min(self.piece, row - p * self.piece)

    def load(self, index: int, start: int, n: int) -> Generator[Instr, None, Region]:
        """Elements of slice `index`, in fp32, in a tile that passes may write."""
        if self.held is not None:
            return self.held
        gm = Region.dense(GM, 0, 0, (self.job.slices, self.job.size), self.stored)
        x = yield from self.stage.load(gm[index, start : start + n], self.piece)
        if self.stored != F32:
            wide = self.temp("wide", n)
            yield from self.passes("conv", wide, x)
            x = wide
        if n == self.job.size:
            self.held = x
        return x

    def free(self) -> Iterator[Instr]:
        """The piece has been read; a slice that is one piece stays for the next sweep."""
        if self.held is None:
            yield self.stage.free(0)

    def temp(self, name: str, n: int) -> Region:
        """An fp32 tile."""
        return self.stage.temp(name, (n,), F32, self.piece)

    def slice(self, index: int) -> Iterator[Instr]:
        """The three sweeps of one image and channel."""
        yield from self._sweep_mean(index)
        yield from self._sweep_variance(index)
        channel = index % self.job.channels
        for name, source in (("scale", "scales"), ("offset", "offsets")):
            vector = self.stage.temp(source, (self.job.channels,), F32)
            yield from self._spread(name, vector[channel : channel + 1])
        yield from self._sweep_result(index)
        if self.held is not None:
            self.held = None
            yield self.stage.free(0)
        for operand, name in ((1, "mean"), (2, "variance")):
            yield from self._store_statistic(operand, index, name)

    def _sweep_mean(self, index: int) -> Iterator[Instr]:
        p = self.passes
        yield from p("dup", self.value("total"), scalar=0.0)
        for start, n in self.pieces():
            x = yield from self.load(index, start, n)
            part = self.temp("a", n)
            yield from p("muls", part, x, scalar=1.0 / self.job.size)
            yield from self.free()
            yield from self._accumulate(part)
        yield from self._spread("mean", self.value("total"))

    def _sweep_variance(self, index: int) -> Iterator[Instr]:
        p = self.passes
        yield from p("dup", self.value("total"), scalar=0.0)
        for start, n in self.pieces():
            x = yield from self.load(index, start, n)
            mean, part = self.temp("a", n), self.temp("b", n)
            yield from p("copy", mean, self.value("mean"))
            yield from p("sub", part, x, mean)
            yield from self.free()
            yield from p("mul", part, part, part)
            yield from p("muls", part, part, scalar=1.0 / self.job.size)
            yield from self._accumulate(part)
        yield from self._spread("variance", self.value("total"))

    def _sweep_result(self, index: int) -> Iterator[Instr]:
        p, first = self.passes, len(self.args.inputs)
        whole = Region.dense(GM, first, 0, (self.job.slices, self.job.size), self.stored)
        for start, n in self.pieces():
            x = yield from self.load(index, start, n)
            other, y = self.temp("a", n), self.temp("b", n)
            yield from p("copy", other, self.value("mean"))
            yield from p("sub", y, x, other)
            yield from self.free()
            yield from p("copy", other, self.value("variance"))
            yield from p("adds", other, other, scalar=self.job.epsilon)
            yield from p("sqrt", other, other)
            ones = self.temp("c", n)
            yield from p("dup", ones, scalar=1.0)
            yield from p("div", other, ones, other)
            yield from p("mul", y, y, other)
            yield from p("copy", other, self.value("scale"))
            yield from p("mul", y, y, other)
            yield from p("copy", other, self.value("offset"))
            out = yield from self.stage.out(first, (n,), self.stored, self.piece)
            if self.stored == F32:
                yield from p("add", out, y, other)
            else:
                yield from p("add", y, y, other)
                yield from p("conv", out, y)
            yield from self.stage.store(whole[index, start : start + n], out)

    def _accumulate(self, part: Region) -> Iterator[Instr]:
        total, more = self.value("total"), self.value("sum")
        yield from self.passes.sum(more, part, self.partial)
        yield from self.passes("add", total, total, more)

    def _spread(self, name: str, value: Region) -> Iterator[Instr]:
        """A value into all lanes of its 32 B block."""
        block = self.value(name, BLOCK)
        yield self.k.memo(("spread", name), lambda: self.k.vec("brcb", block, value))

    def _store_statistic(self, output: int, index: int, name: str) -> Iterator[Instr]:
        operand = len(self.args.inputs) + output
        gm = Region.dense(GM, operand, 0, (self.job.slices,), self.stored)
        out = yield from self.stage.out(operand, (1,), self.stored, 1)
        yield from self.passes("copy" if self.stored == F32 else "conv", out, self.value(name))
        yield from self.stage.store(gm[index : index + 1], out)
