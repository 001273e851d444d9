"""Reductions over any axes that collapse to (R0, kept, R1, kept): sums, means, extrema, norms.

Sums and norms run in fp32; extrema in the storage type. Partial results of several tiles of one
lane accumulate in UB. Blocks split the kept axes only: no atomics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.elementwise import MIN_BLOCK_BYTES, unsupported_type
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.rows import (
    F16,
    F32,
    NEUTRAL,
    ColumnReducer,
    Lanes,
    RowReducer,
    Strip,
    in_queue,
    lane_estimate,
    out_queue,
    tilings,
)
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import Region

#: Cycles before the first load of the library's ReduceSum with the axes as an operand (attribute
#: `dynamic`), on several blocks: what three recorded rows on a 910B2 (8, 18 and 25 MB) take beyond
#: launch, transfers and vector time, 13 to 17 us at 1.8 GHz.
DYNAMIC = 27_000


@dataclass(frozen=True)
class Recipe:
    """A reduction: per element, combined by `combine`, then per result."""

    combine: str
    before: str = ""
    after: str = ""


RECIPES = {
    "ReduceSum": Recipe("add"),
    "ReduceMean": Recipe("add", after="mean"),
    "ReduceMax": Recipe("max"),
    "ReduceMin": Recipe("min"),
    "ReduceProd": Recipe("mul"),
    "ReduceL1": Recipe("add", before="abs"),
    "ReduceL2": Recipe("add", before="square", after="sqrt"),
    "ReduceSumSquare": Recipe("add", before="square"),
    "ReduceLogSum": Recipe("add", after="ln"),
}


@dataclass(frozen=True)
class Job:
    """The collapsed launch: `repeats` (R0) times lanes (kept, R1, kept)."""

    repeats: int
    lanes: Lanes
    recipe: Recipe
    stored: np.dtype
    work: np.dtype

    @property
    def count(self) -> int:
        """Elements per result."""
        return self.repeats * self.lanes.length


def reduced_axes(args: KernelArgs) -> tuple[int, ...]:
    """The logical axes: attribute `axes`, or what the shapes say; () when they do not say."""
    spec, out = args.inputs[0], args.outputs[0]
    assert spec is not None
    rank = len(spec.shape)
    given: Any = args.get("axes")
    if given is not None:
        return tuple(sorted(int(a) % rank for a in given))
    if len(out.shape) == rank:
        return tuple(i for i in range(rank) if out.shape[i] == 1)
    return tuple(range(rank)) if prod(out.shape) == 1 else ()


def _storage_axes(args: KernelArgs) -> tuple[int, ...] | None:
    """Reduced axes of the storage shape, None when the layout does not allow it."""
    spec = args.inputs[0]
    assert spec is not None
    axes = reduced_axes(args)
    if spec.layout is Layout.ND:
        return axes
    if spec.layout is not Layout.NC1HWC0 or (1 in axes and spec.shape[1] % 16):
        return None
    return tuple(sorted({*axes, 4} if 1 in axes else axes))


def _collapsed(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, Lanes] | None:
    """(R0, lanes) of a dense array, None when the axes alternate more often."""
    groups: list[tuple[bool, int]] = []
    for i, n in enumerate(shape):
        if n == 1:
            continue
        inside = i in axes
        if groups and groups[-1][0] == inside:
            groups[-1] = (inside, groups[-1][1] * n)
        else:
            groups.append((inside, n))
    slots = [True, False, True, False]  # R0, kept, R1, kept
    if len(groups) <= 2 and groups and groups[0][0]:
        groups = [(True, 1), (False, 1), *groups]
    sizes = [1] * 4
    at = 0
    for inside, n in groups:
        while at < 4 and slots[at] != inside:
            at += 1
        if at == 4:
            return None
        sizes[at] = n
        at += 1
    return sizes[0], Lanes(sizes[1], sizes[2], sizes[3])


@lru_cache(maxsize=4096)
def reduce_job(args: KernelArgs) -> Job | None:
    """What a launch reduces; None where the axes do not collapse."""
    spec, axes = args.inputs[0], _storage_axes(args)
    assert spec is not None
    found = None if axes is None else _collapsed(spec.storage_shape, axes)
    if found is None:
        return None
    recipe = RECIPES[args.op_type]
    stored = spec.dtype.np
    exact = (recipe.combine in ("max", "min") and stored == F16) or stored.kind in "iu"
    return Job(*found, recipe, stored, stored if exact else F32)


def _prepares(job: Job) -> bool:
    """True when a tile is converted or mapped before it is reduced."""
    return job.work != job.stored or bool(job.recipe.before)


def _footprint(job: Job, chip: ChipSpec, tiling: Tiling) -> int:
    """UB bytes of a tiling."""
    tile = prod(job.lanes.tile(tiling))
    size = job.work.itemsize
    stat = 32 + prod(job.lanes.stat(tiling)) * size
    total = 2 * tile * job.stored.itemsize + 5 * stat + 256
    if _prepares(job):
        total += tile * size
    if job.lanes.is_rows:
        m, r = tiling["m"], tiling["r"]
        total += sum(RowReducer.scratch(chip, job.recipe.combine, m, r, job.work)) + 64
    return total


@kernel("Reduce")
class Reduce(TileKernel):
    """Reductions; the axes come from attribute `axes` or from the shapes (keepdims).

    Attribute `dynamic`: the library's kernel that reads the axes, on several blocks.
    """

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        spec = args.inputs[0]
        if args.op_type not in RECIPES or spec is None:
            return f"no vector program for {args.op_type}"
        if len(args.outputs) != 1 or args.epilogue:
            return "one output and no epilogue"
        if not spec.nbytes or not args.outputs[0].nbytes:
            return "an empty tensor"
        recipe = RECIPES[args.op_type]
        if spec.dtype is DType.BOOL:
            return "booleans"
        if not spec.dtype.is_float and (recipe.before or recipe.after or recipe.combine == "mul"):
            return f"{args.op_type} of {spec.dtype.value}"
        if spec.dtype is not args.outputs[0].dtype:
            return "input and output types differ"
        job = reduce_job(args)
        if job is None or prod(args.outputs[0].storage_shape) != job.lanes.outer * job.lanes.inner:
            return f"axes {reduced_axes(args)} of {spec.shape} in {spec.layout.value}"
        return unsupported_type(spec.dtype, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        job = reduce_job(args)
        assert job is not None
        lane = job.count * job.stored.itemsize
        return tilings(
            job.lanes, chip, MIN_BLOCK_BYTES // max(1, lane), lambda t: _footprint(job, chip, t)
        )

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        job = reduce_job(args)
        assert job is not None
        read = job.count * job.lanes.outer * job.lanes.inner * job.stored.itemsize
        passes = (4 if job.lanes.is_rows else 1) + _prepares(job)
        once = lane_estimate(
            job.lanes, chip, tiling, passes, read / job.repeats, args.outputs[0].nbytes
        )
        return once * job.repeats

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        job = reduce_job(args)
        assert job is not None
        lanes, size = job.lanes, job.stored.itemsize
        read = job.count * lanes.outer * lanes.inner * size
        written = lanes.outer * lanes.inner * size
        traffic = {0: Traffic(read, read), len(args.inputs): Traffic(written, written)}
        n = lanes.blocks(tiling)
        keys = [lanes.share(tiling, b).size for b in range(n)]
        return Plan(tiling, n, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        job = reduce_job(args)
        assert job is not None
        run = _Run(k, job, tiling, block, len(args.inputs))
        outer, inner, length = run.strip.counts()
        if args.get("dynamic"):
            yield k.stall(Pipe.MTE2, DYNAMIC)
        for o in k.loop(outer):
            for i in k.loop(inner):
                yield from run.start(o, i)
                for repeat in k.loop(job.repeats):
                    for r in k.loop(length):
                        yield from run.tile(repeat, o, i, r)
                yield from run.finish(o, i)


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, job: Job, tiling: Tiling, block: int, out: int) -> None:
        self.k, self.job, self.out_index = k, job, out
        self.strip = Strip(k, job.lanes, tiling, block)
        tile = prod(job.lanes.tile(tiling))
        stat = prod(job.lanes.stat(tiling)) * job.work.itemsize
        combine = job.recipe.combine
        self.queue = in_queue(k, tile * job.stored.itemsize)
        self.results = out_queue(k, stat)
        self.accumulator = k.alloc("UB", stat)
        self.partial = k.alloc("UB", stat)
        self.buffer = k.alloc("UB", tile * job.work.itemsize) if _prepares(job) else None
        self.reduce: RowReducer | ColumnReducer
        if job.lanes.is_rows:
            self.reduce = RowReducer(k, combine, tiling["m"], tiling["r"], job.work)
        else:
            self.reduce = ColumnReducer(k, combine, self.strip.shape, job.work, keep=False)
        self.single = job.repeats == 1 and tiling["r"] >= job.lanes.length

    def start(self, o: int, i: int) -> Iterator[Instr]:
        """Set the accumulator to the neutral element."""
        if not self.single:
            value = NEUTRAL[self.job.recipe.combine]
            if self.job.work.kind in "iu" and np.isinf(value):
                info = np.iinfo(self.job.work)
                value = int(info.min if value < 0 else info.max)
            cut = self.strip.cut(o, i, 0)
            stat = self.strip.stat(self.accumulator, self.job.work, cut)
            yield self.k.vec("dup", stat, scalar=value)

    def tile(self, repeat: int, o: int, i: int, r: int) -> Iterator[Instr]:
        """Load a tile, reduce it, accumulate."""
        k, job, strip = self.k, self.job, self.strip
        cut = strip.cut(o, i, r)
        place = yield from self.queue.alloc()
        x = strip.work(place, job.stored, cut)
        shape = (job.repeats, *job.lanes.shape)
        gm = Region.dense("GM", 0, 0, shape, job.stored)[(repeat, *cut[: len(shape) - 1])]
        yield k.load(strip.valid(x, cut), gm)
        yield self.queue.enque()
        yield self.queue.deque()
        if self.buffer is not None:
            work = strip.work(self.buffer, job.work, cut)
            yield from self._prepare(work, x)
            x = work
        target = self.accumulator if self.single else self.partial
        stat = strip.stat(target, job.work, cut)
        yield from self.reduce(stat, strip.valid(x, cut) if job.lanes.is_rows else x)
        yield self.queue.free()
        if not self.single:
            total = strip.stat(self.accumulator, job.work, cut)
            yield k.vec(job.recipe.combine, total, total, stat)

    def _prepare(self, work: Region, x: Region) -> Iterator[Instr]:
        if x.dtype != work.dtype:
            yield self.k.vec("conv", work, x)
            x = work
        if self.job.recipe.before == "square":
            yield self.k.vec("mul", work, x, x)
        elif self.job.recipe.before == "abs":
            yield self.k.vec("abs", work, x)

    def finish(self, o: int, i: int) -> Iterator[Instr]:
        """The last step on the results, conversion, store."""
        k, job, strip = self.k, self.job, self.strip
        cut = strip.cut(o, i, 0)
        total = strip.stat(self.accumulator, job.work, cut)
        if job.recipe.after == "mean":
            yield k.vec("muls", total, total, scalar=1.0 / job.count)
        elif job.recipe.after:
            yield k.vec(job.recipe.after, total, total)
        place = yield from self.results.alloc()
        result = strip.stat(place, job.stored, cut)
        yield k.vec("copy" if job.stored == job.work else "conv", result, total)
        yield self.results.enque()
        yield self.results.deque()
        shape = tuple(n for n in (job.lanes.outer, job.lanes.inner))
        gm = Region.dense("GM", self.out_index, 0, shape, job.stored)[cut[0], cut[2]]
        ub = result.expand(1) if job.lanes.is_rows else result[:, : cut[2].stop - cut[2].start]
        yield k.store(gm, ub)
        yield self.results.free()
