"""LpNorm and L2Loss in the passes of their TBE sources, over any axes.

How the reduced axes lie decides what a pass covers:

* rows: one stretch of reduced axes at the end. Rows lie one after the other; several share the
  passes of a tile, each is summed by itself;
* runs: reduced axes on both sides of kept ones, run after run. Where the result keeps its reduced
  axes the schedule does not join them and goes along the last axis alone, a load and ten
  instructions at a time: on the 310 some 200 cycles for 68 to 108 elements;
* columns: the last axis is kept. Rows of columns are added onto one another.

LpNorm works in fp32, L2Loss in the stored type up to its first sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isinf, prod

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.elementwise import unsupported_type
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.passes import F32, Passes, partials
from npusim.kernels.rows import largest
from npusim.kernels.stage import Stage
from npusim.ops.cann_lp_norm import norm_axes, power
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

UB_SHARE = 0.75  #: of UB that tiles take
GRAIN = 16  #: columns that blocks are dealt in: 32 B of fp16
INSTRUCTIONS = 12  #: of a piece, for the estimate
#: Cycles that a load takes longer when the one before was from another page of DRAM, and bytes of
#: a page over all channels. One recorded shape shows it (126 sums of runs of 84 B, 10.6 KB apart:
#: 223 cycles a run, where runs side by side take 155); the machine has no pages.
PAGE, PAGE_MISS = 4096, 70


@dataclass(frozen=True)
class Job:
    """A launch: kept axes (`outer`, then `columns` if the last axis is one), runs of `length`.

    Attributes:
        kept: extents of the kept axes before the last; kept_strides: theirs, in elements.
        runs: extents of the reduced axes that a run does not cover; run_strides: theirs.
        length: elements of a run: reduced ones, or columns.
        columns: the last axis is kept.
    """

    kept: tuple[int, ...]
    kept_strides: tuple[int, ...]
    runs: tuple[int, ...]
    run_strides: tuple[int, ...]
    length: int
    columns: bool
    p: float
    epsilon: float
    halves: bool  #: L2Loss

    @property
    def extreme(self) -> bool:
        """An infinity norm: nothing is summed."""
        return isinf(self.p)

    @property
    def verb(self) -> str:
        """What terms are put together by: add, max or min (the reductions: cadd …)."""
        return "add" if not self.extreme else "max" if self.p > 0 else "min"

    @property
    def lines(self) -> int:
        """Results, or rows of columns of results."""
        return prod(self.kept)

    @property
    def rows(self) -> bool:
        """Whole rows lie one after the other."""
        return not self.columns and not self.runs


def job_of(args: KernelArgs) -> Job:
    """The launch, adjacent axes of one kind as one."""
    x = args.operands[0]
    rank, halves = len(x.shape), args.op_type == "L2Loss"
    attrs = {"axes": (), "p": 2, **dict(args.attrs)}
    reduced = set(range(rank)) if halves else set(norm_axes(attrs, rank))
    strides = [prod(x.shape[i + 1 :]) for i in range(rank)]
    axes: list[tuple[bool, int, int]] = []  # reduced, extent, stride
    for i, n in enumerate(x.shape):
        if axes and axes[-1][0] == (i in reduced):
            axes[-1] = (axes[-1][0], axes[-1][1] * n, strides[i])
        else:
            axes.append((i in reduced, n, strides[i]))
    if axes[-1][0] and sum(a[0] for a in axes) > 1 and attrs.get("keepdims"):
        last, extent = x.shape[-1], axes[-1][1]
        axes[-1:] = [(True, extent // last, last), (True, last, 1)]
    *others, (is_run, length, _) = axes
    kept = [(n, s) for r, n, s in others if not r]
    runs = [(n, s) for r, n, s in others if r]
    return Job(
        tuple(n for n, _ in kept), tuple(s for _, s in kept),
        tuple(n for n, _ in runs), tuple(s for _, s in runs),
        length, not is_run, power(attrs["p"]), float(attrs.get("epsilon", 0.0)), halves,
    )  # fmt: skip


def _footprint(args: KernelArgs, job: Job, rows: int, piece: int) -> int:
    """UB bytes of tiles of rows × piece elements."""
    n, width = rows * piece, args.operands[0].dtype.size
    results = piece if job.columns else rows
    work = n * (width if job.halves else 16 if job.p == 0 or job.p > 2 else 8)
    small = (4 * 4 + 2 * width) * results + 512
    return 2 * n * width + work + partials(piece) + small + (4 * n if job.columns else 0)


@kernel("LpNorm")
class LpNorm(TileKernel):
    """Tiling: blocks; tiles of `rows` results × `piece` elements of a run."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """fp16 or fp32 in ND."""
        if args.op_type not in ("LpNorm", "L2Loss") or args.epilogue:
            return f"operator {args.op_type}"
        x, out = args.operands[0], args.outputs[0]
        if x.layout is not Layout.ND or x.dtype not in (DType.FLOAT16, DType.FLOAT32):
            return f"{x.dtype.value} in {x.layout.value}"
        if out.dtype is not x.dtype or not x.nbytes:
            return f"{x.dtype.value} of shape {x.shape} to {out.dtype.value}"
        return unsupported_type(x.dtype, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """One: the longest pieces that fit, and as many rows as do."""
        job, room = job_of(args), int(chip.core.ub.size * UB_SHARE)
        if _footprint(args, job, 1, min(64, job.length)) > room:
            return
        cores, split = chip.vector_cores(), 1
        if job.columns:
            split = min(-(-job.length // GRAIN), max(1, cores // job.lines))
        lines = min(job.lines, max(1, cores // split))
        share = -(-job.length // GRAIN // split) * GRAIN if split > 1 else job.length
        piece = largest(share, 64, lambda n: _footprint(args, job, 1, n) <= room)
        rows = 1
        if job.rows and piece == job.length:
            rows = largest(
                -(-job.lines // lines), 1, lambda n: _footprint(args, job, n, piece) <= room
            )
        yield {"lines": lines, "columns": split, "rows": rows, "piece": piece}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling: its passes."""
        job, vec = job_of(args), chip.core.vector
        tiles = job.lines / tiling["rows"] * prod(job.runs) * -(-job.length // tiling["piece"])
        per = INSTRUCTIONS * (vec.head + vec.tail + tiling["rows"] * tiling["piece"] / 32)
        return tiles * per / tiling["lines"] / tiling["columns"]

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Everything once."""
        job, n = job_of(args), tiling["lines"] * tiling["columns"]
        traffic = {i: Traffic(o.nbytes, o.nbytes) for i, o in enumerate(args.operands)}
        keys = [tuple(map(len, _share(job, tiling, b))) for b in range(n)]
        return Plan(tiling, n, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """The block's lines, a tile after the other."""
        run = _Run(k, args, tiling)
        lines, columns = _share(run.job, tiling, block)
        if run.job.columns:
            yield from run.columns(lines, columns)
        elif tiling["rows"] > 1:
            yield from run.rows(lines)
        else:
            yield from run.runs(lines)


def _share(job: Job, tiling: Tiling, block: int) -> tuple[range, range]:
    """Lines and columns of a block."""
    i, j = divmod(block, tiling["columns"])
    lo, hi = (job.lines * (i + x) // tiling["lines"] for x in (0, 1))
    grains = -(-job.length // GRAIN)
    c0, c1 = (min(job.length, grains * (j + x) // tiling["columns"] * GRAIN) for x in (0, 1))
    return range(lo, hi), range(c0, c1) if job.columns else range(job.length)


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling) -> None:
        self.k, self.args, self.job, self.tiling = k, args, job_of(args), tiling
        self.stored = args.operands[0].dtype.np
        self.work = self.stored if self.job.halves or self.job.extreme else F32
        self.start = inf if self.job.verb == "min" else 0.0
        self.stage, self.passes = Stage(k), Passes(k)
        self.partial = k.alloc("UB", partials(tiling["piece"]))
        self.more = k.alloc("UB", 32)
        self.room = tiling["rows"] * tiling["piece"]

    def temp(self, name: str, n: int) -> Region:
        """A tile in the working type."""
        return self.stage.temp(name, (n,), self.work, self.room)

    def _load(self, line: int, run: int, start: int, n: int) -> Iterator[Instr]:
        """n elements of a run from `start` → self.x, as stored."""
        job, width = self.job, self.stored.itemsize
        offset = start
        for index, extents, strides in (
            (line, job.kept, job.kept_strides), (run, job.runs, job.run_strides),
        ):  # fmt: skip
            for extent, stride in zip(extents[::-1], strides[::-1], strict=True):
                index, i = divmod(index, extent)
                offset += i * stride
        if job.runs and not job.columns and job.run_strides[-1] * width > PAGE:
            yield self.k.stall(Pipe.MTE2, PAGE_MISS)
        gm = Region.dense(GM, 0, offset * width, (n,), self.stored)
        self.x = yield from self.stage.load(gm, self.room)

    def terms(self, n: int) -> Iterator[Instr]:
        """What is summed of the loaded tile → self.x; the tile is freed."""
        p, x = self.passes, self.x
        a = self.temp("a", n)
        if self.job.halves:
            yield from p.square(a, x)
            yield self.stage.free(0)
        elif self.stored == self.work:
            yield from p("abs", a, x)
            yield self.stage.free(0)
        else:
            narrow = self.stage.temp("narrow", (n,), self.stored, self.room)
            yield from p("abs", narrow, x)
            yield self.stage.free(0)
            yield from p("conv", a, narrow)
        if self.job.p == 0:
            zero, one = self.temp("zero", n), self.temp("one", n)
            yield from p("muls", zero, a, scalar=0.0)
            yield from p("adds", one, zero, scalar=1.0)
            yield from p.select(_where_not, "ne", a, a, zero, one)
        elif self.job.p == 2 and not self.job.halves:
            yield from p.square(a, a)
        elif self.job.p > 2 and not self.job.extreme:
            power = self.temp("power", n)
            yield from p("mul", power, a, a)
            for _ in range(int(self.job.p) - 2):
                yield from p("mul", power, power, a)
            a = power
        self.x = a

    def rows(self, lines: range) -> Iterator[Instr]:
        """Several whole rows a tile."""
        m, length = self.tiling["rows"], self.job.length
        for i in self.k.loop(-(-len(lines) // m)):
            first = lines.start + i * m
            count = min(m, lines.stop - first)
            yield from self._load(first, 0, 0, count * length)
            yield from self.terms(count * length)
            total = self._totals(count)
            for r in self.k.loop(count):
                row = self.x[r * length : (r + 1) * length]
                yield from self.passes.sum(total[r : r + 1], row, self.partial, "c" + self.job.verb)
            yield from self.finish(total, first)

    def runs(self, lines: range) -> Iterator[Instr]:
        """One result at a time, run after run, piece after piece."""
        job, piece, p = self.job, self.tiling["piece"], self.passes
        per = -(-job.length // piece)
        count = prod(job.runs) * per
        alike = job.length % piece == 0 or not job.runs
        for line in self.k.loop(len(lines)):
            total, more = self._totals(1), self.more.region((1,), F32)
            yield from p("dup", total, scalar=self.start)
            for i in self.k.loop(count) if alike else range(count):
                run, at = divmod(i, per)
                n = min(piece, job.length - at * piece)
                yield from self._load(lines.start + line, run, at * piece, n)
                yield from self.terms(n)
                yield from p.sum(more, self.x, self.partial, "c" + job.verb)
                yield from p(job.verb, total, total, more)
            yield from self.finish(total, lines.start + line)

    def columns(self, lines: range, columns: range) -> Iterator[Instr]:
        """Rows of columns added onto one another."""
        piece, p = self.tiling["piece"], self.passes
        tiles = -(-len(columns) // piece)
        for line in self.k.loop(len(lines)):
            for at in self.k.loop(tiles):
                start = columns.start + at * piece
                n = min(piece, columns.stop - start)
                total = self._totals(n, self.work if self.job.extreme else F32)
                yield from p("dup", total, scalar=self.start)
                for run in self.k.loop(prod(self.job.runs)):
                    yield from self._load(lines.start + line, run, start, n)
                    yield from self.terms(n)
                    yield from p(self.job.verb, total, total, self.x)
                yield from self.finish(total, (lines.start + line) * self.job.length + start)

    def _totals(self, n: int, dtype: np.dtype = F32) -> Region:
        room = self.tiling["piece"] if self.job.columns else self.tiling["rows"]
        return self.stage.temp("totals", (n,), dtype, room)

    def finish(self, total: Region, first: int) -> Iterator[Instr]:
        """Root and floor of the sums; stored from result `first` on."""
        p, n = self.passes, total.shape[0]
        if self.job.halves:
            yield from p("muls", total, total, scalar=0.5)
        else:
            if self.job.p == 2:
                yield from p("sqrt", total, total)
            elif self.job.p > 2 and not self.job.extreme:
                yield from p("ln", total, total)
                yield from p("muls", total, total, scalar=1 / self.job.p)
                yield from p("exp", total, total)
            yield from p("maxs", total, total, scalar=self.job.epsilon)
        operand = len(self.args.inputs)
        room = self.tiling["piece"] if self.job.columns else self.tiling["rows"]
        out = yield from self.stage.out(operand, (n,), self.stored, room)
        yield from p("copy" if self.stored == total.dtype else "conv", out, total)
        size = prod(self.args.outputs[0].shape)
        whole = Region.dense(GM, operand, 0, (size,), self.stored)
        yield from self.stage.store(whole[first : first + n], out)


def _where_not(x: np.ndarray, zero: np.ndarray, one: np.ndarray) -> np.ndarray:
    """One where x is not zero."""
    return np.where(x != zero, one, zero)
