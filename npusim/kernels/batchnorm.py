"""Batch normalisation in training, as CANN's kernels do it: (n, c1) slice by slice, in fp32.

A slice is H·W·16 contiguous elements that share 16 channels. Each pass over a piece of a slice is
one vector instruction (two when the piece does not end on a repeat), with a barrier between
passes. Passes per operator, conversions included: Reduce 4, Update 4 (+ ReLU 1 and compare to the
mask 1, + Add 1), UpdateGrad 7, ReduceGrad 7. Sums leave by atomic add: their outputs must have
been cleared before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.elementwise import unsupported_type
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.rows import F32, UB_SHARE
from npusim.kernels.stage import Stage
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import Region

C0 = 16
REPEAT = 64  #: fp32 elements of a repeat: what a channel vector is spread to
FUSED = {"FusionOp_BNTrainingUpdate_ReLUV2": False, "FusionOp_BNTrainingUpdate_Add_ReLUV2": True}
#: Vector passes over the data, to rank tilings.
PASSES = {
    "BNTrainingReduce": 4,
    "BNTrainingUpdate": 4,
    "FusionOp_BNTrainingUpdate_ReLUV2": 6,
    "FusionOp_BNTrainingUpdate_Add_ReLUV2": 7,
    "BNTrainingUpdateGrad": 7,
    "BNTrainingReduceGrad": 7,
}
#: Operand indices (inputs, then outputs) of the whole-size tensors, the mask apart.
IMAGES = {
    "BNTrainingReduce": (0,),
    "BNTrainingUpdate": (0, 7),
    "FusionOp_BNTrainingUpdate_ReLUV2": (0, 11),
    "FusionOp_BNTrainingUpdate_Add_ReLUV2": (0, 7, 12),
    "BNTrainingUpdateGrad": (0, 1),
    "BNTrainingReduceGrad": (0, 1, 7),
}
SUMS = ("BNTrainingReduce", "BNTrainingUpdateGrad")
PAIR = 128  #: elements of a compare
MAX_PIECES = 64  #: of a slice


@dataclass(frozen=True)
class Run:
    """Consecutive pieces of a block that share 16 channels and a length.

    Attributes:
        c1: channel block; first: index of the first piece among the channel block's
            (image-major); count: pieces.
    """

    c1: int
    first: int
    count: int


@dataclass(frozen=True)
class Job:
    """A launch: images × channel blocks × rows × columns, cut into `pieces` per slice."""

    images: int
    c1: int
    height: int
    width: int
    pieces: int
    blocks: int

    def cut(self, piece: int) -> tuple[int, int]:
        """Positions [p0, p1) of a slice's piece: whole rows of the image."""
        p0, p1 = (self.height * (piece + j) // self.pieces * self.width for j in (0, 1))
        return p0, p1

    @property
    def positions(self) -> int:
        """H·W."""
        return self.height * self.width

    def room(self) -> int:
        """Elements of the longest piece."""
        return -(-self.height // self.pieces) * self.width * C0

    def runs(self, block: int) -> list[Run]:
        """A block's pieces, channel block by channel block."""
        per = self.images * self.pieces
        total = per * self.c1
        u0, u1 = (total * (block + j) // self.blocks for j in (0, 1))
        found = []
        while u0 < u1:
            c1, first = divmod(u0, per)
            count = min(u1 - u0, per - first)
            found.append(Run(c1, first, count))
            u0 += count
        return found


def _job(args: KernelArgs, tiling: Tiling) -> Job:
    spec = args.inputs[0]
    assert spec is not None
    n, c1, h, w, _ = spec.storage_shape
    return Job(n, c1, h, w, tiling["pieces"], tiling["blocks"])


def _bytes_per_element(args: KernelArgs) -> int:
    """UB bytes per element of a piece: two slots of each image, two fp32 temporaries, mask."""
    size = sum(2 * args.operands[i].dtype.size for i in IMAGES[args.op_type])
    return size + 8 + (1 if args.op_type in FUSED else 0)


@kernel("BatchNorm")
class BatchNorm(TileKernel):
    """BNTrainingReduce, -Update (fused forms too), -UpdateGrad, -ReduceGrad on NC1HWC0."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        spec = args.inputs[0]
        if args.op_type not in PASSES or spec is None or args.epilogue:
            return f"no vector program for {args.op_type}"
        if spec.layout is not Layout.NC1HWC0 or spec.shape[1] % C0 or not spec.nbytes:
            return "takes NC1HWC0 with whole blocks of 16 channels"
        if spec.dtype not in (DType.FLOAT16, DType.FLOAT32):
            return f"{args.op_type} of {spec.dtype.value}"
        return unsupported_type(spec.dtype, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        room = chip.core.ub.size * UB_SHARE
        per = _bytes_per_element(args)
        for pieces in range(1, MAX_PIECES + 1):
            job = _job(args, {"pieces": pieces, "blocks": 1})
            if job.room() * per <= room and pieces <= job.height:
                total = job.images * job.c1 * pieces
                yield {"pieces": pieces, "blocks": min(total, chip.vector_cores())}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        job, core = _job(args, tiling), chip.core
        per = core.vector.costs["binary"].b32 or 1.0
        overhead = core.vector.head + core.vector.tail + 3
        once = PASSES[args.op_type] * (job.room() / REPEAT * per + overhead)
        return -(-job.images * job.c1 * job.pieces // job.blocks) * once

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        job = _job(args, tiling)
        runs = [job.runs(b) for b in range(job.blocks)]
        segments = sum(len(r) for r in runs)
        images = IMAGES[args.op_type]
        traffic = {}
        for i, o in enumerate(args.operands):
            total = o.nbytes
            if i < len(args.inputs) and i not in images:  # spread over a repeat as it is loaded
                total = segments * REPEAT * 4
            elif args.op_type in SUMS and i >= len(args.inputs):
                total = segments * C0 * 4
            traffic[i] = Traffic(o.nbytes, total)
        keys = [_key(job, r) for r in runs]
        return Plan(tiling, job.blocks, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        work = PROGRAMS[args.op_type](k, args, _job(args, tiling))
        for run in work.job.runs(block):
            yield from work.begin(run)
            if work.job.pieces == 1:
                for i in k.loop(run.count):
                    yield from work.piece(run, run.first + i)
            else:  # pieces differ in length: no promise of equal iterations
                for i in range(run.count):
                    yield from work.piece(run, run.first + i)
            yield from work.end(run)


def _key(job: Job, runs: list[Run]) -> tuple[Any, ...]:
    """What makes two blocks cost the same."""
    if job.pieces == 1:
        return tuple((r.count, r.first == 0) for r in runs)
    return tuple((r.count, r.first % job.pieces, r.first == 0) for r in runs)


class _Program:
    """One block at work: `begin` a run of pieces, each `piece`, `end`."""

    def __init__(self, k: Kernel, args: KernelArgs, job: Job) -> None:
        self.k, self.args, self.job = k, args, job
        self.stage = Stage(k)
        self.room = job.room()
        self.first_out = len(args.inputs)

    # -- pieces ------------------------------------------------------------------------------------

    def _gm(self, index: int, c1: int, piece: int) -> Region:
        """A piece of an image in GM, flat."""
        n, part = divmod(piece, self.job.pieces)
        p0, p1 = self.job.cut(part)
        dtype = self.args.operands[index].dtype.np
        offset = ((n * self.job.c1 + c1) * self.job.positions + p0) * C0 * dtype.itemsize
        return Region.dense("GM", index, offset, ((p1 - p0) * C0,), dtype)

    def wide(self, index: int, name: str, run: Run, piece: int) -> Any:
        """A piece of an image in fp32, loaded and converted into temporary `name`."""
        x = yield from self.stage.load(self._gm(index, run.c1, piece), self.room)
        wide = self.stage.temp(name, x.shape, F32, self.room)
        yield from self.vec("conv" if x.dtype != F32 else "copy", wide, x)
        yield self.stage.free(index)
        return wide

    def vec(self, op: str, dst: Region, *srcs: Region, scalar: Any = None) -> Iterator[Instr]:
        """One pass: whole repeats, then the rest. A source of REPEAT elements is per channel."""
        n = dst.shape[0]
        whole = n // REPEAT * REPEAT
        self.k.barrier()
        if whole:
            cut = [_rows(s, whole) for s in srcs]
            yield self.k.vec(op, _rows(dst, whole), *cut, scalar=scalar)
            self.k.barrier()
        if whole < n:
            cut = [s[: n - whole] if s.shape[0] == REPEAT else s[whole:] for s in srcs]
            yield self.k.vec(op, dst[whole:], *cut, scalar=scalar)

    def accumulate(self, total: str, src: Region) -> Iterator[Instr]:
        """Temporary `total` (REPEAT lanes) += src, repeat by repeat."""
        whole = src.shape[0] // REPEAT * REPEAT
        lanes = self.stage.temp(total, (REPEAT,), F32)
        part = self.stage.temp("part", (REPEAT,), F32)
        if whole:
            yield self.k.reduce("accumulate", part, _rows(src, whole))
            yield self.k.vec("add", lanes, lanes, part)
        if whole < src.shape[0]:
            rest = src[whole:]
            yield self.k.vec("add", lanes[: rest.shape[0]], lanes[: rest.shape[0]], rest)

    # -- channel vectors -------------------------------------------------------------------------

    def channel(self, index: int, run: Run) -> Any:
        """A per-channel operand, spread over a repeat, in temporary `p<index>`."""
        gm = Region.dense("GM", index, run.c1 * C0 * 4, (C0,), F32).broadcast((REPEAT // C0, C0))
        loaded = yield from self.stage.load(gm, REPEAT)
        kept = self.stage.temp(f"p{index}", (REPEAT,), F32)
        yield self.k.vec("copy", kept, _flat(loaded))
        yield self.stage.free(index)
        return kept

    def small(self, name: str) -> Region:
        """A temporary per channel."""
        return self.stage.temp(name, (REPEAT,), F32)

    def put(self, index: int, run: Run, value: Region, atomic: bool = False) -> Iterator[Instr]:
        """Store 16 channels of an output."""
        tile = yield from self.stage.out(index, (C0,), F32, C0)
        yield self.k.vec("copy", tile, value[:C0])
        gm = Region.dense("GM", index, run.c1 * C0 * 4, (C0,), F32)
        yield from self.stage.store(gm, tile, atomic)

    def inverse(self, dst: Region, variance: Region) -> Iterator[Instr]:
        """dst = 1 / √(variance + ε)."""
        one = self.small("one")
        epsilon = float(dict(self.args.attrs).get("epsilon", 1e-4))
        yield self.k.vec("adds", dst, variance, scalar=epsilon)
        yield self.k.vec("sqrt", dst, dst)
        yield self.k.vec("dup", one, scalar=1.0)
        yield self.k.vec("div", dst, one, dst)

    def count(self) -> int:
        """Elements per channel."""
        return self.job.images * self.job.positions

    def begin(self, run: Run) -> Iterator[Instr]:
        """Before the pieces of a run."""
        yield from ()

    def piece(self, run: Run, piece: int) -> Iterator[Instr]:
        """One piece."""
        yield from ()

    def end(self, run: Run) -> Iterator[Instr]:
        """After the pieces of a run."""
        yield from ()


def _rows(r: Region, whole: int) -> Region:
    """`whole` elements as repeats; a channel vector stays, to be broadcast."""
    return r if r.shape[0] == REPEAT and whole != REPEAT else r[:whole].split(0, REPEAT)


def _flat(r: Region) -> Region:
    return Region.dense(r.space, r.operand, r.offset, (r.size,), r.dtype)


class _Sums(_Program):
    """Two sums per channel: over lanes while in a run, folded and added to GM at its end."""

    def begin(self, run: Run) -> Iterator[Instr]:
        for name in ("sum0", "sum1"):
            yield self.k.vec("dup", self.small(name), scalar=0.0)

    def end(self, run: Run) -> Iterator[Instr]:
        for j in (0, 1):
            lanes = self.small(f"sum{j}")
            for half in (REPEAT // 2, REPEAT // 4):
                yield self.k.vec("add", lanes[:half], lanes[:half], lanes[half : 2 * half])
            yield from self.put(self.first_out + j, run, lanes, atomic=True)


class _Reduce(_Sums):
    """Σx, Σx²."""

    def piece(self, run: Run, piece: int) -> Iterator[Instr]:
        x = yield from self.wide(0, "x", run, piece)
        square = self.stage.temp("square", x.shape, F32, self.room)
        yield from self.vec("mul", square, x, x)
        yield from self.accumulate("sum0", x)
        yield from self.accumulate("sum1", square)


class _UpdateGrad(_Sums):
    """Σ g·(x - mean)/σ, Σ g."""

    def begin(self, run: Run) -> Iterator[Instr]:
        yield from super().begin(run)
        mean = yield from self.channel(2, run)
        variance = yield from self.channel(3, run)
        yield self.k.vec("muls", self.small("negative"), mean, scalar=-1.0)
        yield from self.inverse(self.small("inverse"), variance)

    def piece(self, run: Run, piece: int) -> Iterator[Instr]:
        g = yield from self.wide(0, "g", run, piece)
        x = yield from self.wide(1, "x", run, piece)
        yield from self.vec("add", x, x, self.small("negative"))
        yield from self.vec("mul", x, x, self.small("inverse"))
        yield from self.vec("mul", x, x, g)
        yield from self.accumulate("sum0", x)
        yield from self.accumulate("sum1", g)


class _ReduceGrad(_Program):
    """y = (x·a + b + g)·c, with a = -dscale/(Mσ), b = -doffset/M - a·mean, c = scale/σ."""

    def begin(self, run: Run) -> Iterator[Instr]:
        k, m = self.k, 1.0 / self.count()
        a, b, c = (self.small(n) for n in "abc")
        operands = []
        for i in range(2, 7):
            operands.append((yield from self.channel(i, run)))
        d_scale, d_offset, scale, mean, variance = operands
        yield from self.inverse(c, variance)
        yield k.vec("mul", a, d_scale, c)
        yield k.vec("muls", a, a, scalar=-m)
        yield k.vec("mul", b, a, mean)
        yield k.vec("muls", d_offset, d_offset, scalar=m)
        yield k.vec("add", b, b, d_offset)
        yield k.vec("muls", b, b, scalar=-1.0)
        yield k.vec("mul", c, c, scale)

    def piece(self, run: Run, piece: int) -> Iterator[Instr]:
        g = yield from self.wide(0, "g", run, piece)
        x = yield from self.wide(1, "x", run, piece)
        yield from self.vec("mul", x, x, self.small("a"))
        yield from self.vec("add", x, x, self.small("b"))
        yield from self.vec("add", x, x, g)
        stored = self.args.outputs[0].dtype.np
        out = yield from self.stage.out(self.first_out, x.shape, stored, self.room)
        if stored == F32:
            yield from self.vec("mul", out, x, self.small("c"))
        else:
            yield from self.vec("mul", x, x, self.small("c"))
            yield from self.vec("conv", out, x)
        yield from self.stage.store(self._gm(self.first_out, run.c1, piece), out)


class _Update(_Program):
    """y = x·factor + shift, and the statistics once per channel block."""

    def __init__(self, k: Kernel, args: KernelArgs, job: Job) -> None:
        super().__init__(k, args, job)
        self.fused = args.op_type in FUSED
        self.adds = FUSED.get(args.op_type, False)
        self.y_index = self.first_out + (4 if self.fused else 0)
        self.statistics = self.first_out + (0 if self.fused else 1)

    def begin(self, run: Run) -> Iterator[Instr]:
        k, m = self.k, 1.0 / self.count()
        factor, shift, spare = (self.small(n) for n in ("factor", "shift", "spare"))
        operands = []
        for i in range(1, 7):
            operands.append((yield from self.channel(i, run)))
        mean, variance, scale, offset = operands[:4]
        yield k.vec("muls", mean, mean, scalar=m)
        yield k.vec("muls", variance, variance, scalar=m)
        yield k.vec("mul", spare, mean, mean)
        yield k.vec("sub", variance, variance, spare)
        yield from self.inverse(factor, variance)
        yield k.vec("mul", factor, factor, scale)
        yield k.vec("mul", spare, mean, factor)
        yield k.vec("sub", shift, offset, spare)
        if run.first == 0:
            yield from self._store_statistics(run, *operands)

    def _store_statistics(self, run: Run, mean: Region, variance: Region, *rest: Region) -> Any:
        """Running mean and variance, batch mean and variance."""
        k, running, n = self.k, rest[2:], self.count()
        factor = float(dict(self.args.attrs).get("factor", 0.1))
        spare = self.small("spare")
        for batch, kept, scale in zip(
            (mean, variance), running, (1.0, n / max(1, n - 1)), strict=True
        ):
            yield k.vec("muls", kept, kept, scalar=1.0 - factor)
            yield k.vec("muls", spare, batch, scalar=factor * scale)
            yield k.vec("add", kept, kept, spare)
        for j, value in enumerate((*running, mean, variance)):
            yield from self.put(self.statistics + j, run, value)

    def piece(self, run: Run, piece: int) -> Iterator[Instr]:
        x = yield from self.wide(0, "x", run, piece)
        yield from self.vec("mul", x, x, self.small("factor"))
        yield from self.vec("add", x, x, self.small("shift"))
        stored = self.args.operands[self.y_index].dtype.np
        y = yield from self.stage.out(self.y_index, x.shape, stored, self.room)
        yield from self.vec("conv" if stored != F32 else "copy", y, x)
        if self.adds:
            other = yield from self.stage.load(self._gm(7, run.c1, piece), self.room)
            yield from self.vec("add", y, y, other)
            yield self.stage.free(7)
        if self.fused:
            yield from self._relu(run, piece, y)
        yield from self.stage.store(self._gm(self.y_index, run.c1, piece), y)

    def _relu(self, run: Run, piece: int, y: Region) -> Iterator[Instr]:
        """The mask, one bit per element, then ReLU in place."""
        index = self.y_index + 1
        n, part = divmod(piece, self.job.pieces)
        p0, p1 = self.job.cut(part)
        byte = np.dtype(np.uint8)
        bits = yield from self.stage.out(index, (y.shape[0] // 8,), byte, self.room // 8)
        yield from self._compare(bits, y)
        yield from self.vec("relu", y, y)
        offset = ((n * self.job.c1 + run.c1) * self.job.positions + p0) * 2
        gm = Region.dense("GM", index, offset, ((p1 - p0) * 2,), byte)
        yield from self.stage.store(gm, bits)

    def _compare(self, bits: Region, y: Region) -> Iterator[Instr]:
        """The mask: one repeated compare, or pairs of a compare into the mask register and its
        move to UB, 128 elements at a time, when slices do not end on a repeat."""
        if self.job.positions * C0 % REPEAT == 0:
            yield self.k.reduce("pack_positive", bits, y)
            return
        register = self.stage.temp("register", bits.shape, bits.dtype, self.room // 8)
        for i in self.k.loop(-(-y.shape[0] // PAIR)):
            n = min(PAIR, y.shape[0] - i * PAIR)
            for target in (register, bits):
                key = ("pair", n, i == 0, target is bits)
                yield self.k.memo(key, partial(self._compare_one, target, y, i))

    def _compare_one(self, bits: Region, y: Region, i: int) -> Instr:
        part = bits[i * PAIR // 8 : (i + 1) * PAIR // 8]
        return self.k.reduce("pack_positive", part, y[i * PAIR : (i + 1) * PAIR])


PROGRAMS: dict[str, type[_Program]] = {
    "BNTrainingReduce": _Reduce,
    "BNTrainingUpdate": _Update,
    "FusionOp_BNTrainingUpdate_ReLUV2": _Update,
    "FusionOp_BNTrainingUpdate_Add_ReLUV2": _Update,
    "BNTrainingUpdateGrad": _UpdateGrad,
    "BNTrainingReduceGrad": _ReduceGrad,
}
