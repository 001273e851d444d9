"""PadV3 as CANN's TIK kernel does it: fill the whole output, then put the rows of x into it.

Every block first fills its share of the output with the constant, 8 KB a store. Then, by the
length of an output row,

* long rows (a line, 1/128 of UB beside the constant, does not hold one) pass through UB one by
  one: the first 32 B block for itself, through the vector unit, then the rest. A loop body is a
  pair of rows; the next pair waits until both are stored;
* short rows go 16 lines a tile, a line being as many rows as fit: the 16 lines are transposed,
  spread among the padding and transposed back, and every line is stored for itself.

Lines that are not whole 32 B blocks start anywhere in GM: every block of UB meets two blocks of
GM, and either is read before it is written. That leaves a quarter of the store's rate, after the
latency of a read (measured on the 310: 80 cycles + 17 B/cycle a line, 25 + 35 for whole blocks).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import Layout
from npusim.kernels.lang import ALIGN, Kernel, Queue, TileKernel, fits
from npusim.kernels.strided import bits_of
from npusim.program import effects, isa
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

FILL = 8192  #: bytes of a store of the constant (256 blocks of 32 B, pad_v3.py)
LINES = 16  #: lines of a tile: what a transposing instruction takes
PIECE = 12800  #: bytes of a row at a time (copy_num, pad_v3.py)
SHARE = 8  #: line buffers that UB is divided into, each of LINES lines
UNALIGNED = 4  #: transfers of a block that is stored across two blocks of GM


@dataclass(frozen=True)
class _Shape:
    """A launch as rows of x (…, m, n) inside rows of y (…, big_m, big_n), in elements.

    Attributes:
        outer, big_outer: extents before the last two axes, of x and of y.
        before: of every axis, elements in front.
    """

    outer: tuple[int, ...]
    m: int
    n: int
    big_outer: tuple[int, ...]
    big_m: int
    big_n: int
    before: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Rows of x."""
        return prod(self.outer) * self.m

    def place(self, row: int) -> int:
        """The row of y in which a row of x lies."""
        rest, at = divmod(row, self.m)
        index = []
        for extent in reversed(self.outer):
            rest, i = divmod(rest, extent)
            index.append(i)
        found = 0
        for i, front, extent in zip(reversed(index), self.before, self.big_outer, strict=False):
            found = found * extent + i + front
        return found * self.big_m + at + self.before[-2]


@lru_cache(maxsize=256)
def _shape(args: KernelArgs) -> _Shape:
    x, y = args.operands[0].shape, args.operands[len(args.inputs)].shape
    given, rank = dict(args.attrs), len(x)
    pads = [int(p) for p in args.attr("pads")]
    axes = [int(a) % rank for a in given.get("axes") or range(rank)]
    before = [0] * rank
    for i, a in enumerate(axes):
        before[a] = pads[i]
    while len(x) < 2:
        x, y, before = (1, *x), (1, *y), [0, *before]
    return _Shape(x[:-2], x[-2], x[-1], y[:-2], y[-2], y[-1], tuple(before))


