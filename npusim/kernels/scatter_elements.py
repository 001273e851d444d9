"""Scatters of elements, and of rows of less than a 32 B block: chunks of the table pass through UB.

A block brings a chunk of the table to UB, goes through all picks that may name a part of it, in
order, with the updates beside them, and stores the chunk: no two blocks write to one element, and
duplicates come in order whatever the reduction. The scalar unit looks at every index once a chunk,
and copies or combines what is the chunk's own one by one. Chunks hold whole lanes where lanes fit:
each index is then looked at once.

Time does not depend on the indices' values: of the picks that a chunk is offered, it takes those
that fall to it when they are spread evenly.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.kernels.grid import deal
from npusim.kernels.lang import ALIGN, Kernel, TileKernel
from npusim.kernels.picking import SCAN_INSTRUCTIONS, Part, Scattering, refuse_scatter, scattering
from npusim.kernels.ub_pass import SCALAR_COPY
from npusim.program import isa
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.picks import ScatterPicked
from npusim.program.region import Region

TABLE_SHARE, PICKS_SHARE = 0.3, 0.1  #: of UB, for one of two slots of a chunk, and of its picks
MOST_PICKS = 512  #: of a tile
COMBINE = {"add": np.add.at, "mul": np.multiply.at, "max": np.maximum.at, "min": np.minimum.at}


def _chunks(m: Scattering, tiling: Tiling) -> list[Part]:
    """The table in chunks."""
    rows = m.picks.rows
    lows = range(0, rows, tiling["rows"])
    return [m.part(low, min(rows, low + tiling["rows"])) for low in lows]


def _blocks(chunks: list[Part], tiling: Tiling) -> int:
    return max(1, min(tiling["blocks"], len(chunks)))


@kernel("ScatterElements")
class ScatterElements(TileKernel):
    """ScatterElements (`axis`), ScatterND (both `reduction`), TensorScatter of narrow rows.

    Tiling: chunks of `rows` table rows, tiles of `picks`; chunks dealt to `blocks`.
    """

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Integer indices; reductions of what the vector unit computes with; all of the axes."""
        reason = refuse_scatter(args, chip)
        if not reason and scattering(args).row_bytes >= ALIGN:
            return "rows of 32 B and more"
        return reason

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """The largest chunks that give every core one, on all cores or a few."""
        m, ub, cores = scattering(args), chip.core.ub.size, chip.vector_cores()
        p, room, few = m.picks, int(ub * TABLE_SHARE), int(ub * PICKS_SHARE)
        picks = min(MOST_PICKS, p.count)
        while m.index_bytes(picks) + picks * m.row_bytes > few and picks > 1:
            picks = -(-picks // 2)
        if m.index_bytes(picks) + picks * m.row_bytes > few:
            return
        step = max(1, ALIGN // m.size) if p.width == 1 else 1
        for blocks in sorted({1, min(4, cores), cores}):
            rows = min(-(-p.rows // blocks), room // m.row_bytes)
            rows = rows // p.span * p.span if rows > p.span else -(-rows // step) * step
            if rows * m.row_bytes > room:
                rows = max(step, rows - step)
            yield {"rows": max(1, rows), "picks": picks, "blocks": blocks}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """Cycles of the busiest block: the scalar unit's, or the DMA's with what waits for it."""
        m, core = scattering(args), chip.core
        chunks = _chunks(m, tiling)
        total = 0.0
        for c in (some := chunks[:: max(1, len(chunks) // 64)]):
            count, nbytes = c.end - c.first, (c.high - c.low) * m.row_bytes
            tiles = -(-count // tiling["picks"])
            move = nbytes / core.mte2.ub_rate + nbytes / core.mte3.rate + tiles * 2 * core.mte2.head
            move += count * m.row_bytes / core.mte2.ub_rate + _cycles(m, c, count)
            total += max(_issue(m, count, chip), move)
        blocks = _blocks(chunks, tiling)
        busy = -(-len(chunks) // blocks) * total / len(some)
        return busy + blocks * chip.cycles(chip.scheduler.per_block)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Chunks dealt to blocks; indices and updates go to all that they may concern."""
        m, data = scattering(args), args.operands[0].nbytes
        chunks, (index, updates) = _chunks(m, tiling), (args.operands[i] for i in (1, 2))
        if m.index == 2:
            index, updates = updates, index
        seen = sum(m.seen(c, tiling["picks"]) for c in chunks)
        moved = sum(c.end - c.first for c in chunks) * m.row_bytes
        traffic = {
            0: Traffic(data, data),
            m.index: Traffic(min(seen, index.nbytes), seen),
            m.updates: Traffic(min(moved, updates.nbytes), moved),
            3: Traffic(data, data),
        }
        n = _blocks(chunks, tiling)
        shares = [deal([len(chunks)], n, b)[0] for b in range(n)]
        keys = [
            tuple((c.high - c.low, c.end - c.first) for c in chunks[s.start : s.start + s.count])
            for s in shares
        ]
        return Plan(tiling, n, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """The block's chunks."""
        m = scattering(args)
        chunks, run = _chunks(m, tiling), _Run(k, m, tiling)
        share = deal([len(chunks)], _blocks(chunks, tiling), block)[0]
        for c in chunks[share.start : share.start + share.count]:
            yield from run.chunk(c)


def _issue(m: Scattering, count: int, chip: ChipSpec) -> int:
    """Scalar cycles to look at so many picks."""
    return SCAN_INSTRUCTIONS * len(m.picks.extents) * count * chip.core.scalar.issue


def _cycles(m: Scattering, c: Part, count: int) -> int:
    """The scalar unit's time for a chunk's own of `count` picks, rounded up.

    An element is loaded and stored by the scalar unit; to combine it, what is there is loaded too.
    """
    own = ceil(count * c.share) * m.picks.width
    return ceil(own * SCALAR_COPY * (1 if m.reduction == "none" else 2))


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, m: Scattering, tiling: Tiling) -> None:
        self.k, self.m, self.step = k, m, tiling["picks"]
        self.dtype = m.args.operands[0].dtype.np
        self.data, self.out = (m.rows(i, m.picks.rows) for i in (0, 3))
        self.index, self.updates = m.index_rows(), m.rows(m.updates, m.picks.count)
        self.tables = k.queue("UB", tiling["rows"] * m.row_bytes, 2, Pipe.MTE2, Pipe.MTE3)
        self.beside = m.index_bytes(self.step)
        room = self.beside + self.step * m.row_bytes
        self.chosen = k.queue("UB", room, 2, Pipe.MTE2, Pipe.V)
        self.here, self.done = k.flag_id(), k.flag_id()

    def chunk(self, c: Part) -> Iterator[Instr]:
        """Load a chunk, put in what is its own, store it."""
        k = self.k
        place = yield from self.tables.alloc()
        table = place.region((c.high - c.low, self.m.picks.width), self.dtype)
        yield k.load(table, self.data[c.low : c.high])
        yield k.set_flag(Pipe.MTE2, Pipe.V, self.here)
        yield k.wait_flag(Pipe.MTE2, Pipe.V, self.here)
        for i in k.loop(-(-(c.end - c.first) // self.step)):
            first = c.first + i * self.step
            yield from self._tile(c, table, first, min(c.end, first + self.step))
        yield k.set_flag(Pipe.V, Pipe.MTE3, self.done)
        yield k.wait_flag(Pipe.V, Pipe.MTE3, self.done)
        yield self.tables.enque()
        yield self.tables.deque()
        yield k.store(self.out[c.low : c.high], table)
        yield self.tables.free()

    def _tile(self, c: Part, table: Region, first: int, end: int) -> Iterator[Instr]:
        """The picks first … end - 1: their indices and updates, then one by one."""
        k, picks = self.k, self.m.picks
        place = yield from self.chosen.alloc()
        a, b = picks.entries(first, end)
        index = place.region((b - a, len(picks.extents)), self.index.dtype)
        yield k.load(index, self.index[a:b])
        rows = place.region((end - first, picks.width), self.dtype, self.beside)
        yield k.load(rows, self.updates[first:end])
        yield self.chosen.enque()
        yield self.chosen.deque()
        effect = None
        if k.functional:
            combine = COMBINE.get(self.m.reduction)
            effect = ScatterPicked(table, rows, index, picks, first, c.low, combine)
        issue, cycles = _issue(self.m, end - first, k.chip), _cycles(self.m, c, end - first)
        tail = k.chip.core.vector.tail
        yield Instr(isa.Kind.LOCAL, Pipe.V, "scatter", issue, cycles, tail, effect, serial=True)
        yield self.chosen.free()
