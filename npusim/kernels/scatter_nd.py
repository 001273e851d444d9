"""ScatterND, ScatterElements and TensorScatter: every block owns rows of the table.

A block brings a chunk of its rows to UB, goes through all picks that may name one of them, in
order, puts in what is its own, and stores the chunk: no two blocks write to one row, and duplicates
come in order whatever the reduction. The scalar unit looks at every index once a chunk; its own
rows are a DMA each, at an address that it computes. Without a reduction the DMA writes into the
chunk, with one the vector unit combines row by row. Rows of less than a 32 B block, such as single
elements, are loaded with their indices, and the scalar unit copies or combines them one by one.

Time does not depend on the indices' values: of the picks that a chunk is offered, it takes those
that fall to it when they are spread evenly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType
from npusim.kernels.elementwise import unsupported_type
from npusim.kernels.gather import INDEX_INSTRUCTIONS, row_port
from npusim.kernels.grid import deal
from npusim.kernels.lang import ALIGN, Kernel, TileKernel
from npusim.kernels.picking import as_rows, index_operand, picks_of, refuse_picks
from npusim.kernels.ub_pass import SCALAR_COPY
from npusim.program import cost, isa
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.picks import OwnRows, ScatterPicked
from npusim.program.region import Region

#: Scalar instructions to load an index, bring it into range and compare it with the chunk.
SCAN_INSTRUCTIONS = 8
TABLE_SHARE, PICKS_SHARE = 0.3, 0.1  #: of UB, for one of two slots of a chunk, and of its picks
MOST_PICKS = 512  #: of a tile
REDUCTIONS = {"add": np.add.at, "mul": np.multiply.at, "max": np.maximum.at, "min": np.minimum.at}


@dataclass(frozen=True)
class _Chunk:
    """Rows low … high - 1 of the table, columns left … right - 1, and the picks it is offered."""

    low: int
    high: int
    left: int
    right: int
    first: int
    end: int
    share: float

    @property
    def shape(self) -> tuple[int, ...]:
        """What its time depends on."""
        return (self.high - self.low, self.right - self.left, self.end - self.first)


class _Launch:
    """Geometry of a launch."""

    def __init__(self, args: KernelArgs) -> None:
        self.args, self.picks = args, picks_of(args)
        self.index = index_operand(args)
        self.updates = 3 - self.index
        self.size = args.operands[0].dtype.size
        self.narrow = self.picks.width * self.size < ALIGN
        self.reduction = str(args.get("reduction", "none"))
        self.direct = self.reduction == "none" and not self.narrow

    def pitch(self, width: int) -> int:
        """Elements from row to row in UB; those of narrow rows lie as in GM."""
        unit = 1 if self.narrow else max(1, ALIGN // self.size)
        return -(-width // unit) * unit

    def picks_bytes(self, picks: int, width: int) -> tuple[int, int]:
        """UB bytes of a tile's indices, and of its updates."""
        entry = len(self.picks.extents) * self.args.operands[self.index].dtype.size
        a, b = self.picks.entries(0, picks)
        rows = 0 if self.direct else picks * self.pitch(width) * self.size
        return -(-(b - a) * entry // ALIGN) * ALIGN, rows

    def chunks(self, tiling: Tiling) -> list[_Chunk]:
        """All of them, those of the same columns together."""
        p, found = self.picks, []
        for left in range(0, p.width, tiling["part"]):
            right = min(p.width, left + tiling["part"])
            for low in range(0, p.rows, tiling["rows"]):
                high = min(p.rows, low + tiling["rows"])
                first, end = p.reaching(low, high)
                share = (high - low) / ((end - first) // max(1, p.per) * p.span or 1)
                found.append(_Chunk(low, high, left, right, first, end, share))
        return found

    def own(self, chunk: _Chunk, first: int, end: int) -> int:
        """Of the picks first … end - 1, those that fall to the chunk (of elements, rounded up)."""
        if self.narrow:
            return ceil((end - first) * chunk.share)
        a, b = (int((at - chunk.first) * chunk.share) for at in (first, end))
        return b - a

    def moved(self, chunk: _Chunk, first: int, end: int) -> int:
        """Bytes of updates that a tile of picks brings."""
        rows = end - first if self.narrow else self.own(chunk, first, end)
        return rows * (chunk.right - chunk.left) * self.size


@lru_cache(maxsize=64)
def _launch(args: KernelArgs) -> _Launch:
    return _Launch(args)


@kernel("ScatterND")
class ScatterND(TileKernel):
    """ScatterND, ScatterElements (`axis`; both `reduction`), TensorScatter (`axis`, `mode`).

    Tiling: chunks of `rows` table rows by `part` columns, tiles of `picks`; chunks dealt to
    `blocks`.
    """

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Integer indices; reductions of what the vector unit computes with; all of the axes."""
        if args.op_type not in ("ScatterND", "ScatterElements", "TensorScatter"):
            return f"operator {args.op_type}"
        if len(args.inputs) != 3:
            return "no indices"
        reason, reduction = refuse_picks(args), args.get("reduction", "none")
        if reason or reduction == "none":
            return reason
        dtype = args.operands[0].dtype
        if reduction not in REDUCTIONS or dtype in (DType.BOOL, DType.BFLOAT16):
            return f"reduction {reduction} of {dtype.value}"
        return unsupported_type(dtype, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """The largest chunks that give every core one, on all cores or a few."""
        m, p, ub = _launch(args), picks_of(args), chip.core.ub.size
        room, few = int(ub * TABLE_SHARE), int(ub * PICKS_SHARE)
        unit = max(1, ALIGN // m.size)
        part = min(p.width, (few - sum(m.picks_bytes(1, 0))) // ALIGN * unit)
        if part < 1:
            return
        picks = min(MOST_PICKS, p.count)
        while sum(m.picks_bytes(picks, part)) > few and picks > 1:
            picks = -(-picks // 2)
        step = unit if p.width == 1 else 1
        cores = chip.vector_cores()
        for blocks in sorted({1, min(4, cores), cores}):
            rows = min(-(-p.rows // blocks), room // (m.pitch(part) * m.size))
            rows = rows // p.span * p.span if rows > p.span else -(-rows // step) * step
            if rows * m.pitch(part) * m.size > room:
                rows = max(step, rows - step)
            yield {"rows": max(1, rows), "part": part, "picks": picks, "blocks": blocks}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """Cycles of the busiest block: the scalar unit's, or the DMA's with what waits for it."""
        m, core = _launch(args), chip.core
        chunks = m.chunks(tiling)
        some = chunks[:: max(1, len(chunks) // 64)]
        blocks, total = min(tiling["blocks"], len(chunks)), 0.0
        for c in some:
            nbytes = (c.high - c.low) * (c.right - c.left) * m.size
            tiles = -(-(c.end - c.first) // tiling["picks"])
            move = nbytes / core.mte2.ub_rate + nbytes / core.mte3.rate
            move += tiles * 2 * core.mte2.head
            move += m.moved(c, c.first, c.end) / _load_rate(m, c, c.first, c.end, chip)
            move += _combine_cycles(m, c, c.first, c.end, chip)
            total += max(_issue(m, c, c.first, c.end, chip), move)
        busy = -(-len(chunks) // blocks) * total / len(some)
        return busy + blocks * chip.cycles(chip.scheduler.per_block)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Chunks dealt to blocks; the indices go to all that they may concern."""
        m = _launch(args)
        chunks, data, index = m.chunks(tiling), args.operands[0], args.operands[m.index]
        entry = index.dtype.size * len(m.picks.extents)
        seen = updates = 0
        for c in chunks:
            updates += m.moved(c, c.first, c.end)
            if m.picks.run:
                a, b = m.picks.entries(c.first, c.end)
                seen += -(-(c.end - c.first) // tiling["picks"]) * (b - a) * entry
            else:
                seen += (c.end - c.first) * entry
        n = max(1, min(tiling["blocks"], len(chunks)))
        traffic = {
            0: Traffic(data.nbytes, data.nbytes),
            m.index: Traffic(min(seen, index.nbytes), seen),
            m.updates: Traffic(min(updates, args.operands[m.updates].nbytes), updates),
            3: Traffic(data.nbytes, data.nbytes),
        }
        shares = [deal([len(chunks)], n, b)[0] for b in range(n)]
        keys = [tuple(c.shape for c in chunks[s.start : s.start + s.count]) for s in shares]
        return Plan(tiling, n, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """The block's chunks."""
        m = _launch(args)
        chunks = m.chunks(tiling)
        share = deal([len(chunks)], max(1, min(tiling["blocks"], len(chunks))), block)[0]
        run = _Run(k, m, tiling)
        for c in chunks[share.start : share.start + share.count]:
            yield from run.chunk(c)


def _issue(m: _Launch, c: _Chunk, first: int, end: int, chip: ChipSpec) -> int:
    """Scalar cycles to look at the picks first … end - 1, and for the commands of a chunk's own."""
    each = SCAN_INSTRUCTIONS * len(m.picks.extents) * (end - first)
    own = 0 if m.narrow else m.own(c, first, end) * INDEX_INSTRUCTIONS
    return (each + own) * chip.core.scalar.issue


def _load_rate(m: _Launch, c: _Chunk, first: int, end: int, chip: ChipSpec) -> float:
    """MTE2's bytes per cycle for updates: rows that are a command each, or narrow ones at once."""
    if m.narrow or not m.own(c, first, end):
        return chip.core.mte2.ub_rate
    whole = m.args.operands[m.updates].nbytes
    return row_port(chip, whole, m.moved(c, first, end), m.own(c, first, end))


def _combine_cycles(m: _Launch, c: _Chunk, first: int, end: int, chip: ChipSpec) -> int:
    """The vector unit's time for a chunk's own of the picks; the scalar unit's for elements.

    An element is loaded and stored by the scalar unit; to combine it, what is there is loaded too.
    """
    if m.direct:
        return 0
    width, own = c.right - c.left, m.own(c, first, end)
    if m.narrow:
        return ceil(own * width * SCALAR_COPY * (1 if m.reduction == "none" else 2))
    row = Region.dense("UB", -1, 0, (width,), m.args.operands[0].dtype.np)
    repeats, commands = cost.vector_repeats(chip, 8 * m.size, row)
    return own * cost.vector_cycles(chip, "binary", 8 * m.size, repeats, commands)


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, m: _Launch, tiling: Tiling) -> None:
        self.k, self.m, self.tiling = k, m, tiling
        p, args = m.picks, m.args
        self.dtype, self.pitch = args.operands[0].dtype.np, m.pitch(tiling["part"])
        self.data, self.out = (as_rows(args, i, p.rows, p.width) for i in (0, 3))
        self.updates = as_rows(args, m.updates, p.count, p.width)
        entries = p.count // p.group
        self.index = as_rows(args, m.index, entries, len(p.extents))
        room = tiling["rows"] * self.pitch * m.size
        self.tables = k.queue("UB", room, 2, Pipe.MTE2, Pipe.MTE3)
        self.index_bytes, rows = m.picks_bytes(tiling["picks"], tiling["part"])
        reader = Pipe.MTE2 if m.direct else Pipe.V
        self.chosen = k.queue("UB", self.index_bytes + rows, 2, Pipe.MTE2, reader)
        self.here, self.known, self.done = (k.flag_id() for _ in range(3))

    def chunk(self, c: _Chunk) -> Iterator[Instr]:
        """Load a chunk, put in what is its own, store it."""
        k, v = self.k, not self.m.direct
        place = yield from self.tables.alloc()
        width = c.right - c.left
        whole = place.region((c.high - c.low, self.pitch), self.dtype)
        table = whole[:, :width]
        yield k.load(table, self.data[c.low : c.high, c.left : c.right])
        if v:
            yield k.set_flag(Pipe.MTE2, Pipe.V, self.here)
            yield k.wait_flag(Pipe.MTE2, Pipe.V, self.here)
        step, count = self.tiling["picks"], c.end - c.first
        tiles = -(-count // step)
        for i in k.loop(tiles) if self.m.narrow else range(tiles):
            first = c.first + i * step
            yield from self._tile(c, table, first, min(c.end, first + step))
        if v:
            yield k.set_flag(Pipe.V, Pipe.MTE3, self.done)
            yield k.wait_flag(Pipe.V, Pipe.MTE3, self.done)
        yield self.tables.enque()
        yield self.tables.deque()
        yield k.store(self.out[c.low : c.high, c.left : c.right], table)
        yield self.tables.free()

    def _tile(self, c: _Chunk, table: Region, first: int, end: int) -> Iterator[Instr]:
        """The picks first … end - 1: their indices, then their rows."""
        k, m, n, width = self.k, self.m, end - first, c.right - c.left
        place = yield from self.chosen.alloc()
        a, b = m.picks.entries(first, end)
        index = place.region((b - a, len(m.picks.extents)), self.index.dtype)
        yield k.load(index, self.index[a:b])
        updates = self.updates[first:end, c.left : c.right]
        if m.direct:
            yield self.chosen.enque()
            yield self.chosen.deque()
            yield self._fetch(c, table, updates, index, first)
        else:
            pitch = m.pitch(width)
            rows = place.region((n, pitch), self.dtype, self.index_bytes)[:, :width]
            if m.narrow:
                yield k.load(rows, updates)
            else:  # the addresses hang on the indices
                yield k.set_flag(Pipe.MTE2, Pipe.MTE2, self.known)
                yield k.wait_flag(Pipe.MTE2, Pipe.MTE2, self.known)
                yield self._fetch(c, rows, updates, index, first)
            yield self.chosen.enque()
            yield self.chosen.deque()
            yield self._combine(c, table, rows, index, first)
        yield self.chosen.free()

    def _fetch(self, c: _Chunk, dst: Region, src: Region, index: Region, first: int) -> Instr:
        """MTE2: the chunk's own updates, a command each, into it or beside it."""
        k, m, n = self.k, self.m, src.shape[0]
        effect: ScatterPicked | OwnRows | None = None
        if k.functional and m.direct:
            effect = ScatterPicked(dst, src, index, m.picks, first, c.low, None)
        elif k.functional:
            effect = OwnRows(dst, src, index, m.picks, first, c.low, c.high)
        issue, nbytes = _issue(m, c, first, first + n, k.chip), m.moved(c, first, first + n)
        if not nbytes:  # nothing of its own among them, where they are spread evenly
            return Instr(isa.Kind.LOCAL, Pipe.MTE2, "gather_gm", issue, 0, 0, effect)
        cap, head = _load_rate(m, c, first, first + n, k.chip), k.chip.core.mte2.head
        return isa.gm_transfer(
            Pipe.MTE2, "gather_gm", issue, head, nbytes, cap, m.updates, False, effect
        )

    def _combine(self, c: _Chunk, table: Region, rows: Region, index: Region, first: int) -> Instr:
        """V: row by row, or element by element, in the order of the picks."""
        k, m, n = self.k, self.m, rows.shape[0]
        effect = None
        if k.functional:
            combine = REDUCTIONS.get(m.reduction)
            effect = ScatterPicked(table, rows, index, m.picks, first, c.low, combine)
        end = first + n
        issue = k.chip.core.scalar.issue * m.own(c, first, end)
        if m.narrow:
            issue = _issue(m, c, first, end, k.chip)
        cycles, tail = _combine_cycles(m, c, first, end, k.chip), k.chip.core.vector.tail
        return Instr(isa.Kind.LOCAL, Pipe.V, "scatter", issue, cycles, tail, effect, serial=True)
