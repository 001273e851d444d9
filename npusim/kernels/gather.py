"""Gather: rows of a table, one DMA per index, at addresses that the scalar unit computes.

The table is (outer, V, inner), the output (outer, indices, inner). Indices come to UB first; the
next tile's are fetched while this tile's rows move. Time does not depend on the indices' values.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.grid import deal
from npusim.kernels.lang import ALIGN, Alloc, Kernel, TileKernel
from npusim.kernels.strided import Grid, Job, chunk_of, grids
from npusim.program import cost, effects, isa
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

INDEX_INSTRUCTIONS = (
    24  #: scalar instructions per index (measured: 48.7 cycles, issuing one in 2 cycles)
)
HEAD_SHARE = 0.75  #: of mte2.head, for a row's own command behind another (measured: 78 cycles)
CACHED = 100 * 1024  #: bytes of a table that is copied to UB once (gather_v2.py)
MAX_ROWS = 64  #: rows of one gather command: the scalar unit runs ahead of the DMA by one
UB_SHARE = 0.3  #: of UB, for one slot of rows


def _table(args: KernelArgs) -> Region:
    """The data as (outer, V, inner)."""
    spec = args.operands[0]
    axis = int(args.get("axis", 0)) % len(spec.shape)
    shape = (prod(spec.shape[:axis]), spec.shape[axis], prod(spec.shape[axis + 1 :]))
    return Region.dense(GM, 0, 0, shape, spec.dtype.np)


def _indices(args: KernelArgs) -> Region:
    spec = args.operands[1]
    return Region.dense(GM, 1, 0, (prod(spec.shape),), spec.dtype.np)


@lru_cache(maxsize=256)
def _grids(args: KernelArgs, rows: int, limit: int) -> tuple[Grid, ...]:
    """The output (outer, indices, inner) in tiles of at most `rows` rows and `limit` bytes."""
    table, n = _table(args), _indices(args).size
    outer, _, inner = table.shape
    out = Region.dense(GM, len(args.inputs), 0, (outer, n, inner), table.dtype)
    if not out.size:
        return ()
    whole = Job(out, None)
    chunk = chunk_of(whole, limit)
    k = min(chunk[1], rows)
    return tuple(grids(whole, (min(chunk[0], max(1, rows // k)), k, chunk[2])))


def _cut(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> tuple[Grid, ...]:
    return _grids(args, tiling["rows"], int(chip.core.ub.size * UB_SHARE))


def _blocks(cut: tuple[Grid, ...], tiling: Tiling) -> int:
    return max(1, min(tiling["blocks"], sum(prod(g.counts) for g in cut)))


def row_port(chip: ChipSpec, table: int, nbytes: int, rows: int) -> float:
    """Bytes per cycle of MTE2 for `rows` rows of `nbytes` in all that are a command each.

    Rows shorter than a 32 B block come from a copy of the table on chip, as do those of a small
    table (of `table` bytes): they are mere bursts.
    """
    mte2 = chip.core.mte2
    if nbytes < rows * ALIGN or table <= CACHED:
        return cost.dma_cap(nbytes, rows, mte2.ub_rate, mte2.burst, mte2.min_burst)
    return nbytes / (rows * HEAD_SHARE * mte2.head + nbytes / mte2.ub_rate)


@kernel("Gather")
class Gather(TileKernel):
    """Rows (or slices along any axis) of a table, picked by int32 or int64 indices."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Plain layouts and integer indices."""
        if args.op_type != "Gather":
            return f"operator {args.op_type}"
        if any(s.layout is not Layout.ND for s in args.operands):
            return "a blocked layout"
        if args.operands[1].dtype not in (DType.INT32, DType.INT64):
            return f"indices of type {args.operands[1].dtype.value}"
        return ""

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Rows a tile: all cores busy, or fewer blocks with more rows each."""
        total = max(1, _table(args).shape[0] * _indices(args).size)
        even = min(MAX_ROWS, -(-total // chip.vector_cores()))
        for rows in sorted({even, 8, 16, MAX_ROWS}):
            yield {"rows": rows, "blocks": chip.vector_cores()}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """Cycles of the busiest block: the scalar unit's, or the DMA's."""
        cut = _cut(args, chip, tiling)
        blocks = _blocks(cut, tiling)
        mte2, mte3 = chip.core.mte2, chip.core.mte3
        rate = min(mte3.rate, chip.l2_rate / blocks)
        busy = last = 0.0
        for g in cut:
            nbytes, rows = g.tile(0)[0].nbytes, g.chunk[0] * g.chunk[1]
            issue = rows * INDEX_INSTRUCTIONS * chip.core.scalar.issue
            fetch = nbytes / row_port(chip, args.operands[0].nbytes, nbytes, rows)
            move = 2 * mte2.head + max(nbytes / rate, rows * mte3.burst, fetch)  # indices, rows
            busy += -(-prod(g.counts) // blocks) * max(issue, move)
            last = max(last, 2 * move)
        return busy + last + blocks * chip.cycles(chip.scheduler.per_block)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Tiles dealt to blocks."""
        cut = _cut(args, chip, tiling)
        blocks = _blocks(cut, tiling)
        rows = sum(g.job.dst.nbytes for g in cut)
        size = args.operands[1].dtype.size
        fetched = sum(prod(g.counts) * g.chunk[1] * size for g in cut)
        keys = [
            tuple(s.count for s in deal([prod(g.counts) for g in cut], blocks, b))
            for b in range(blocks)
        ]
        traffic = {
            0: Traffic(min(rows, args.operands[0].nbytes), rows),
            1: Traffic(min(fetched, args.operands[1].nbytes), fetched),
            len(args.inputs): Traffic(rows, rows),
        }
        return Plan(tiling, blocks, traffic if cut else {}, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """The block's tiles."""
        cut = _cut(args, k.chip, tiling)
        shares = deal([prod(g.counts) for g in cut], _blocks(cut, tiling), block)
        rows = _Rows(k, args, cut)
        for g, share in zip(cut, shares, strict=True):
            if share.count:
                yield from rows.fetch(g, share.start)
            for i in k.loop(share.count):
                if i + 1 < share.count:
                    yield from rows.fetch(g, share.start + i + 1)
                yield from rows.tile(g, share.start + i)


class _Rows:
    """Queues of a gather. Indices and rows both come through MTE2, one after the other."""

    def __init__(self, k: Kernel, args: KernelArgs, cut: tuple[Grid, ...]) -> None:
        self._k = k
        self._table, self._indices = _table(args), _indices(args)
        slot = max((g.job.slot_bytes(g.chunk) for g in cut), default=0)
        most = max((g.chunk[1] for g in cut), default=0)
        self._out = k.queue("UB", slot, 2, Pipe.MTE2, Pipe.MTE3)
        self._picks = [k.alloc("UB", most * self._indices.dtype.itemsize) for _ in range(2)]
        self._flags = [k.flag_id() for _ in range(2)]
        self._fetched = self._used = 0

    def _start(self, dst: Region) -> tuple[int, int, int]:
        """Where in (outer, indices, inner) a tile of the output begins."""
        inner = self._table.shape[2]
        rest, column = divmod(dst.offset // dst.dtype.itemsize, inner)
        outer, first = divmod(rest, self._indices.size)
        return outer, first, column

    def _slot(self, alloc: Alloc, n: int) -> Region:
        return alloc.region((n,), self._indices.dtype)

    def fetch(self, g: Grid, index: int) -> Iterator[Instr]:
        """Load a tile's indices; the flag (MTE2 to itself) holds its gather until they are here."""
        dst, _ = g.tile(index)
        _, first, _ = self._start(dst)
        n, slot = dst.shape[1], self._fetched % 2
        self._fetched += 1
        picks = self._slot(self._picks[slot], n)
        yield self._k.load(picks, self._indices[first : first + n])
        yield self._k.set_flag(Pipe.MTE2, Pipe.MTE2, self._flags[slot])

    def tile(self, g: Grid, index: int) -> Iterator[Instr]:
        """Gather one tile and store it."""
        dst, _ = g.tile(index)
        outer, _, column = self._start(dst)
        o, n, width = dst.shape
        slot = self._used % 2
        self._used += 1
        room = yield from self._out.alloc()
        unit = max(1, ALIGN // dst.dtype.itemsize)
        rows = room.region((o, n, -(-width // unit) * unit), dst.dtype)[:, :, :width]
        table = self._table[outer : outer + o, :, column : column + width]
        yield self._k.wait_flag(Pipe.MTE2, Pipe.MTE2, self._flags[slot])
        yield _gather_rows(self._k, rows, table, self._slot(self._picks[slot], n))
        yield self._out.enque()
        yield self._out.deque()
        yield self._k.store(dst, rows)
        yield self._out.free()


def _gather_rows(k: Kernel, dst: Region, table: Region, indices: Region) -> Instr:
    """MTE2: a command per row, each issued by the scalar unit once it knows the address."""
    mte2 = k.chip.core.mte2
    rows = dst.shape[0] * dst.shape[1]
    cap = row_port(k.chip, k.args.operands[0].nbytes, dst.nbytes, rows)
    issue = rows * INDEX_INSTRUCTIONS * k.chip.core.scalar.issue
    effect = effects.GatherRows(dst, table, indices) if k.functional else None
    return isa.gm_transfer(
        Pipe.MTE2, "gather_gm", issue, mte2.head, dst.nbytes, cap, table.operand, False, effect
    )
