"""CumSum and CumProd: a row is carried along the axis, each step one vector instruction.

The tensor is (outer, length, inner). A tile holds a run of the axis; a step folds one row of all
its lanes onto the row before, and the last row is carried to the next tile. Half types are folded
in fp32. Rows of one or few elements are padded to 32 B blocks in UB: where that wastes much, a pass
turns the tensor first (`compiler/passes/cumulative.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.elementwise import unsupported_type
from npusim.kernels.estimate import pipeline_cycles, port_rate
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.rows import (
    PAD,
    UB_SHARE,
    Lanes,
    Strip,
    in_queue,
    lanes,
    largest,
    out_queue,
    padded,
)
from npusim.program.cost import dma_cap
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import Region

#: Operator → (vector instruction, what the first row is folded onto).
FOLDS = {"CumSum": ("add", 0), "CumProd": ("mul", 1)}


@dataclass(frozen=True)
class _Columns(Lanes):
    """Lanes that are columns, even of one element."""

    @property
    def is_rows(self) -> bool:
        return False


def _lanes(args: KernelArgs) -> _Columns:
    given = args.attr("axis")
    axis = int(given[0] if isinstance(given, tuple) else given)
    found = lanes(args.outputs[0].shape, axis)
    return _Columns(found.outer, found.length, found.inner)


def _work(args: KernelArgs) -> np.dtype:
    """The type that is folded in."""
    dtype = args.outputs[0].dtype
    return np.dtype(np.float32) if dtype.is_float else dtype.np


def _footprint(args: KernelArgs, tiling: Tiling) -> int:
    """UB bytes: two slots in and out, the carried row, and fp32 copies of half types."""
    lines = tiling["m"] * padded(tiling["i"])
    size, work = args.outputs[0].dtype.size, _work(args).itemsize
    copies = 0 if size == work else 2 * work
    return lines * (tiling["r"] * (4 * size + copies) + work)


def _cores(chip: ChipSpec) -> tuple[int, ...]:
    """Blocks to try: all cores, or fewer, which have wider rows."""
    return tuple(max(1, chip.vector_cores() // n) for n in (1, 2, 4))


def _tiles(args: KernelArgs, chip: ChipSpec, base: Tiling) -> Iterator[Tiling]:
    """Tiles of so many columns: whole lanes of as many rows of outer as fit, or pieces."""
    found, room = _lanes(args), int(chip.core.ub.size * UB_SHARE)
    outer = found.share(base, 0).size[0]

    def fits(m: int, r: int) -> bool:
        return _footprint(args, {**base, "m": m, "r": r}) <= room

    if not fits(1, 1):
        return
    if fits(1, found.length):
        most = largest(outer, 1, lambda n: fits(n, found.length))
        yield {"m": -(-outer // -(-outer // most)), "r": found.length, **base}
    for m in sorted({1, outer}):
        if fits(m, 1):
            most = largest(found.length, 1, partial(fits, m))
            yield {"m": m, "r": -(-found.length // -(-found.length // most)), **base}


@kernel("Cumulative")
class Cumulative(TileKernel):
    """CumSum, CumProd along attribute `axis` of ND tensors; `exclusive`, `reverse`.

    Tiling: tiles of m × r × i elements of (outer, length, inner); blocks are `parts` of outer
    times `columns` of inner.
    """

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Plain layouts, a known axis, types that the vector unit adds and multiplies."""
        if args.op_type not in FOLDS or args.epilogue:
            return f"no program for {args.op_type}"
        spec = args.outputs[0]
        if "axis" not in dict(args.attrs):
            return "an axis not known when compiling"
        if any(o is not None and o.layout is not Layout.ND for o in args.operands):
            return "a blocked layout"
        if spec.dtype is DType.BOOL or not spec.shape:
            return f"{spec.dtype.value} of shape {spec.shape}"
        return unsupported_type(spec.dtype, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Blocks, columns a tile, and whole lanes, or pieces of one lane or of all of a block."""
        found, seen = _lanes(args), set()
        for blocks in sorted({min(found.outer * -(-found.inner // PAD), n) for n in _cores(chip)}):
            parts = min(found.outer, blocks)
            columns = min(-(-found.inner // PAD), max(1, blocks // parts))
            base = {"parts": parts, "columns": columns}
            wide = found.share(base, 0).size[1]
            for i in sorted({min(n, wide) for n in (PAD, 4 * PAD, 16 * PAD)}):
                for tiling in _tiles(args, chip, {**base, "i": i}):
                    if (key := tuple(tiling.values())) not in seen:
                        seen.add(key)
                        yield tiling

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """Passes of the vector unit, and the heads of its steps, which wait for each other."""
        found, core, m, i = _lanes(args), chip.core, tiling["m"], tiling["i"]
        outer, inner = found.share(tiling, found.blocks(tiling) - 1).size
        lines = -(-outer // m) * -(-inner // i)
        row = -(-i * _work(args).itemsize // core.vector.repeat_bytes)
        each = core.vector.costs["binary"].b32 or 1.0
        steps = lines * found.length * (core.vector.head + core.vector.tail + m * row * each)
        nbytes, bursts = outer * inner * found.length * args.outputs[0].dtype.size, 1
        if i < found.inner or i % PAD:
            bursts = outer * -(-inner // i) * found.length
        blocks = found.blocks(tiling)
        read, written = (
            nbytes / min(port_rate(chip, rate, blocks), dma_cap(nbytes, bursts, rate, per, least))
            for rate, per, least in (
                (core.mte2.ub_rate, core.mte2.burst, core.mte2.min_burst),
                (core.mte3.rate, core.mte3.burst, core.mte3.min_burst),
            )
        )
        tiles = lines * -(-found.length // tiling["r"])
        shared = 2 * args.outputs[0].nbytes / chip.hbm_rate
        launched = blocks * chip.cycles(chip.scheduler.per_block)
        return pipeline_cycles(chip, steps, read, written, shared, tiles) + launched

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Every element read once and written once."""
        found, nbytes = _lanes(args), args.outputs[0].nbytes
        blocks = found.blocks(tiling)
        once = Traffic(nbytes, nbytes)
        keys = [found.share(tiling, b).size for b in range(blocks)]
        return Plan(tiling, blocks, {0: once, len(args.inputs): once}, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """Lanes by lanes, the tiles of each in the order of the scan."""
        run = _Run(k, args, tiling, block)
        outer, inner, runs = run.strip.counts()
        for o in range(outer):
            for i in range(inner):
                yield from run.start(o, i)
                for r in range(runs):
                    yield from run.tile(o, i, runs - 1 - r if run.reverse else r)


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> None:
        self.k, self.strip = k, Strip(k, _lanes(args), tiling, block)
        self.op, self.first = FOLDS[args.op_type]
        self.exclusive, self.reverse = bool(args.get("exclusive")), bool(args.get("reverse"))
        self.dtype, self.work, self.out = args.outputs[0].dtype.np, _work(args), len(args.inputs)
        tile = int(np.prod(self.strip.shape))
        self.loads = in_queue(k, tile * self.dtype.itemsize)
        self.stores = out_queue(k, tile * self.dtype.itemsize)
        row = tiling["m"] * padded(tiling["i"])
        self.carry = k.alloc("UB", row * self.work.itemsize)
        self.copies = []
        if self.work != self.dtype:
            self.copies = [k.alloc("UB", tile * self.work.itemsize) for _ in range(2)]

    def _carried(self, m: int, i: int) -> Region:
        whole = self.carry.region((self.strip.shape[0], self.strip.shape[2]), self.work)
        return whole[:m, :i]

    def start(self, o: int, i: int) -> Iterator[Instr]:
        """What the first row of the lanes is folded onto."""
        outer, _, inner = self.strip.cut(o, i, 0)
        carried = self._carried(outer.stop - outer.start, inner.stop - inner.start)
        yield self.k.vec("dup", carried, scalar=self.first)

    def tile(self, o: int, i: int, r: int) -> Iterator[Instr]:
        """Load a tile, fold it row by row, store it."""
        k, strip = self.k, self.strip
        cut = strip.cut(o, i, r)
        yield from strip.load(self.loads, 0, self.dtype, cut)
        place = yield from self.stores.alloc()
        loaded = strip.work(self.loads.front, self.dtype, cut)
        made = strip.work(place, self.dtype, cut)
        x, y = strip.valid(loaded, cut), strip.valid(made, cut)
        if self.copies:
            wide = [strip.valid(strip.work(c, self.work, cut), cut) for c in self.copies]
            yield k.vec("conv", wide[0], x)
            yield from self._fold(wide[0], wide[1])
            yield k.vec("conv", y, wide[1])
        else:
            yield from self._fold(x, y)
        yield self.loads.free()
        yield from strip.store(self.stores, self.out, made, cut)

    def _fold(self, x: Region, y: Region) -> Iterator[Instr]:
        """y = the scan of x (m, r, i) along its middle axis, on top of the carried row."""
        m, length, i = x.shape
        carried = self._carried(m, i)
        order = range(length - 1, -1, -1) if self.reverse else range(length)
        before = carried
        for n, j in enumerate(order):
            row = y[:, j]
            if not self.exclusive:
                yield self.k.vec(self.op, row, before, x[:, j])
            elif n:
                yield self.k.vec(self.op, row, before, x[:, order[n - 1]])
            else:
                yield self.k.vec("copy", row, carried)
            before = row
        if self.exclusive:
            yield self.k.vec(self.op, carried, before, x[:, order[-1]])
        else:
            yield self.k.vec("copy", carried, before)
