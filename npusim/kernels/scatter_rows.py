"""ScatterND and TensorScatter of rows: every block copies its rows of a table, then writes to some.

A block owns a run of rows, so that no two write to one. It goes through all picks that may name one
of them, in order: the scalar unit looks at every index; a row of its own is brought to UB by a DMA
at an address that the scalar unit computes, and leaves by another. With a reduction, what stands
there is brought too, once the rows before it are stored, and the vector unit combines them; rows
that come twice among the picks of a tile are combined in UB, one after the other.

Time does not depend on the indices' values: a block takes as many picks as fall to it when they are
spread evenly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.kernels.gather import HEAD_SHARE, INDEX_INSTRUCTIONS, row_port
from npusim.kernels.lang import ALIGN, Alloc, Kernel, TileKernel
from npusim.kernels.picking import SCAN_INSTRUCTIONS, Part, Scattering, refuse_scatter, scattering
from npusim.program import cost, isa
from npusim.program.isa import Effect, Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.picks import CombineRows, OwnRows, Picks, ScatterPicked
from npusim.program.region import GM, Region

COPY_SHARE, ROWS_SHARE = 0.1, 0.33  #: of UB, for one of two slots of a copied piece, and of rows
FEW_ROWS = (4, 16, 64)  #: rows that a tile holds at least, where they are cut into columns
MOST_PICKS = 64  #: of a tile
COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _pitch(m: Scattering, width: int) -> int:
    """Elements from row to row in UB: whole 32 B blocks."""
    unit = max(1, ALIGN // m.size)
    return -(-width // unit) * unit


def _parts(m: Scattering, tiling: Tiling) -> list[Part]:
    """The rows of each block."""
    n, rows = tiling["blocks"], m.picks.rows
    return [m.part(rows * b // n, rows * (b + 1) // n) for b in range(n)]


def _cuts(m: Scattering, tiling: Tiling) -> int:
    """Pieces of a row."""
    return -(-m.picks.width // tiling["part"])


@kernel("ScatterRows")
class ScatterRows(TileKernel):
    """ScatterND (`reduction`), TensorScatter (`axis`, `mode`) whose rows are 32 B and more.

    Tiling: tiles of `picks` by `part` columns; table rows dealt to `blocks`.
    """

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Integer indices; rows of a block; reductions of what the vector unit computes with."""
        reason = refuse_scatter(args, chip)
        if not reason and scattering(args).row_bytes < ALIGN:
            return "rows of less than 32 B"
        return reason

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """All cores or a few; whole rows, or pieces of more of them."""
        m, seen = scattering(args), set()
        room = int(chip.core.ub.size * ROWS_SHARE) // (1 if m.reduction == "none" else 2)
        unit, cores = max(1, ALIGN // m.size), min(m.picks.rows, chip.vector_cores())
        for least in FEW_ROWS:
            part = min(m.picks.width, room // least // ALIGN * unit)
            if part < 1:
                continue
            picks = min(MOST_PICKS, m.picks.count, room // (_pitch(m, part) * m.size))
            if m.index_bytes(picks) > int(chip.core.ub.size * COPY_SHARE / 2):
                continue
            for blocks in sorted({min(4, cores), cores}):
                if (key := (part, blocks)) not in seen:
                    seen.add(key)
                    yield {"picks": picks, "part": part, "blocks": blocks}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """The busiest block: its copy, then its tiles, which wait for each other in a reduction."""
        m, core = scattering(args), chip.core
        part = max(_parts(m, tiling), key=lambda p: (p.end - p.first, p.high - p.low))
        latency = chip.l2.read_latency + chip.hbm.latency
        tiles = -(-(part.end - part.first) // tiling["picks"]) * _cuts(m, tiling)
        own, nbytes = m.own(part, part.first, part.end), m.moved(part, part.first, part.end)
        copied = (part.high - part.low) * m.row_bytes / min(core.mte3.rate, core.mte2.ub_rate)
        rows = own * _cuts(m, tiling) * HEAD_SHARE * (core.mte2.head + core.mte3.head)
        moves = rows + nbytes / core.mte2.ub_rate + nbytes / core.mte3.rate
        steps = 2 if m.reduction == "none" else 4
        waits = tiles * steps * (latency + core.mte2.head) / (2 if steps == 2 else 1)
        issue = _cuts(m, tiling) * _issue(m, part, part.first, part.end, chip)
        launched = tiling["blocks"] * chip.cycles(chip.scheduler.per_block)
        return copied + max(issue, moves + waits) + launched

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """The table once; indices by every block that they may concern; updates by their owner."""
        m, parts = scattering(args), _parts(scattering(args), tiling)
        data, index = args.operands[0].nbytes, args.operands[m.index].nbytes
        seen = _cuts(m, tiling) * sum(m.seen(p, tiling["picks"]) for p in parts)
        moved = sum(m.moved(p, p.first, p.end) for p in parts)
        again = 1 if m.reduction == "none" else 2
        traffic = {
            0: Traffic(data, data),
            m.index: Traffic(min(seen, index), seen),
            m.updates: Traffic(min(moved, args.operands[m.updates].nbytes), moved),
            3: Traffic(data, data + again * moved),
        }
        keys = [(p.high - p.low, p.end - p.first) for p in parts]
        return Plan(tiling, len(parts), traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """The block's copy, then its picks, tile by tile."""
        m = scattering(args)
        part, run = _parts(m, tiling)[block], _Run(k, m, tiling)
        yield from run.copy(part)
        for left in range(0, m.picks.width, tiling["part"]):
            columns = slice(left, min(m.picks.width, left + tiling["part"]))
            for first in range(part.first, part.end, tiling["picks"]):
                yield from run.tile(part, columns, first, min(part.end, first + tiling["picks"]))


def _issue(m: Scattering, part: Part, first: int, end: int, chip: ChipSpec) -> int:
    """Scalar cycles to look at picks, and to issue the commands for a block's own."""
    scan = SCAN_INSTRUCTIONS * len(m.picks.extents) * (end - first)
    return (scan + m.own(part, first, end) * INDEX_INSTRUCTIONS) * chip.core.scalar.issue


@dataclass(frozen=True)
class _Tile:
    """Picks of a tile: whose block, how many are its own, and what effects are given of them."""

    part: Part
    own: int
    given: tuple[Region, Picks, int, int]


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, m: Scattering, tiling: Tiling) -> None:
        self.k, self.m, self.part = k, m, tiling["part"]
        args, p, ub = m.args, m.picks, k.chip.core.ub.size
        self.dtype, self.combine = args.operands[0].dtype.np, COMBINE.get(m.reduction)
        self.piece = max(ALIGN, int(ub * COPY_SHARE) // ALIGN * ALIGN) // m.size
        self.pitch = _pitch(m, self.part)
        self.copies = k.queue("UB", self.piece * m.size, 2, Pipe.MTE2, Pipe.MTE3)
        self.chosen = k.queue("UB", m.index_bytes(tiling["picks"]), 2, Pipe.MTE2, Pipe.MTE3)
        room = tiling["picks"] * self.pitch * m.size
        reader = Pipe.V if self.combine else Pipe.MTE3
        self.rows = k.queue("UB", room, 2, Pipe.MTE2, reader)
        if self.combine:
            self.old = k.queue("UB", room, 2, Pipe.MTE2, Pipe.MTE3)
        self.known, self.stored, self.made = (k.flag_id() for _ in range(3))
        self.index, self.updates = m.index_rows(), m.rows(m.updates, p.count)
        self.out = m.rows(3, p.rows)

    def copy(self, part: Part) -> Iterator[Instr]:
        """The block's rows as they are."""
        k, width = self.k, self.m.picks.width
        flat = [Region.dense(GM, i, 0, (prod(self.out.shape),), self.dtype) for i in (0, 3)]
        first, end = part.low * width, part.high * width
        for i in k.loop(-(-(end - first) // self.piece)):
            at = slice(first + i * self.piece, min(end, first + (i + 1) * self.piece))
            place = (yield from self.copies.alloc()).region((at.stop - at.start,), self.dtype)
            yield k.load(place, flat[0][at])
            yield self.copies.enque()
            yield self.copies.deque()
            yield k.store(flat[1][at], place)
            yield self.copies.free()

    def tile(self, part: Part, columns: slice, first: int, end: int) -> Iterator[Instr]:
        """The picks first … end - 1: their indices, their rows, the stores."""
        k, m = self.k, self.m
        a, b = m.picks.entries(first, end)
        place = yield from self.chosen.alloc()
        index = place.region((b - a, len(m.picks.extents)), self.index.dtype)
        yield k.load(index, self.index[a:b])
        yield k.set_flag(Pipe.MTE2, Pipe.MTE2, self.known)  # addresses hang on the indices
        yield k.wait_flag(Pipe.MTE2, Pipe.MTE2, self.known)
        tile = _Tile(part, m.own(part, first, end), (index, m.picks, first, part.low))
        rows = self._rows((yield from self.rows.alloc()), end - first, columns)
        source, table = self.updates[first:end, columns], self.out[part.low : part.high, columns]
        fetch = OwnRows(rows, source, *tile.given, part.high)
        yield self._fetch(tile, m.updates, rows, fetch, _issue(m, part, first, end, k.chip))
        yield self.rows.enque()
        if self.combine is None:
            yield self.rows.deque()
            yield k.set_flag(Pipe.MTE3, Pipe.MTE3, self.stored)  # no row overtakes another
            yield k.wait_flag(Pipe.MTE3, Pipe.MTE3, self.stored)
            yield from self._store(tile, table, rows)
            yield self.rows.free()
        else:
            yield from self._combined(tile, table, rows)
        yield self.chosen.free()

    def _combined(self, tile: _Tile, table: Region, rows: Region) -> Iterator[Instr]:
        """What stands in the table, combined with the rows, goes back."""
        k, n = self.k, rows.shape[0]
        old = self._rows((yield from self.old.alloc()), n, slice(0, rows.shape[1]))
        yield k.set_flag(Pipe.MTE3, Pipe.MTE2, self.stored)  # the rows before it are in GM
        yield k.wait_flag(Pipe.MTE3, Pipe.MTE2, self.stored)
        issue = tile.own * INDEX_INSTRUCTIONS * k.chip.core.scalar.issue
        yield self._fetch(
            tile, 3, old, OwnRows(old, table, *tile.given, tile.part.high, table=True), issue
        )
        yield self.old.enque()
        yield k.set_flag(Pipe.MTE2, Pipe.V, self.known)
        yield k.wait_flag(Pipe.MTE2, Pipe.V, self.known)
        yield self.rows.deque()
        yield self._combine(tile, old, rows, table.shape[0])
        yield self.rows.free()
        yield k.set_flag(Pipe.V, Pipe.MTE3, self.made)
        yield k.wait_flag(Pipe.V, Pipe.MTE3, self.made)
        yield self.old.deque()
        yield from self._store(tile, table, old)
        yield self.old.free()

    def _rows(self, place: Alloc, n: int, columns: slice) -> Region:
        """n rows in a slot."""
        return place.region((n, self.pitch), self.dtype)[:, : columns.stop - columns.start]

    def _fetch(self, tile: _Tile, operand: int, rows: Region, effect: Effect, issue: int) -> Instr:
        """MTE2: the block's own rows, a command each."""
        chip, nbytes = self.k.chip, tile.own * rows.shape[1] * self.m.size
        made = effect if self.k.functional else None
        if not tile.own:  # where picks are spread evenly, none of these is the block's
            return Instr(isa.Kind.LOCAL, Pipe.MTE2, "gather_gm", issue, 0, 0, made)
        cap = row_port(chip, self.m.args.operands[operand].nbytes, nbytes, tile.own)
        head = chip.core.mte2.head
        return isa.gm_transfer(
            Pipe.MTE2, "gather_gm", issue, head, nbytes, cap, operand, False, made
        )

    def _store(self, tile: _Tile, table: Region, rows: Region) -> Iterator[Instr]:
        """MTE3: a command for each row, as MTE2 has them."""
        k, mte3 = self.k, self.k.chip.core.mte3
        yield self.chosen.enque()
        yield self.chosen.deque()
        effect = ScatterPicked(table, rows, *tile.given, None) if k.functional else None
        issue = tile.own * INDEX_INSTRUCTIONS * k.chip.core.scalar.issue
        nbytes = tile.own * rows.shape[1] * self.m.size
        if not tile.own:
            yield Instr(isa.Kind.LOCAL, Pipe.MTE3, "scatter_gm", issue, 0, 0, effect)
            return
        cap = nbytes / (tile.own * HEAD_SHARE * mte3.head + nbytes / mte3.rate)
        yield isa.gm_transfer(
            Pipe.MTE3, "scatter_gm", issue, mte3.head, nbytes, cap, 3, True, effect
        )

    def _combine(self, tile: _Tile, old: Region, rows: Region, height: int) -> Instr:
        """V: an instruction for each row, in the order of the picks."""
        chip, effect = self.k.chip, None
        if self.k.functional and self.combine is not None:
            effect = CombineRows(old, rows, *tile.given, height, self.combine)
        bits = 8 * self.m.size
        repeats, count = cost.vector_repeats(chip, bits, rows[0])
        cycles = tile.own * cost.vector_cycles(chip, "binary", bits, repeats, count)
        issue, tail = tile.own * chip.core.scalar.issue, chip.core.vector.tail
        return Instr(isa.Kind.LOCAL, Pipe.V, "combine", issue, cycles, tail, effect, serial=True)
