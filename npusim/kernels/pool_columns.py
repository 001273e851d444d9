"""MaxPool and AveragePool as CANN's static schedule (pooling2d_schedule) runs them.

A tile of output positions of one slice (n, c1): its lines go to L1, the columns of its windows
through load3d into UB, a sub-tile at a time, each asked for before the vector unit works on the one
before, where half of L1 and UB is enough for both. Sums are in fp16: one vadd a tap over all
fractals of the sub-tile, each after the one before. Maxima go through the taps of half a fractal in
one vmax, one repeat a tap, onto a destination that stays. Then a product with 1 / taps (means) and
a copy to the layout of the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.bands import reach, window_of
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.rows import F16, padded
from npusim.kernels.window_counts import counts, runs
from npusim.ops.window import Window
from npusim.program import effects
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

C0 = 16
FRACTAL = C0 * C0 * 2  #: bytes of 16 positions of 16 channels
MOST_TAPS = 255  #: repeats of one load3d
#: Cycles a repeat of a vmax whose destination stays. Source: fit, MaxPool of 10 to 25 taps on the
#: Ascend 310 (Ascend/workload_analysis, vec_ratio).
STAYING = 1.65


@dataclass(frozen=True)
class Job:
    """A launch: images, blocks of channels, window, kind."""

    batch: int
    blocks: int
    window: Window
    mean: bool
    include_pad: bool

    @staticmethod
    def of(args: KernelArgs) -> Job:
        """From the launch's arguments."""
        n, c1 = args.operands[0].storage_shape[:2]
        window = window_of(args, tuple(args.attr("kernel_shape")))
        mean = args.op_type == "AveragePool"
        return Job(n, c1, window, mean, bool(args.get("count_include_pad", 0)))


@dataclass(frozen=True)
class Tile:
    """Output positions [first, first + count) of a slice, and the lines of x that they see."""

    first: int
    count: int
    line: int
    lines: int
    top: int


@lru_cache(maxsize=256)
def _tiles(window: Window, positions: int) -> tuple[Tile, ...]:
    """A slice in tiles of so many positions."""
    total, wide = window.out[0] * window.out[1], window.out[1]
    found = []
    for first in range(0, total, positions):
        count = min(positions, total - first)
        r0, r1 = first // wide, (first + count - 1) // wide
        low = r0 * window.strides[0] - window.begin[0]
        high = low + reach(window, 0, r1 - r0 + 1)
        line = min(max(0, low), window.size[0] - 1)
        lines = max(1, min(high, window.size[0]) - line)
        found.append(Tile(first, count, line, lines, low))
    return tuple(found)


