"""Pool: MaxPool and AveragePool (bands of rows), GlobalMaxPool and GlobalAveragePool, NC1HWC0.

Maxima stay in the storage type; means are summed in fp32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.kernels import pool_global
from npusim.kernels.bands import (
    UB_SHARE,
    Span,
    fill_padding,
    inside,
    reach,
    refuse_image,
    row_cycles,
    spans,
    tap,
    window_of,
)
from npusim.kernels.grid import deal
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.window_counts import counts, runs
from npusim.ops.window import Window
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

_WINDOWED = ("MaxPool", "AveragePool")
_GLOBAL = ("GlobalMaxPool", "GlobalAveragePool")
_F32 = np.dtype(np.float32)


@dataclass(frozen=True)
class _Shape:
    """A windowed launch: slices, window, types."""

    slices: int
    window: Window
    dtype: np.dtype
    mean: bool

    @staticmethod
    def of(args: KernelArgs) -> _Shape:
        """From the launch's arguments."""
        spec = args.operands[0]
        n, c1 = spec.storage_shape[:2]
        window = window_of(args, tuple(args.attr("kernel_shape")))
        return _Shape(n * c1, window, spec.dtype.np, args.op_type == "AveragePool")

    @property
    def wide(self) -> bool:
        """True when the tile is converted to fp32 to compute on it."""
        return self.dtype.itemsize == 2 and (self.mean or self.dtype != np.float16)

    def sizes(self, batch: int, rows: int, cols: int) -> tuple[int, int]:
        """Elements of the input and the output tile."""
        need = reach(self.window, 0, rows) * reach(self.window, 1, cols)
        return batch * need * 16, batch * rows * cols * 16

    def ub_bytes(self, batch: int, rows: int, cols: int) -> int:
        """UB that a tile takes: double-buffered input and output, fp32 copies."""
        before, after = self.sizes(batch, rows, cols)
        return 2 * self.dtype.itemsize * (before + after) + 4 * self.wide * (before + after)


def _largest(fits: Any, high: int) -> int:
    """The largest n in 1 … high with fits(n), by bisection; 0 when not even 1 fits."""
    low = 0
    while low < high:
        mid = (low + high + 1) // 2
        low, high = (mid, high) if fits(mid) else (low, mid - 1)
    return low