def _rows_a_line(shape: _Shape, itemsize: int, chip: ChipSpec) -> int:
    """Rows of y that a line holds; 0 where not even one fits."""
    return min(_line(chip) // (shape.big_n * itemsize), shape.m)


def _line(chip: ChipSpec) -> int:
    """Bytes of a line."""
    return (chip.core.ub.size - FILL) // (SHARE * LINES) // ALIGN * ALIGN


def _aligned(shape: _Shape, rows: int, size: int) -> bool:
    """Whether no two lines of y (rows where they go one by one) share a 32 B block of GM."""
    steps = (rows * shape.big_n,) if rows else (shape.big_n, shape.before[-1])
    return not any(n * size % ALIGN for n in steps)


def _share(shape: _Shape, tiling: Tiling, block: int) -> tuple[int, int]:
    """Rows of x [r0, r1) of a block: single rows, or everything of some outer indices."""
    unit = shape.m if tiling["rows"] else 1
    units = shape.rows // unit
    r0, r1 = (units * (block + j) // tiling["blocks"] for j in (0, 1))
    return r0 * unit, r1 * unit


def _filled(shape: _Shape, tiling: Tiling, block: int) -> tuple[int, int]:
    """Elements of y that a block fills: from its first row up to the next block's first."""
    r0, r1 = _share(shape, tiling, block)
    last = block == tiling["blocks"] - 1
    whole = prod(shape.big_outer) * shape.big_m
    return (
        (shape.place(r0) if block else 0) * shape.big_n,
        (whole if last else shape.place(r1)) * shape.big_n,
    )


@kernel("PadV3")
class PadV3(TileKernel):
    """Pad with a constant, for elements of any type."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Constant padding of a plain tensor, none of it negative."""
        if args.op_type != "Pad" or args.epilogue:
            return f"operator {args.op_type}"
        x, y = args.operands[0], args.operands[len(args.inputs)]
        if x.layout is not Layout.ND or y.layout is not Layout.ND:
            return "a blocked layout"
        if args.get("mode", "constant") != "constant":
            return f"Pad of mode {args.attr('mode')}"
        if "pads" not in dict(args.attrs):
            return "pads not known when compiling"
        if any(int(p) < 0 for p in args.attr("pads")):
            return "negative pads"
        return "" if x.nbytes and x.shape else "an empty tensor or a scalar"

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """One: rows a line (0: rows one by one), and the blocks."""
        shape, size = _shape(args), args.operands[0].dtype.size
        rows = _rows_a_line(shape, size, chip)
        units = shape.rows // shape.m if rows else shape.rows
        tiling = {"rows": rows, "blocks": max(1, min(chip.vector_cores(), units))}
        if fits(chip, args, lambda k: _Run(k, args, tiling)):
            yield tiling

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling: rows of the busiest block."""
        return float(-(-_shape(args).rows // tiling["blocks"]))

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Every byte of y is written once by the fill, and again where x lies."""
        shape, n = _shape(args), tiling["blocks"]
        x, out = args.operands[0], len(args.inputs)
        y = args.operands[out]
        size = x.dtype.size
        per = shape.rows * shape.big_n * size if tiling["rows"] else x.nbytes
        written = y.nbytes + per
        distinct = written if y.nbytes > chip.l2.size else y.nbytes  # the fill has left L2
        traffic = {0: Traffic(x.nbytes, x.nbytes), out: Traffic(distinct, written)}
        keys = []
        for b in range(n):
            (r0, r1), (e0, e1) = _share(shape, tiling, b), _filled(shape, tiling, b)
            keys.append((r1 - r0, e1 - e0))
        return Plan(tiling, n, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """Fill, wait, rows."""
        run = _Run(k, args, tiling)
        yield from run.fill(*_filled(run.shape, tiling, block))
        r0, r1 = _share(run.shape, tiling, block)
        if tiling["rows"]:
            for i in k.loop((r1 - r0) // run.shape.m):
                yield from run.lines(r0 + i * run.shape.m)
        else:
            for i in k.loop((r1 - r0) // 2):
                yield from run.pair(r0 + 2 * i, 2)
            if (r1 - r0) % 2:
                yield from run.pair(r1 - 1, 1)


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling) -> None:
        self.k, self.shape, self.rows = k, _shape(args), tiling["rows"]
        spec, out = args.operands[0], len(args.inputs)
        self.constant = bits_of(dict(args.attrs).get("value") or 0, spec.dtype.np)
        size = spec.dtype.size
        self.dtype = np.dtype(f"uint{8 * size}")
        self.aligned = _aligned(self.shape, self.rows, size)
        self.x = Region.dense(GM, 0, 0, (self.shape.rows, self.shape.n), self.dtype)
        total = args.operands[out].nbytes // size
        self.y = Region.dense(GM, out, 0, (total,), self.dtype)
        self.block = ALIGN // size
        self.filling = k.queue("UB", FILL, 1, Pipe.V, Pipe.MTE3)
        if self.rows:
            line = _line(k.chip)
            self.pitch = line // size
            self.ins = k.queue("UB", LINES * line, 2, Pipe.MTE2, Pipe.V)
            self.outs = k.queue("UB", LINES * line, 2, Pipe.V, Pipe.MTE3)
        else:
            self.heads = k.queue("UB", ALIGN, 2, Pipe.MTE2, Pipe.V)
            self.edges = k.queue("UB", ALIGN, 2, Pipe.V, Pipe.MTE3)
            self.cut = min(self.block, self.shape.n)
            self.room = min(PIECE, k.chip.core.ub.size // 8) // ALIGN * ALIGN // size
            self.rests = k.queue("UB", self.room * size, 2, Pipe.MTE2, Pipe.MTE3)

    def fill(self, start: int, end: int) -> Iterator[Instr]:
        """Elements [start, end) of y become the constant; the rows wait for that."""
        place = yield from self.filling.alloc()
        step = FILL // self.dtype.itemsize
        tile = place.region((step,), self.dtype)
        yield self.k.vec("dup", tile, scalar=self.constant)
        yield self.filling.enque()
        yield self.filling.deque()
        for i in self.k.loop(-(-(end - start) // step)):
            e0 = start + i * step
            e1 = min(end, e0 + step)
            yield self.k.store(self.y[e0:e1], tile[: e1 - e0])
        barrier = self.k.flag_id()
        yield self.k.set_flag(Pipe.MTE3, Pipe.MTE2, barrier)
        yield self.k.wait_flag(Pipe.MTE3, Pipe.MTE2, barrier)

    def pair(self, row: int, count: int) -> Iterator[Instr]:
        """Rows of their own: all loaded, then all stored; their slots are free at the end."""
        n, cut = self.shape.n, self.cut
        for r in range(row, row + count):
            yield from self._take(self.heads, self.x[r, :cut])
            if cut < n <= cut + self.room:
                yield from self._take(self.rests, self.x[r, cut:])
        for r in range(row, row + count):
            at = self.shape.place(r) * self.shape.big_n + self.shape.before[-1]
            yield from self._head(at)
            if cut < n <= cut + self.room:
                yield from self._give(self.rests, self.y[at + cut : at + n])
            for first in range(cut, n, self.room) if n > cut + self.room else ():
                last = min(n, first + self.room)
                yield from self._take(self.rests, self.x[r, first:last])
                yield from self._give(self.rests, self.y[at + first : at + last])
                yield self.rests.free()
        if cut < n <= cut + self.room:
            for _ in range(count):
                yield self.rests.free()

    def _head(self, at: int) -> Iterator[Instr]:
        """The first block of a row, through the vector unit, to element `at` of y."""
        yield self.heads.deque()
        head = self.heads.front.region((self.cut,), self.dtype)
        place = yield from self.edges.alloc()
        edge = place.region((self.cut,), self.dtype)
        for dst, src in ((edge, head), (head, edge), (edge, head)):  # vnchwconv, copy, back
            yield self.k.vec("copy", dst, src)
        yield self.heads.free()
        yield self.edges.enque()
        yield from self._give(self.edges, self.y[at : at + self.cut])
        yield self.edges.free()

    def _give(self, queue: Queue, dst: Region) -> Iterator[Instr]:
        yield queue.deque()
        yield self._store(dst, queue.front.region(dst.shape, self.dtype))

    def _take(self, queue: Queue, src: Region) -> Iterator[Instr]:
        place = yield from queue.alloc()
        yield self.k.load(place.region(src.shape, self.dtype), src)
        yield queue.enque()

    def lines(self, first: int) -> Iterator[Instr]:
        """The rows [first, first + m) of one outer index, 16 lines a tile."""
        step = LINES * self.rows
        for r in range(first, first + self.shape.m, step):
            yield from self._tile(r, min(step, first + self.shape.m - r))

    def _tile(self, row: int, count: int) -> Iterator[Instr]:
        shape, k = self.shape, self.k
        place = yield from self.ins.alloc()
        src = place.region((count, shape.n), self.dtype)
        yield k.load(src, self.x[row : row + count])
        yield self.ins.enque()
        yield self.ins.deque()
        out = yield from self.outs.alloc()
        whole = out.region((-(-count // self.rows), self.pitch), self.dtype)
        yield k.vec_by("transpose", lambda a: a, src, src, src)
        yield k.vec("dup", whole, scalar=self.constant)
        front = shape.before[-1]
        for i in range(whole.shape[0]):
            n = min(self.rows, count - i * self.rows)
            line = whole[i, : n * shape.big_n].split(0, shape.big_n)
            part = src[i * self.rows : i * self.rows + n]
            yield k.vec("copy", line[:, front : front + shape.n], part)
        yield self.ins.free()
        yield k.vec_by("transpose", lambda a: a, whole, whole, whole)
        yield self.outs.enque()
        yield self.outs.deque()
        at = shape.place(row) * shape.big_n
        for i in range(whole.shape[0]):
            n = min(self.rows, count - i * self.rows) * shape.big_n
            yield self._store(self.y[at : at + n], whole[i, :n])
            at += n
        yield self.outs.free()

    def _store(self, dst: Region, src: Region) -> Instr:
        """A store that may start inside a 32 B block of GM."""
        if self.aligned:
            return self.k.store(dst, src)
        chip = self.k.chip
        mte3 = chip.core.mte3
        head = mte3.head + chip.l2.read_latency
        effect = effects.Copy(((dst, src),)) if self.k.functional else None
        issue, cap = chip.core.scalar.issue, mte3.rate / UNALIGNED
        return isa.gm_transfer(
            Pipe.MTE3, "copy_ub", issue, head, dst.nbytes, cap, dst.operand, True, effect
        )
