"""Softmax and LogSoftmax over one axis, in fp32 in UB.

A tile that holds whole lanes is loaded once: maximum, shift, exp, sum, scale. Lanes longer than
UB take three passes over GM: maximum; sum of exponentials; result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import Layout
from npusim.kernels.elementwise import MIN_BLOCK_BYTES, unsupported_type
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.rows import (
    F16,
    F32,
    ColumnReducer,
    Lanes,
    RowReducer,
    Spreader,
    Strip,
    in_queue,
    lane_estimate,
    lanes,
    out_queue,
    tilings,
)
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import Region

Cut = tuple[slice, slice, slice]


@dataclass(frozen=True)
class Job:
    """A launch: its lanes, storage type, and which of the two functions."""

    lanes: Lanes
    stored: np.dtype
    log: bool

    def reduces_stored(self) -> bool:
        """The maximum is taken before the conversion: exact, and fp16 has vcmax everywhere."""
        return self.stored == F16

    def passes(self, tiling: Tiling) -> int:
        """How often GM is read."""
        return 1 if tiling["r"] >= self.lanes.length else 3


def _job(args: KernelArgs) -> Job:
    spec = args.inputs[0]
    assert spec is not None
    axis = int(args.get("axis", -1))
    return Job(lanes(spec.shape, axis), spec.dtype.np, args.op_type == "LogSoftmax")


def _footprint(job: Job, chip: ChipSpec, tiling: Tiling) -> int:
    """UB bytes of a tiling."""
    tile, stat = prod(job.lanes.tile(tiling)), prod(job.lanes.stat(tiling))
    size = job.stored.itemsize
    total = 4 * tile * size + (1 + job.log) * tile * 4 + 6 * (4 * stat + 32)
    total += Spreader.nbytes(job.lanes, tiling) + 32
    first = job.stored if job.reduces_stored() else F32
    if job.lanes.is_rows:
        for op, dtype in (("max", first), ("add", F32)):
            total += sum(RowReducer.scratch(chip, op, tiling["m"], tiling["r"], dtype)) + 64
        return total
    return total + ColumnReducer.scratch(job.lanes.tile(tiling), F32, True)


@kernel("Softmax")
class Softmax(TileKernel):
    """Softmax, LogSoftmax; attribute `axis`."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        spec = args.inputs[0]
        if args.op_type not in ("Softmax", "LogSoftmax") or spec is None:
            return f"no vector program for {args.op_type}"
        if args.epilogue or spec.layout is not Layout.ND or not spec.shape:
            return "takes an ND tensor and no epilogue"
        if not spec.dtype.is_float or spec.dtype is not args.outputs[0].dtype:
            return f"{args.op_type} of {spec.dtype.value}"
        if not spec.nbytes:
            return "an empty tensor"
        return unsupported_type(spec.dtype, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        job = _job(args)
        lane = job.lanes.length * job.stored.itemsize
        least = MIN_BLOCK_BYTES // max(1, lane)
        return tilings(job.lanes, chip, least, lambda t: _footprint(job, chip, t))

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        job = _job(args)
        size = args.outputs[0].nbytes
        passes = 14 if job.lanes.is_rows else 8
        return lane_estimate(job.lanes, chip, tiling, passes, job.passes(tiling) * size, size)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        job = _job(args)
        size = args.outputs[0].nbytes
        traffic = {
            0: Traffic(size, size * job.passes(tiling)),
            len(args.inputs): Traffic(size, size),
        }
        n = job.lanes.blocks(tiling)
        keys = [job.lanes.share(tiling, b).size for b in range(n)]
        return Plan(tiling, n, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        job = _job(args)
        run = _Run(k, job, tiling, block, len(args.inputs))
        outer, inner, length = run.strip.counts()
        yield from run.prologue()
        for o in k.loop(outer):
            for i in k.loop(inner):
                if job.passes(tiling) == 1:
                    yield from run.whole(o, i)
                    continue
                yield from run.start(o, i)
                for r in k.loop(length):
                    yield from run.maximum(o, i, r)
                yield from run.spread_maximum(o, i)
                for r in k.loop(length):
                    yield from run.total(o, i, r)
                yield from run.spread_total(o, i)
                for r in k.loop(length):
                    yield from run.result(o, i, r)


class _Run:
    """One block at work.

    `wide` holds the tile in fp32; `top` and `sum` one statistic per lane.
    """

    def __init__(self, k: Kernel, job: Job, tiling: Tiling, block: int, out: int) -> None:
        self.k, self.job, self.out_index = k, job, out
        self.strip = Strip(k, job.lanes, tiling, block)
        tile, stat = prod(job.lanes.tile(tiling)), prod(job.lanes.stat(tiling))
        self.queue = in_queue(k, tile * job.stored.itemsize)
        self.results = out_queue(k, tile * job.stored.itemsize)
        self.wide = k.alloc("UB", tile * 4)
        self.shifted = k.alloc("UB", tile * 4) if job.log else self.wide
        self.top, self.sum, self.one, self.partial, self.narrow = (
            k.alloc("UB", stat * 4) for _ in range(5)
        )
        self.spread_top = Spreader(k, self.strip)
        self.spread_sum = self.spread_top if job.passes(tiling) == 1 else Spreader(k, self.strip)
        first = job.stored if job.reduces_stored() else F32
        self.max: RowReducer | ColumnReducer
        self.add: RowReducer | ColumnReducer
        if job.lanes.is_rows:
            self.max = RowReducer(k, "max", tiling["m"], tiling["r"], first)
            self.add = RowReducer(k, "add", tiling["m"], tiling["r"], F32)
        else:
            self.max = self.add = ColumnReducer(k, "max", self.strip.shape, F32, keep=True)

    def _stat(self, name: str, cut: Cut) -> Region:
        return self.strip.stat(getattr(self, name), F32, cut)

    def prologue(self) -> Iterator[Instr]:
        """The constant 1, to take reciprocals by division."""
        cut = self.strip.cut(0, 0, 0)
        yield self.k.vec("dup", self._stat("one", cut), scalar=1.0)

    def _load(self, cut: Cut) -> Iterator[Instr]:
        yield from self.strip.load(self.queue, 0, self.job.stored, cut)

    def _stored(self, cut: Cut) -> Region:
        return self.strip.work(self.queue.front, self.job.stored, cut)

    def _find_top(self, dst: str, x: Region, cut: Cut) -> Iterator[Instr]:
        """Statistic `dst` = maximum of the stored tile."""
        stat = self._stat(dst, cut)
        narrow = stat
        if x.dtype != F32:
            narrow = self.strip.stat(self.narrow, x.dtype, cut)
        if self.job.lanes.is_rows:
            yield from self.max(narrow, self.strip.valid(x, cut))
        else:
            yield from self._fold("max", narrow, x)
        if narrow is not stat:
            yield self.k.vec("conv", stat, narrow)

    def _fold(self, op: str, dst: Region, x: Region) -> Iterator[Instr]:
        assert isinstance(self.max, ColumnReducer)
        yield from self.max.fold(op, dst, x)

    def _shift(self, cut: Cut, top: Region) -> Iterator[Instr]:
        """wide = x - maximum, in fp32."""
        x, wide = self._stored(cut), self.strip.work(self.shifted, F32, cut)
        if x.dtype != F32:
            yield self.k.vec("conv", wide, x)
            x = wide
        yield self.k.vec("sub", wide, x, top)

    def _exponentials(self, dst: str, cut: Cut) -> Iterator[Instr]:
        """Statistic `dst` = Σ e^shifted."""
        wide = self.strip.work(self.wide, F32, cut)
        yield self.k.vec("exp", wide, self.strip.work(self.shifted, F32, cut))
        stat = self._stat(dst, cut)
        if self.job.lanes.is_rows:
            yield from self.add(stat, self.strip.valid(wide, cut))
        else:
            yield from self._fold("add", stat, wide)

    def _finish(self, cut: Cut) -> Iterator[Instr]:
        """Scale (or shift, for the logarithm) into the output and store."""
        wide = self.strip.work(self.shifted, F32, cut)
        place = yield from self.results.alloc()
        out = self.strip.work(place, self.job.stored, cut)
        target = out if out.dtype == F32 else wide
        scale = self.spread_sum.region(self._stat("sum", cut))
        yield self.k.vec("sub" if self.job.log else "mul", target, wide, scale)
        if target is not out:
            yield self.k.vec("conv", out, wide)
        yield from self.strip.store(self.results, self.out_index, out, cut)

    def _scale(self, cut: Cut) -> Iterator[Instr]:
        """sum → its reciprocal, or its logarithm; spread."""
        stat = self._stat("sum", cut)
        if self.job.log:
            yield self.k.vec("ln", stat, stat)
        else:
            yield self.k.vec("div", stat, self._stat("one", cut), stat)
        yield from self.spread_sum(stat)

    def whole(self, o: int, i: int) -> Iterator[Instr]:
        """A tile of whole lanes, in one pass."""
        cut = self.strip.cut(o, i, 0)
        yield from self._load(cut)
        x = self._stored(cut)
        if x.dtype != F32 and not self.job.reduces_stored():
            wide = self.strip.work(self.shifted, F32, cut)
            yield self.k.vec("conv", wide, x)
            x = wide
        yield from self._find_top("top", x, cut)
        top = self._stat("top", cut)
        yield from self.spread_top(top)
        yield from self._shift(cut, self.spread_top.region(top))
        yield self.queue.free()
        yield from self._exponentials("sum", cut)
        yield from self._scale(cut)
        yield from self._finish(cut)

    # -- three passes ------------------------------------------------------------------------------

    def start(self, o: int, i: int) -> Iterator[Instr]:
        """Neutral statistics."""
        cut = self.strip.cut(o, i, 0)
        yield self.k.vec("dup", self._stat("top", cut), scalar=-np.inf)
        yield self.k.vec("dup", self._stat("sum", cut), scalar=0.0)

    def maximum(self, o: int, i: int, r: int) -> Iterator[Instr]:
        """First pass: the maximum so far."""
        cut = self.strip.cut(o, i, r)
        yield from self._load(cut)
        x = self._stored(cut)
        if x.dtype != F32 and not self.job.reduces_stored():
            wide = self.strip.work(self.wide, F32, cut)
            yield self.k.vec("conv", wide, x)
            x = wide
        yield from self._find_top("partial", x, cut)
        yield self.queue.free()
        top = self._stat("top", cut)
        yield self.k.vec("max", top, top, self._stat("partial", cut))

    def spread_maximum(self, o: int, i: int) -> Iterator[Instr]:
        """Between the first and the second pass."""
        yield from self.spread_top(self._stat("top", self.strip.cut(o, i, 0)))

    def total(self, o: int, i: int, r: int) -> Iterator[Instr]:
        """Second pass: the sum so far."""
        cut = self.strip.cut(o, i, r)
        yield from self._load(cut)
        yield from self._shift(cut, self.spread_top.region(self._stat("top", cut)))
        yield self.queue.free()
        yield from self._exponentials("partial", cut)
        total = self._stat("sum", cut)
        yield self.k.vec("add", total, total, self._stat("partial", cut))

    def spread_total(self, o: int, i: int) -> Iterator[Instr]:
        """Between the second and the third pass."""
        yield from self._scale(self.strip.cut(o, i, 0))

    def result(self, o: int, i: int, r: int) -> Iterator[Instr]:
        """Third pass: one tile of the result."""
        cut = self.strip.cut(o, i, r)
        yield from self._load(cut)
        yield from self._shift(cut, self.spread_top.region(self._stat("top", cut)))
        yield self.queue.free()
        if not self.job.log:
            wide = self.strip.work(self.wide, F32, cut)
            yield self.k.vec("exp", wide, wide)
        yield from self._finish(cut)