def _tilings(s: _Shape, chip: ChipSpec) -> Iterator[Tiling]:
    budget = int(chip.core.ub.size * UB_SHARE)
    ho, wo = s.window.out
    cores = chip.vector_cores()
    for parts in sorted({1, 2, 3, 4, 8, 16, -(-cores // s.slices)}):
        if parts > min(ho, cores):
            continue
        top = -(-ho // parts)
        rows = _largest(lambda n: s.ub_bytes(1, n, wo) <= budget, top)
        cols = wo if rows else _largest(lambda n: s.ub_bytes(1, 1, n) <= budget, wo)
        if not cols:
            return
        rows = max(1, rows)
        bands = -(-ho // rows)
        rows = -(-ho // bands)
        groups = min(s.slices, cores // parts)
        batch = 1
        if rows == ho and cols == wo:
            mine = -(-s.slices // groups)
            batch = min(mine, _largest(lambda n: s.ub_bytes(n, ho, wo) <= budget, mine))
            batch = -(-mine // -(-mine // batch))
        yield {"batch": batch, "rows": rows, "cols": cols, "parts": parts, "groups": groups}


def _bands(s: _Shape, t: Tiling, part: int) -> list[tuple[Span, Span]]:
    """The (rows, cols) spans of one part."""
    rows = spans(s.window, 0, t["rows"])
    share = deal([len(rows)], t["parts"], part)[0]
    cols = spans(s.window, 1, t["cols"])
    return [(h, w) for h in rows[share.start : share.start + share.count] for w in cols]


def _estimate(s: _Shape, chip: ChipSpec, t: Tiling) -> float:
    costs, size = chip.core.vector.costs, s.dtype.itemsize
    wide = 4 if s.wide else size
    binary = (costs["binary"].b16 if wide == 2 else costs["binary"].b32) or 0.0
    conv = costs["conv"].b32 or 0.0
    blocks = t["parts"] * t["groups"]
    bands, ho, wo = -(-s.window.out[0] // t["rows"]), t["rows"], t["cols"]
    tiles = -(-s.slices // (t["groups"] * t["batch"])) * -(-bands // t["parts"])
    tiles *= -(-s.window.out[1] // wo)
    before, after = s.sizes(t["batch"], ho, wo)
    rate = min(chip.core.mte2.ub_rate, chip.l2_rate / blocks)
    load = chip.core.mte2.head + before * size / rate
    store = chip.core.mte3.head + after * size / min(chip.core.mte3.rate, chip.l2_rate / blocks)
    taps = s.window.taps + s.mean
    vector = taps * (t["batch"] * ho * row_cycles(chip, binary, s.window, wo, wide) + 25)
    vector += (before + after) / 64 * conv * s.wide
    steady = tiles * max(load, vector, store)
    return steady + load + store + blocks * chip.cycles(chip.scheduler.per_block)


def _plan(s: _Shape, args: KernelArgs, t: Tiling) -> Plan:
    keys: list[object] = []
    moved = 0
    row, size = 16 * s.dtype.itemsize, len(args.inputs)
    for part in range(t["parts"]):
        bands = _bands(s, t, part)
        key = tuple((h.count, h.before, h.valid, w.valid) for h, w in bands)
        moved += sum(h.valid * w.valid for h, w in bands) * row * s.slices
        for group in range(t["groups"]):
            keys.append((key, deal([s.slices], t["groups"], group)[0].count))
    out = args.outputs[0].nbytes
    traffic = {0: Traffic(min(moved, args.operands[0].nbytes), moved), size: Traffic(out, out)}
    return Plan(t, len(keys), traffic, group_blocks(keys))


def _image(args: KernelArgs, index: int) -> Region:
    """An operand as (slices, H, W, C0)."""
    spec = args.operands[index]
    n, c1, *rest = spec.storage_shape
    return Region.dense(GM, index, 0, (n * c1, *rest), spec.dtype.np)


def _body(k: Kernel, s: _Shape, args: KernelArgs, t: Tiling, block: int) -> Iterator[Instr]:
    part, group = divmod(block, t["groups"])
    share = deal([s.slices], t["groups"], group)[0]
    bands = _bands(s, t, part)
    tiles = _Tiles(k, s, args, t)
    whole, rest = divmod(share.count, t["batch"])
    for i in k.loop(whole):
        for h, w in bands:
            yield from tiles.run(share.start + i * t["batch"], t["batch"], h, w)
    for h, w in bands if rest else ():
        yield from tiles.run(share.start + whole * t["batch"], rest, h, w)


class _Tiles:
    """Queues and scratch of a windowed pool, and one tile's way through them."""

    def __init__(self, k: Kernel, s: _Shape, args: KernelArgs, t: Tiling) -> None:
        before, after = s.sizes(t["batch"], t["rows"], t["cols"])
        size = s.dtype.itemsize
        self._k, self._s = k, s
        self._x, self._y = _image(args, 0), _image(args, len(args.inputs))
        self._in = k.queue("UB", before * size, 2, Pipe.MTE2, Pipe.V)
        self._out = k.queue("UB", after * size, 2, Pipe.V, Pipe.MTE3)
        self._wide = k.alloc("UB", before * 4) if s.wide else None
        self._sum = k.alloc("UB", after * 4) if s.wide else None
        self._counts = [counts(s.window, a, bool(args.get("count_include_pad", 0))) for a in (0, 1)]

    def run(self, first: int, batch: int, h: Span, w: Span) -> Iterator[Instr]:
        """One tile: `batch` slices from `first`, the outputs of spans h × w."""
        k, s = self._k, self._s
        slot = yield from self._in.alloc()
        x = slot.region((batch, h.need, w.need, 16), s.dtype)
        src = self._x[first : first + batch, h.first : h.first + h.valid]
        yield k.load(inside(x, h, w), src[:, :, w.first : w.first + w.valid])
        yield self._in.enque()
        yield self._in.deque()
        yield from fill_padding(k, x, h, w, 0.0 if s.mean else -np.inf)
        room = yield from self._out.alloc()
        y = room.region((batch, h.count, w.count, 16), s.dtype)
        total = y
        if self._wide is not None and self._sum is not None:
            wide = self._wide.region(x.shape, _F32)
            yield k.vec("conv", wide, x)
            x, total = wide, self._sum.region(y.shape, _F32)
        yield from self._fold(total, x)
        if s.mean:
            yield from self._divide(total, h, w)
        if total is not y:
            yield k.vec("conv", y, total)
        yield self._in.free()
        yield self._out.enque()
        yield self._out.deque()
        target = self._y[first : first + batch, h.start : h.start + h.count]
        yield k.store(target[:, :, w.start : w.start + w.count], y)
        yield self._out.free()

    def _fold(self, total: Region, x: Region) -> Iterator[Instr]:
        """total = the fold of all taps."""
        op, window = "add" if self._s.mean else "max", self._s.window
        _, rows, cols, _ = total.shape
        views = [tap(x, window, i, j, rows, cols) for i, j in window.positions()]
        if len(views) == 1:
            yield self._k.vec("copy", total, views[0])
            return
        yield self._k.vec(op, total, views[0], views[1])
        for v in views[2:]:
            yield self._k.vec(op, total, total, v)

    def _divide(self, total: Region, h: Span, w: Span) -> Iterator[Instr]:
        """total /= taps that count, one instruction per rectangle of equal counts."""
        for r0, r1, rows in runs(self._counts[0][h.start : h.start + h.count]):
            for c0, c1, cols in runs(self._counts[1][w.start : w.start + w.count]):
                part = total[:, r0:r1, c0:c1]
                yield self._k.vec("muls", part, part, scalar=1.0 / (rows * cols))


MOST_ROWS = 1 << 16  #: of a result: the windows that see padding are counted one by one


@kernel("Pool")
class Pool(TileKernel):
    """Windowed and global pooling on the vector unit."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Images in NC1HWC0 of fp16, fp32 (bf16 where the chip has it); one output."""
        if args.op_type not in _WINDOWED + _GLOBAL:
            return f"operator {args.op_type}"
        if len(args.outputs) > 1:
            return "MaxPool with indices"
        reason = refuse_image(args.operands[0], chip) or refuse_image(args.outputs[0], chip)
        if reason or args.op_type in _GLOBAL:
            return reason
        window = _Shape.of(args).window
        if max(window.out) > MOST_ROWS:
            return f"more than {MOST_ROWS} rows or columns"
        if min(counts(window, 0, False) + counts(window, 1, False)) == 0:
            return "windows that see only padding"
        return ""

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Bands of rows (and columns), slices together where whole ones fit."""
        if args.op_type in _GLOBAL:
            return pool_global.tilings(args, chip)
        return _tilings(_Shape.of(args), chip)

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """Cycles of the busiest block."""
        if args.op_type in _GLOBAL:
            return pool_global.estimate(args, chip, tiling)
        return _estimate(_Shape.of(args), chip, tiling)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Parts × groups of slices."""
        if args.op_type in _GLOBAL:
            return pool_global.plan(args, chip, tiling)
        return _plan(_Shape.of(args), args, tiling)

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """The block's slices and bands."""
        if args.op_type in _GLOBAL:
            return pool_global.body(k, args, tiling, block)
        return _body(k, _Shape.of(args), args, tiling, block)
