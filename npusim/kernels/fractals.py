"""ND ↔ FRACTAL_NZ as CANN's TIK kernels do it on cores without data_move_pad (first generation).

UB is two halves, each of 16 lines: one is loaded while the other is stored, and between the two
the vector unit takes a tile from one to the other. So a tile costs its vector passes plus the
longer of the next load and the store.

* ND → NZ: a line holds whole rows (or a part of a long one), a tile 16 lines. Where the rows'
  blocks would meet in the same banks (an odd number of rows of 16 blocks), the lines are
  transposed (vnchwconv), rearranged and transposed back, in all 16 lines whether they are used or
  not; else blocks are moved directly, eight a repeat.
* NZ → ND: rows of at least 256 columns go directly, at most 63 (31 of 4 bytes) a tile; narrow
  matrices go 16 a tile, transposed, rearranged and transposed back.

Blocks share the loop with the most turns, whole turns each: few of them may have something to do
(trans_data_positive_source_tc.py, trans_data_negative_target_tc.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from npusim.chip.spec import ChipSpec
from npusim.ir import Layout
from npusim.kernels.lang import ALIGN, Kernel
from npusim.kernels.ub_pass import VNC
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks
from npusim.program.region import GM, Region

LINES = 16  #: lines of a half of UB
C0 = 16  #: columns of a block
SMALLEST = 64 * 1024  #: bytes of UB below which lines would be too short
RESERVED = 1024  #: bytes of UB kept back
DIRECT = 256  #: columns from which NZ → ND moves blocks directly
MAX_ROWS = 63  #: rows of a direct NZ → ND tile, of two bytes
RAGGED = 896  #: the same for rows that are not whole blocks
VOR = 2.1  #: cycles of a repeat of eight blocks that change places (vor with zeros)


@dataclass(frozen=True)
class Cut:
    """How a launch is tiled.

    Attributes:
        batch, rows, columns: extents of the ND side; depth, width: of NZ, whole blocks.
        unit: (matrices, columns, rows) of a tile.
        transposed: the tile is transposed there and back; line: elements of a line then.
        size: bytes of an element.
    """

    batch: int
    rows: int
    columns: int
    depth: int
    width: int
    unit: tuple[int, int, int]
    transposed: bool
    line: int
    size: int

    @property
    def turns(self) -> tuple[int, int, int]:
        """Tiles along (matrices, columns, rows)."""
        whole = (self.batch, self.width, self.rows)
        return tuple(-(-n // u) for n, u in zip(whole, self.unit, strict=True))  # type: ignore[return-value]

    def vector(self, chip: ChipSpec, elements: int) -> int:
        """Cycles of the vector unit for a tile of so many elements, padding included."""
        vec = chip.core.vector
        costs = vec.costs["dup"]
        if not self.transposed:
            return ceil(elements * self.size / vec.repeat_bytes * VOR) + vec.head
        repeats = -(-self.line * self.size // ALIGN)
        copy = 2 * repeats * (costs.b16 or 0.0)
        return ceil(2 * repeats * VNC + copy) + 3 * vec.head + 2 * vec.tail


def takes(args: KernelArgs, chip: ChipSpec) -> bool:
    """Whether this program does the launch: blocks of 16 columns, a first-generation core."""
    source, target = args.operands
    if chip.cores.split or source.dtype.size not in (2, 4) or not source.nbytes:
        return False
    blocked = target if source.layout is Layout.ND else source
    if blocked.layout is not Layout.FRACTAL_NZ or blocked.storage_shape[-1] != C0:
        return False
    if chip.core.ub.size < SMALLEST:
        return False
    columns = source.shape[-1]
    return source.layout is Layout.ND or columns % C0 == 0 or columns < RAGGED


@lru_cache(maxsize=256)
def cut_of(args: KernelArgs, chip_ub: int, cores: int) -> Cut:
    """The tiles of a launch on a core with so much UB."""
    source, size = args.operands[0], args.operands[0].dtype.size
    *outer, rows, columns = source.shape if len(source.shape) > 1 else (1, *source.shape)
    batch = prod(outer)
    depth, width = (-(-n // C0) * C0 for n in (rows, columns))
    half = (chip_ub - RESERVED) // 2 // size
    line = half // LINES // C0 * C0
    if source.layout is Layout.ND:
        unit, transposed, used = _into(batch, rows, columns, line, size)
    else:
        unit, transposed, used = _out_of(batch, rows, columns, line, half, size, cores)
    return Cut(batch, rows, columns, depth, width, unit, transposed, used, size)


_Tiles = tuple[tuple[int, int, int], bool, int]


def _into(batch: int, rows: int, columns: int, line: int, size: int) -> _Tiles:
    """ND → NZ: unit, transposed, elements of a line that the transposes walk."""
    width = -(-columns // C0) * C0
    part = min(width, line)
    a_line = line // part
    tall = LINES * a_line
    blocks = -(-part * size // ALIGN)
    if columns % C0 == 0 and (blocks % LINES != 0 or a_line % 2 == 0):
        whole = part == width and tall >= rows
        return (max(1, LINES * line // (width * rows)) if whole else 1, part, tall), False, 0
    if part < width or (batch > 1 and rows > LINES // 2 * a_line):
        return (1, part, tall), True, a_line * part
    if rows <= a_line:  # some matrices a line
        held = min(a_line // rows, batch)
        return (LINES * held, part, rows), True, held * rows * part
    if batch == 1:  # a line for itself where all fit in a tile: more cores have something to do
        return (1, part, a_line if tall >= rows else tall), True, a_line * part
    return (LINES, part, a_line), True, a_line * part


def _out_of(
    batch: int, rows: int, columns: int, line: int, half: int, size: int, cores: int
) -> _Tiles:
    """NZ → ND: unit, transposed, elements of a line that the transposes walk."""
    width, factor = -(-columns // C0) * C0, size // 2
    if columns % C0 or (columns < DIRECT and columns != C0):
        tall = max(1, min(rows, line // width))
        return (min(batch, LINES), width, tall), True, tall * width
    part = min(width, half // min(rows, C0) // C0 * C0)
    tall = min(rows, half // part, MAX_ROWS // factor)
    if 1 < tall < rows and tall * factor % C0 == 0:
        tall -= 1  # blocks of a column would meet in one bank
    matrices = half // (part * tall) if tall == rows else 1
    if batch >= cores:
        matrices = min(matrices, batch // cores)
    return (max(1, min(matrices, batch)), part, tall), False, 0


def _busiest(turns: tuple[int, int, int], cores: int) -> int:
    """The axis that the blocks share: that whose turns, beyond whole rounds, are the most."""

    def weight(n: int) -> int:
        return (cores if n >= cores else 0) + (n % cores or cores)

    order = (0, 2, 1)
    return max(order, key=lambda a: (weight(turns[a]), -order.index(a)))


def tiling_of(args: KernelArgs, chip: ChipSpec) -> Tiling:
    """The axis that blocks share, and turns of a block."""
    cores = chip.vector_cores()
    turns = cut_of(args, chip.core.ub.size, cores).turns
    axis = _busiest(turns, cores)
    per = -(-turns[axis] // cores)
    return {"axis": axis, "turns": per, "blocks": -(-turns[axis] // per), "cores": cores}


def estimate_of(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
    """Cycles of the busiest block."""
    cut = cut_of(args, chip.core.ub.size, tiling["cores"])
    turns = list(cut.turns)
    turns[tiling["axis"]] = tiling["turns"]
    whole = (cut.batch, cut.width, cut.rows)
    elements = prod(min(u, n) for u, n in zip(cut.unit, whole, strict=True))
    share = chip.l2_rate / tiling["blocks"]
    load = elements * cut.size / min(chip.core.mte2.ub_rate, share)
    store = elements * cut.size / min(chip.core.mte3.rate, share)
    waits = chip.core.mte2.head + chip.l2.read_latency + chip.l2.write_latency
    return prod(turns) * (cut.vector(chip, elements) + max(load, store)) + load + store + waits


def _range(cut: Cut, tiling: Tiling, block: int) -> tuple[int, int]:
    """Turns of a block along the axis that blocks share."""
    n, per = cut.turns[tiling["axis"]], tiling["turns"]
    return min(n, block * per), min(n, (block + 1) * per)


def plan_of(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
    """Every element once."""
    cut = cut_of(args, chip.core.ub.size, tiling["cores"])
    last = cut.turns[tiling["axis"]]
    traffic = {i: Traffic(args.operands[i].nbytes, args.operands[i].nbytes) for i in (0, 1)}
    if args.operands[0].layout is not Layout.ND:  # no padding rows are read
        read = cut.batch * cut.width * cut.rows * cut.size
        traffic[0] = Traffic(read, read)
    keys = []
    for b in range(tiling["blocks"]):
        t0, t1 = _range(cut, tiling, b)
        keys.append((t1 - t0, t1 == last))
    return Plan(tiling, tiling["blocks"], traffic, group_blocks(keys))


def body_of(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
    """The block's tiles."""
    cut = cut_of(args, k.chip.core.ub.size, tiling["cores"])
    run = _Run(k, args, cut)
    ranges = [(0, n) for n in cut.turns]
    ranges[tiling["axis"]] = _range(cut, tiling, block)
    matrices, columns, rows = (range(*r) for r in ranges)
    for c in columns:
        for b in matrices:
            for r in rows:
                yield from run.tile(b, c, r)


