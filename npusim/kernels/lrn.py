"""LRN: local response normalisation across channels, ND (N, C, spatial …), fp32 inside.

y = x · (bias + alpha / size · Σ x²)^-beta over `size` neighbouring channels. A tile is a run of
channels, with the neighbours on both sides, by a run of positions: channels are rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.grid import Share, deal
from npusim.kernels.lang import Kernel, TileKernel
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

UB_SHARE = 0.75  #: of UB that tiles may use
RUN = 64  #: positions of a row are a multiple of this, where there are as many
_F32 = np.dtype(np.float32)


@dataclass(frozen=True)
class _Shape:
    """A launch: images, channels, positions, parameters."""

    n: int
    c: int
    positions: int
    dtype: np.dtype
    size: int
    alpha: float
    beta: float
    bias: float

    @staticmethod
    @lru_cache(maxsize=64)
    def of(args: KernelArgs) -> _Shape:
        """From the launch's arguments."""
        spec, given = args.operands[0], dict(args.attrs)
        n, c, *rest = spec.shape
        parameters = [
            float(given.get(k, d)) for k, d in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
        ]
        return _Shape(n, c, prod(rest), spec.dtype.np, int(given["size"]), *parameters)

    @property
    def before(self) -> int:
        """Neighbours before a channel; the rest come after it."""
        return (self.size - 1) // 2

    def row_bytes(self, run: int) -> int:
        """UB per channel of a tile: in and out twice, fp32 squares and sums."""
        return -(-run // 16) * 16 * (4 * self.dtype.itemsize + 12)

    def runs(self, t: Tiling) -> list[tuple[int, int]]:
        """(first, count) of each run of positions."""
        step = t["positions"]
        return [(p, min(step, self.positions - p)) for p in range(0, self.positions, step)]


def _channel_runs(s: _Shape, t: Tiling) -> list[tuple[int, int, int, int]]:
    """(first, count, first read, count read) of each run of channels."""
    out = []
    for first in range(0, s.c, t["channels"]):
        count = min(t["channels"], s.c - first)
        low = max(0, first - s.before)
        high = min(s.c, first + count + s.size - 1 - s.before)
        out.append((first, count, low, high - low))
    return out


def _units(s: _Shape, t: Tiling, block: int) -> tuple[Share, list[tuple[int, int]]]:
    """A block's images and runs of positions."""
    image, part = divmod(block, t["parts"])
    runs = s.runs(t)
    share = deal([len(runs)], t["parts"], part)[0]
    return deal([s.n], t["images"], image)[0], runs[share.start : share.start + share.count]


@kernel("LRN")
class Lrn(TileKernel):
    """Local response normalisation on the vector unit."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """fp16 and fp32 in ND."""
        spec = args.operands[0]
        if args.op_type != "LRN" or len(spec.shape) < 3:
            return f"operator {args.op_type} of rank {len(spec.shape)}"
        if spec.layout is not Layout.ND or args.outputs[0].layout is not Layout.ND:
            return f"layout {spec.layout.value}: ND only"
        return "" if spec.dtype in (DType.FLOAT16, DType.FLOAT32) else spec.dtype.value

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Runs of positions over the cores; all channels in a tile where they fit."""
        s = _Shape.of(args)
        budget, cores = int(chip.core.ub.size * UB_SHARE), chip.vector_cores()
        for parts in sorted({1, 2, 4, max(1, cores // min(s.n, cores)), cores}):
            if parts > cores:
                continue
            images = min(s.n, cores // parts)
            most = -(-s.positions // parts)
            for channels in (s.c, -(-s.c // 2), -(-s.c // 4), 32, 8, 1):
                rows = min(s.c, channels + s.size - 1)
                run = min(most, budget // s.row_bytes(16) // max(1, rows) * 16)
                if run < min(most, RUN) and channels > 1:
                    continue
                if not run:
                    return
                if run > RUN and run < s.positions:
                    run = run // RUN * RUN
                runs = -(-s.positions // run)
                yield {
                    "channels": min(s.c, channels),
                    "positions": run,
                    "images": images,
                    "parts": min(parts, runs),
                }
                break

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """Cycles of the busiest block: about size + 7 fp32 passes."""
        s = _Shape.of(args)
        blocks = tiling["images"] * tiling["parts"]
        mine = -(-s.n // tiling["images"]) * -(-len(s.runs(tiling)) // tiling["parts"])
        rows = -(-s.c // tiling["channels"]) * min(s.c, tiling["channels"] + s.size - 1)
        elements = mine * rows * tiling["positions"]
        per = chip.core.vector.costs["binary"].b32 or 0.0
        moved = elements * s.dtype.itemsize / min(chip.core.mte3.rate, chip.l2_rate / blocks)
        vector = (s.size + 7) * elements / 64 * per
        return max(moved, vector) + blocks * chip.cycles(chip.scheduler.per_block)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Images × runs of positions."""
        s = _Shape.of(args)
        rows = sum(read for *_, read in _channel_runs(s, tiling))
        moved = rows * s.n * s.positions * s.dtype.itemsize
        keys = []
        for block in range(tiling["images"] * tiling["parts"]):
            images, runs = _units(s, tiling, block)
            keys.append((images.count, tuple(n for _, n in runs)))
        nbytes = args.operands[0].nbytes
        traffic = {0: Traffic(nbytes, moved), len(args.inputs): Traffic(nbytes, nbytes)}
        return Plan(tiling, len(keys), traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """The block's images, runs of positions, runs of channels."""
        s = _Shape.of(args)
        images, runs = _units(s, tiling, block)
        tiles = _Tiles(k, s, tiling, len(args.inputs))
        channels, step = _channel_runs(s, tiling), tiling["positions"]
        whole = sum(n == step for _, n in runs)  # all but perhaps the last
        for i in k.loop(images.count):
            for r in k.loop(whole):
                for group in channels:
                    yield from tiles.run(images.start + i, runs[r][0], step, group)
            for at, n in runs[whole:]:
                for group in channels:
                    yield from tiles.run(images.start + i, at, n, group)


class _Tiles:
    """Queues and scratch of an LRN."""

    def __init__(self, k: Kernel, s: _Shape, t: Tiling, output: int) -> None:
        self._k, self._s = k, s
        shape = (s.n, s.c, s.positions)
        self._x = Region.dense(GM, 0, 0, shape, s.dtype)
        self._y = Region.dense(GM, output, 0, shape, s.dtype)
        row = -(-t["positions"] // 16) * 16
        read = min(s.c, t["channels"] + s.size - 1)
        self._in = k.queue("UB", read * row * s.dtype.itemsize, 2, Pipe.MTE2, Pipe.V)
        self._out = k.queue("UB", read * row * s.dtype.itemsize, 2, Pipe.V, Pipe.MTE3)
        self._wide, self._square, self._sum = (k.alloc("UB", read * row * 4) for _ in range(3))

    def run(
        self, image: int, at: int, n: int, channels: tuple[int, int, int, int]
    ) -> Iterator[Instr]:
        """One tile."""
        k, s = self._k, self._s
        first, count, low, read = channels
        row = -(-n // 16) * 16
        slot = yield from self._in.alloc()
        x = slot.region((read, row), s.dtype)[:, :n]
        yield k.load(x, self._x[image, low : low + read, at : at + n])
        yield self._in.enque()
        yield self._in.deque()
        wide = x
        if s.dtype != _F32:
            wide = self._wide.region((read, row), _F32)[:, :n]
            yield k.vec("conv", wide, x)
        square = self._square.region((read, row), _F32)[:, :n]
        yield k.vec("mul", square, wide, wide)
        total = self._sum.region((count, row), _F32)[:, :n]
        yield from self._neighbours(total, square, first, low)
        yield from self._power(total)
        yield k.vec("mul", total, total, wide[first - low : first - low + count])
        yield self._in.free()
        room = yield from self._out.alloc()
        y = room.region((count, row), s.dtype)[:, :n]
        yield k.vec("copy" if s.dtype == _F32 else "conv", y, total)
        yield self._out.enque()
        yield self._out.deque()
        yield k.store(self._y[image, first : first + count, at : at + n], y)
        yield self._out.free()

    def _neighbours(self, total: Region, square: Region, first: int, low: int) -> Iterator[Instr]:
        """total[c] = Σ square[c - before … c - before + size - 1], of the channels that exist."""
        k, s = self._k, self._s
        count, read = total.shape[0], square.shape[0]
        yield k.vec("copy", total, square[first - low : first - low + count])
        for shift in range(-s.before, s.size - s.before):
            start = first - low + shift  # row of `square` that meets total[0]
            a, b = max(0, -start), min(count, read - start)
            if shift and a < b:
                yield k.vec("add", total[a:b], total[a:b], square[start + a : start + b])

    def _power(self, total: Region) -> Iterator[Instr]:
        """total = (bias + alpha / size · total) ^ -beta, by exp(-beta · ln)."""
        k, s = self._k, self._s
        yield k.vec("muls", total, total, scalar=s.alpha / s.size)
        yield k.vec("adds", total, total, scalar=s.bias)
        yield k.vec("ln", total, total)
        yield k.vec("muls", total, total, scalar=-s.beta)
        yield k.vec("exp", total, total)