def _tiling(job: Job, chip: ChipSpec, slots: int) -> tuple[int, int]:
    """(positions a tile, fractals a sub-tile) as CANN's tiling has them; (0, 0) when none fits.

    First rows of outputs that fill whole fractals, the largest sub-tile first; else as many rows as
    fit with their columns, if they fit for all blocks of channels at once, or for fewer.
    """
    w, room = job.window, chip.core.ub.size // slots
    lines = chip.core.l1.size // slots // (w.size[1] * C0 * 2)
    total = w.out[0] * w.out[1]
    best = (0, 0)
    whole = padded(total) // C0
    if w.out[0] < C0 and w.size[0] <= lines and whole * FRACTAL * (w.taps + 4) <= room:
        return total, whole
    for step in range(1, w.out[0] + 1):
        if step * w.out[1] % C0 or reach(w, 0, step) > lines:
            continue
        fractals = step * w.out[1] // C0
        results = fractals * FRACTAL * 4
        for sub in range(fractals, max(1, best[1]) - 1, -1):
            if fractals % sub == 0 and sub * w.taps * FRACTAL + results < room:
                best = (step * w.out[1], sub)
                break
    if best[0]:
        return best
    for deep in range(job.blocks, 0, -1):
        most = room // (2 * C0 * deep * (w.taps + 3)) // C0 * C0
        rows = min(most // w.out[1], w.out[0])
        while rows and reach(w, 0, rows) > lines // deep:
            rows -= 1
        if rows and deep * w.taps <= MOST_TAPS:
            return rows * w.out[1], padded(rows * w.out[1]) // C0
    return 0, 0


def _part(job: Job, chip: ChipSpec) -> tuple[int, int]:
    """A row of outputs a tile, in double-buffered sub-tiles as large as fit; (0, 0): none does."""
    w, room = job.window, chip.core.ub.size
    wide = padded(w.out[1]) // C0
    sub = (room // FRACTAL - 3 * wide) // (2 * w.taps)
    fits = 2 * reach(w, 0, 1) * w.size[1] * C0 * 2 <= chip.core.l1.size
    return (w.out[1], min(sub, wide)) if sub > 0 and fits else (0, 0)


@kernel("PoolColumns")
class PoolColumns(TileKernel):
    """Windowed pools of fp16 images in NC1HWC0 on cores with img2col into UB."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        if args.op_type not in ("MaxPool", "AveragePool") or len(args.outputs) > 1:
            return f"no program for {args.op_type} with {len(args.outputs)} outputs"
        spec = args.operands[0]
        if spec.layout is not Layout.NC1HWC0 or spec.dtype is not DType.FLOAT16:
            return f"takes float16 in NC1HWC0, not {spec.dtype.value} in {spec.layout.value}"
        if chip.cores.split:
            return "img2col into UB, which split cores do not have"
        window = Job.of(args).window
        if window.taps > MOST_TAPS:
            return f"windows of more than {MOST_TAPS} taps"
        if min(counts(window, 0, False) + counts(window, 1, False)) == 0:
            return "windows that see only padding"
        return ""

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Double-buffered where a tile fits in half of the buffers; else once; else in part."""
        job = Job.of(args)
        by_batch = job.batch >= min(chip.vector_cores(), job.blocks)
        units = job.batch if by_batch else job.blocks
        per = -(-units // chip.vector_cores())
        for slots in (2, 1, 0):
            positions, sub = _tiling(job, chip, slots) if slots else _part(job, chip)
            if positions:
                yield {
                    "positions": positions,
                    "sub": sub,
                    "slots": slots or 2,
                    "per": per,
                    "by_batch": int(by_batch),
                    "blocks": -(-units // per),
                }
                return

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling; a figure for comparison with other kernels."""
        job = Job.of(args)
        slices = job.batch * job.blocks / tiling["blocks"]
        return slices * job.window.out[0] * job.window.out[1] / C0 * job.window.taps * 5

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        job, blocks = Job.of(args), tiling["blocks"]
        x, y = args.operands[0], args.operands[len(args.inputs)]
        tiles = _tiles(job.window, tiling["positions"])
        line = job.window.size[1] * C0 * 2
        read = sum(t.lines for t in tiles) * line * job.batch * job.blocks
        touched = {n for t in tiles for n in range(t.line, t.line + t.lines)}
        unique = min(x.nbytes, len(touched) * line * job.batch * job.blocks)
        traffic = {0: Traffic(unique, read), len(args.inputs): Traffic(y.nbytes, y.nbytes)}
        keys = [len(_slices(job, tiling, b)) for b in range(blocks)]
        return Plan(tiling, blocks, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        job = Job.of(args)
        run = _Run(k, args, job, tiling)
        mine = _slices(job, tiling, block)
        tiles = _tiles(job.window, tiling["positions"])
        yield from run.begin()
        alike = [len(list(g)) for _, g in groupby(tiles, lambda t: (t.count, t.lines))]
        for i in k.loop(len(mine)):
            before = 0
            for n in alike:
                for j in k.loop(n):
                    later, then = divmod(before + j + 1, len(tiles))
                    more = i + later < len(mine)
                    following = (mine[i + later], tiles[then]) if more else None
                    yield from run.tile(mine[i], tiles[before + j], following)
                before += n


def _slices(job: Job, tiling: Tiling, block: int) -> list[int]:
    """A block's slices: all of some images, or some blocks of channels of all images."""
    low, high = block * tiling["per"], (block + 1) * tiling["per"]
    if tiling["by_batch"]:
        return list(range(low * job.blocks, min(high, job.batch) * job.blocks))
    channels = range(low, min(high, job.blocks))
    return [n * job.blocks + c for n in range(job.batch) for c in channels]


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, job: Job, tiling: Tiling) -> None:
        self.k, self.job, self.w = k, job, job.window
        w, slots, self._sub = job.window, tiling["slots"], tiling["sub"]
        slices = job.batch * job.blocks
        size, out = w.size, w.out
        self._x = Region.dense(GM, 0, 0, (slices, *size, C0), F16)
        self._y = Region.dense(GM, len(args.inputs), 0, (slices, out[0] * out[1], C0), F16)
        most = max(t.lines for t in _tiles(w, tiling["positions"]))
        self._l1 = k.queue("L1", most * size[1] * C0 * 2, slots, Pipe.MTE2, Pipe.MTE1)
        columns = self._sub * w.taps * FRACTAL
        self._columns = k.queue("UB", columns, slots, Pipe.MTE1, Pipe.V)
        fractals = -(-tiling["positions"] // C0)
        self._ahead = False
        self._sum = k.alloc("UB", fractals * FRACTAL)
        self._out = k.queue("UB", fractals * FRACTAL, slots, Pipe.V, Pipe.MTE3)
        (kh, kw), (sh, sw), (dh, dw) = w.kernel, w.strides, w.dilations
        (top, left), (height, width) = w.begin, w.size
        self._window = effects.Window(kh, kw, sh, sw, dh, dw, top, left, height, width, out[1])
        mte1 = k.chip.core.mte1
        self._per = max(mte1.load3d_cycles, FRACTAL / (mte1.ub_rate or mte1.l0b_rate) / sw)
        self._counts = [counts(w, a, job.include_pad) for a in (0, 1)]
        even = all(len(set(c)) == 1 for c in self._counts)
        one = job.mean and not even and len(_tiles(w, tiling["positions"])) == 1
        self._factors = k.alloc("UB", fractals * FRACTAL) if one else None

    def begin(self) -> Iterator[Instr]:
        """1 / taps of every position, once for all slices that are one tile and not even."""
        if self._factors is None:
            return
        factors = self._factors.region((*self.w.out, C0), F16)
        for r0, r1, high in runs(self._counts[0]):
            for c0, c1, broad in runs(self._counts[1]):
                part = factors[r0:r1, c0:c1]
                yield self.k.vec("dup", part, scalar=1.0 / (high * broad))

    def tile(self, s: int, t: Tile, following: tuple[int, Tile] | None) -> Iterator[Instr]:
        """The outputs of a tile of a slice; the `following` tile's lines are asked for early."""
        k = self.k
        if not self._ahead:
            yield from self._load(s, t)
        ahead = self._ahead = following is not None and len(self._l1.slots) > 1
        if following is not None and ahead:
            yield from self._load(*following)
        yield self._l1.deque()
        lines = self._l1.front.region((1, t.lines, self.w.size[1], C0), F16)
        fractals = -(-t.count // C0)
        total = self._sum.region((fractals, C0 * C0), F16)
        firsts = list(range(0, fractals, self._sub))
        early = len(self._columns.slots) - 1
        for i, f in enumerate(firsts):
            for g in firsts[i : i + 1 + early] if i == 0 else firsts[i + early : i + early + 1]:
                yield from self._gather(t, lines, g, min(self._sub, fractals - g))
                if g == firsts[-1]:
                    yield self._l1.free()
            yield self._columns.deque()
            n = min(self._sub, fractals - f)
            columns = self._columns.front.region((n, self.w.taps, C0 * C0), F16)
            yield from (self._add if self.job.mean else self._max)(total[f : f + n], columns)
            yield self._columns.free()
        result = self._sum.region((t.count, C0), F16)
        if self._factors is not None:
            yield k.vec("mul", result, result, self._factors.region(result.shape, F16))
        elif self.job.mean:
            yield from self._divide(result, t.first)
        room = yield from self._out.alloc()
        out = room.region((t.count, C0), F16)
        yield k.vec("adds", out, result, scalar=0.0)
        yield self._out.enque()
        yield self._out.deque()
        yield k.store(self._y[s, t.first : t.first + t.count], out)
        yield self._out.free()

    def _load(self, s: int, t: Tile) -> Iterator[Instr]:
        """The lines that a tile sees, to L1."""
        slot = yield from self._l1.alloc()
        lines = slot.region((1, t.lines, self.w.size[1], C0), F16)
        yield self.k.load(lines, self._x[s : s + 1, t.line : t.line + t.lines])
        yield self._l1.enque()

    def _gather(self, t: Tile, lines: Region, f: int, n: int) -> Iterator[Instr]:
        """What the windows of `n` fractals see, to UB: (fractals, taps, 16, 16)."""
        k, taps = self.k, self.w.taps
        slot = yield from self._columns.alloc()
        columns = slot.region((n, taps, C0, C0), F16)
        first, count = t.first + f * C0, min(n * C0, t.count - f * C0)
        fill = 0.0 if self.job.mean else -np.inf
        yield k.load3d(
            columns,
            lines,
            self._window,
            first,
            count,
            0,
            t.line,
            per_fractal=self._per,
            padding=fill,
        )
        yield self._columns.enque()

    def _add(self, total: Region, columns: Region) -> Iterator[Instr]:
        """The sums of all taps."""
        yield self.k.vec("dup", total, scalar=0.0)
        for tap in range(self.w.taps):
            yield self.k.vec("add", total, total, columns[:, tap])

    def _max(self, total: Region, columns: Region) -> Iterator[Instr]:
        """The maxima of all taps, a fractal at a time."""
        yield self.k.vec("dup", total, scalar=-np.inf)
        for f in range(total.shape[0]):
            dst, seen = total[f], columns[f]
            yield self.k.vec_by("max", _largest, seen, dst, dst, seen, per_repeat=STAYING)

    def _divide(self, result: Region, first: int) -> Iterator[Instr]:
        """Sums by the taps that count: one product a rectangle of equal counts."""
        wide, at = self.w.out[1], 0
        while at < result.shape[0]:
            row, column = divmod(first + at, wide)
            if column or result.shape[0] - at < wide:  # part of a row
                n, rows = min(wide - column, result.shape[0] - at), 1
            else:
                rows = (result.shape[0] - at) // wide
                n = rows * wide
            across = n if rows == 1 else wide
            part = Region.dense("UB", -1, result[at].offset, (rows, across, C0), F16)
            for r0, r1, high in runs(self._counts[0][row : row + rows]):
                for c0, c1, broad in runs(self._counts[1][column : column + across]):
                    piece = part[r0:r1, c0:c1]
                    yield self.k.vec("muls", piece, piece, scalar=1.0 / (high * broad))
            at += n


def _largest(before: np.ndarray, seen: np.ndarray) -> np.ndarray:
    return np.maximum(before, seen.max(axis=0))