class _Run:
    """One block at work: a half of UB to load, a half to store."""

    def __init__(self, k: Kernel, args: KernelArgs, cut: Cut) -> None:
        self.k, self.cut = k, cut
        self.dtype = args.operands[0].dtype.np
        self.into = args.operands[0].layout is Layout.ND
        nd, nz = (0, 1) if self.into else (1, 0)
        self.nd = Region.dense(GM, nd, 0, (cut.batch, cut.rows, cut.columns), self.dtype)
        shape = (cut.batch, cut.width // C0, cut.depth, C0)
        self.nz = Region.dense(GM, nz, 0, shape, self.dtype)
        most = [min(n, u) for n, u in zip((cut.batch, cut.width, cut.rows), cut.unit, strict=True)]
        room = prod(most) * cut.size
        self.room = room
        self.ins = k.queue("UB", room, 1, Pipe.MTE2, Pipe.V)
        self.outs = k.queue("UB", room, 1, Pipe.V, Pipe.MTE3)

    def tile(self, b: int, c: int, r: int) -> Iterator[Instr]:
        """One tile: load, rearrange, store; below the last rows, padding."""
        cut, k = self.cut, self.k
        whole = (cut.batch, cut.width, cut.rows)
        (b0, b1), (c0, c1), (r0, r1) = (
            (i * u, min(n, (i + 1) * u)) for i, u, n in zip((b, c, r), cut.unit, whole, strict=True)
        )
        columns = min(c1, cut.columns) - c0
        plain, packed = (b1 - b0, r1 - r0, columns), (b1 - b0, (c1 - c0) // C0, r1 - r0, C0)
        nd = self.nd[b0:b1, r0:r1, c0 : c0 + columns]
        nz = self.nz[b0:b1, c0 // C0 : c1 // C0]
        place = yield from self.ins.alloc()
        loaded = place.region(plain if self.into else packed, self.dtype)
        yield k.load(loaded, nd if self.into else nz[:, :, r0:r1])
        yield self.ins.enque()
        yield self.ins.deque()
        place = yield from self.outs.alloc()
        stored = place.region(packed if self.into else plain, self.dtype)
        yield from self._rearrange(stored, loaded, columns)
        yield self.ins.free()
        yield self.outs.enque()
        yield self.outs.deque()
        yield k.store(nz[:, :, r0:r1] if self.into else nd, stored)
        yield self.outs.free()
        if self.into and r1 == cut.rows < cut.depth:
            yield from self._padding(nz[:, :, r1:])

    def _rearrange(self, stored: Region, loaded: Region, columns: int) -> Iterator[Instr]:
        """Rows to blocks or back; the ragged block is padded with zeros."""
        k, whole = self.k, columns // C0
        blocks, rows = (stored, loaded) if self.into else (loaded, stored)
        cycles = self.cut.vector(k.chip, blocks.size)
        if self.into and columns % C0:
            yield k.vec("dup", stored, scalar=self.dtype.type(0))
        parts = []
        if whole:
            some = rows[:, :, : whole * C0].split(2, C0).permute(0, 2, 1, 3)
            parts.append((blocks[:, :whole], some))
        if columns % C0:
            parts.append((blocks[:, whole, :, : columns % C0], rows[:, :, whole * C0 :]))
        for there, here in parts:
            pair = (there, here) if self.into else (here, there)
            yield k.vec_taking("transpose", cycles, *pair)
            cycles = 0

    def _padding(self, nz: Region) -> Iterator[Instr]:
        """Zeros below the last rows, as many at a time as a half of UB takes."""
        matrices, blocks, rows, _ = nz.shape
        fit = max(1, self.room // (blocks * C0 * self.cut.size))  # rows of one matrix
        deep = min(rows, fit)
        many = max(1, fit // deep)
        for b in range(0, matrices, many):
            for r in range(0, rows, deep):
                there = nz[b : b + many, :, r : r + deep]
                place = yield from self.outs.alloc()
                zeros = place.region(there.shape, self.dtype)
                yield self.k.vec("dup", zeros, scalar=self.dtype.type(0))
                yield self.outs.enque()
                yield self.outs.deque()
                yield self.k.store(there, zeros)
                yield self.outs.free()
