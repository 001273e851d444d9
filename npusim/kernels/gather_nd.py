"""GatherND and GatherElements: one DMA per row, at an address that the scalar unit computes.

A row is what an index tuple names, or, of GatherElements, one element: a burst of 32 B that lands
in a 32 B block of UB. Rows of less than a block, and those of a table small enough to be copied on
chip, are mere bursts, as in Gather. Time does not depend on the indices' values.
"""

from __future__ import annotations

from collections.abc import Iterator

from npusim.chip.spec import ChipSpec
from npusim.kernels.gather import INDEX_INSTRUCTIONS, MAX_ROWS, UB_SHARE, row_port
from npusim.kernels.lang import ALIGN, Kernel, TileKernel
from npusim.kernels.picking import as_rows, picks_of, refuse_picks
from npusim.program import isa
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.picks import GatherPicked
from npusim.program.region import Region


def _pitch(width: int, itemsize: int) -> int:
    """Elements from row to row in UB: whole 32 B blocks."""
    unit = max(1, ALIGN // itemsize)
    return -(-width // unit) * unit


def _share(args: KernelArgs, tiling: Tiling, block: int) -> tuple[int, int]:
    count, n = picks_of(args).count, tiling["blocks"]
    return count * block // n, count * (block + 1) // n


@kernel("GatherND")
class GatherND(TileKernel):
    """GatherND (`batch_dims`) and GatherElements (`axis`) with int32 or int64 indices.

    Tiling: `rows` picks by `part` elements of their rows a tile; picks dealt to `blocks`.
    """

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Plain layouts and integer indices; of elements, as many as the data has beside `axis`."""
        if args.op_type not in ("GatherND", "GatherElements"):
            return f"operator {args.op_type}"
        return refuse_picks(args)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Rows a tile: all cores busy, or fewer blocks with more rows each."""
        picks, size = picks_of(args), args.operands[0].dtype.size
        room = int(chip.core.ub.size * UB_SHARE)
        part = min(picks.width, room // ALIGN * ALIGN // size)
        index = len(picks.extents) * args.operands[1].dtype.size
        most = min(MAX_ROWS, room // (_pitch(part, size) * size + index))
        most_blocks = min(picks.count, chip.vector_cores())
        for blocks in sorted({1, min(4, most_blocks), most_blocks}):
            rows = max(1, min(most, -(-picks.count // blocks)))
            yield {"rows": rows, "part": part, "blocks": blocks}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """Cycles of the busiest block: the scalar unit's, or the DMA's."""
        picks, size = picks_of(args), args.operands[0].dtype.size
        rows, parts = -(-picks.count // tiling["blocks"]), -(-picks.width // tiling["part"])
        issue = rows * parts * _index_cycles(args, chip)
        nbytes = min(rows, tiling["rows"]) * picks.width * size
        rate = row_port(chip, args.operands[0].nbytes, nbytes, min(rows, tiling["rows"]) * parts)
        mte2, mte3 = chip.core.mte2, chip.core.mte3
        tiles = -(-rows // tiling["rows"]) * parts
        store = rows * max(picks.width * size / mte3.rate, parts * mte3.burst)
        move = tiles * 2 * mte2.head + max(rows * picks.width * size / rate, store)
        return max(issue, move) + tiling["blocks"] * chip.cycles(chip.scheduler.per_block)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Picks dealt to blocks; the indices once for each part of the rows."""
        picks, (data, index) = picks_of(args), args.operands[:2]
        moved = picks.count * picks.width * data.dtype.size
        parts = -(-picks.width // tiling["part"])
        shares = [_share(args, tiling, b) for b in range(tiling["blocks"])]
        traffic = {
            0: Traffic(min(moved, data.nbytes), moved),
            1: Traffic(index.nbytes, index.nbytes * parts),
            2: Traffic(moved, moved),
        }
        return Plan(tiling, len(shares), traffic, group_blocks([b - a for a, b in shares]))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """The block's picks, tile by tile."""
        run, width, step = _Run(k, args, tiling), picks_of(args).width, tiling["rows"]
        a, b = _share(args, tiling, block)
        for column in range(0, width, tiling["part"]):
            end = min(width, column + tiling["part"])
            for i in k.loop(-(-(b - a) // step)):
                first = a + i * step
                yield from run.tile(first, min(b, first + step), column, end)


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling) -> None:
        self.k, self.args, self.picks = k, args, picks_of(args)
        p, (data, index) = self.picks, args.operands[:2]
        self.table, self.dtype = as_rows(args, 0, p.rows, p.width), data.dtype.np
        self.index = as_rows(args, 1, p.count, len(p.extents))
        self.out = as_rows(args, 2, p.count, p.width)
        self.pitch = _pitch(tiling["part"], data.dtype.size)
        rows = tiling["rows"]
        self.rows = k.queue("UB", rows * self.pitch * data.dtype.size, 2, Pipe.MTE2, Pipe.MTE3)
        self.chosen = k.queue(
            "UB", rows * len(p.extents) * index.dtype.size, 2, Pipe.MTE2, Pipe.MTE2
        )

    def tile(self, first: int, end: int, column: int, stop: int) -> Iterator[Instr]:
        """Rows of the picks first … end - 1: their indices, the rows, the store."""
        n = end - first
        index = (yield from self.chosen.alloc()).region(
            (n, len(self.picks.extents)), self.index.dtype
        )
        yield self.k.load(index, self.index[first:end])
        yield self.chosen.enque()
        yield self.chosen.deque()
        room = yield from self.rows.alloc()
        rows = room.region((n, self.pitch), self.dtype)[:, : stop - column]
        yield self._gather(rows, index, first, column)
        yield self.chosen.free()
        yield self.rows.enque()
        yield self.rows.deque()
        yield self.k.store(self.out[first:end, column:stop], rows)
        yield self.rows.free()

    def _gather(self, rows: Region, index: Region, first: int, column: int) -> Instr:
        """MTE2: a command per row, each issued once its address is known."""
        k, n = self.k, rows.shape[0]
        cap = row_port(k.chip, self.args.operands[0].nbytes, rows.nbytes, n)
        table = self.table[:, column : column + rows.shape[1]]
        effect = GatherPicked(rows, table, index, self.picks, first) if k.functional else None
        issue = n * _index_cycles(self.args, k.chip)
        head = k.chip.core.mte2.head
        return isa.gm_transfer(
            Pipe.MTE2, "gather_gm", issue, head, rows.nbytes, cap, 0, False, effect
        )


def _index_cycles(args: KernelArgs, chip: ChipSpec) -> int:
    """Scalar cycles from a pick's indices to the command of its row."""
    return len(picks_of(args).extents) * INDEX_INSTRUCTIONS * chip.core.scalar.issue
