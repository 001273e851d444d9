"""UnsortedSegmentSum: rows are added into the output row that their index names.

Each row leaves by one atomic add, and the next waits for it: adds to the same address must not
overtake each other. Rows of more than a 32 B block are loaded many at a time, shorter ones one by
one (double-buffered): the load's latency shows. The output must have been cleared.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.gather import INDEX_INSTRUCTIONS
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.rows import UB_SHARE, padded
from npusim.kernels.stage import Loading
from npusim.program import cost, effects, isa
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

BLOCK = 8  #: fp32 elements of a 32 B block
#: Cycles after which L2 takes the next add to the same address (measured: 4096 rows of 3 KB into
#: 2 segments, 22 cycles each, the blocks one behind the other).
SAME_ADDRESS = 37
MAX_ROWS = 64  #: indices fetched at a time


def _sizes(args: KernelArgs) -> tuple[int, int]:
    """(rows, elements of a row)."""
    rows = prod(args.operands[1].shape)
    return rows, prod(args.operands[0].shape) // max(1, rows)


def _share(rows: int, blocks: int, block: int) -> tuple[int, int]:
    r0, r1 = (rows * (block + j) // blocks for j in (0, 1))
    return r0, r1


@kernel("SegmentSum")
class SegmentSum(TileKernel):
    """Data (indices…, row), indices (int32) → (segments, row), fp32."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        if args.op_type != "UnsortedSegmentSum" or len(args.inputs) != 2 or args.epilogue:
            return f"no program for {args.op_type}"
        data, indices = args.operands[:2]
        if any(o.layout is not Layout.ND for o in args.operands):
            return "a blocked layout"
        if data.dtype is not DType.FLOAT32 or indices.dtype is not DType.INT32:
            return f"{data.dtype.value} rows with {indices.dtype.value} indices"
        return "" if data.nbytes else "an empty tensor"

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        rows, width = _sizes(args)
        room = chip.core.ub.size * UB_SHARE
        blocks = min(rows, chip.vector_cores())
        many = min(MAX_ROWS, int(room / 2 / (padded(width, BLOCK) * 4 + 8)), -(-rows // blocks))
        if many < 1:
            return
        yield {"rows": many, "blocks": blocks, "single": int(width <= BLOCK)}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        rows, _ = _sizes(args)
        return rows / tiling["blocks"] * INDEX_INSTRUCTIONS * chip.core.scalar.issue

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        rows, width = _sizes(args)
        data, indices, out = args.operands
        moved = rows * width * 4
        traffic = {
            0: Traffic(data.nbytes, data.nbytes),
            1: Traffic(indices.nbytes, indices.nbytes),
            2: Traffic(min(out.nbytes, moved), moved),
        }
        n = tiling["blocks"]
        shares = [_share(rows, n, b) for b in range(n)]
        return Plan(tiling, n, traffic, group_blocks([b - a for a, b in shares]))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        run = _Run(k, args, tiling)
        r0, r1 = _share(_sizes(args)[0], tiling["blocks"], block)
        step = tiling["rows"]
        for i in k.loop(-(-(r1 - r0) // step)):
            yield from run.tile(r0 + i * step, min(r1, r0 + (i + 1) * step))


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling) -> None:
        self.k, (self.rows, self.width) = k, _sizes(args)
        self.pitch = padded(self.width, BLOCK)
        self.one_by_one = bool(tiling["single"])
        step = 1 if self.one_by_one else tiling["rows"]
        self.queue = k.queue("UB", step * self.pitch * 4, 2, Pipe.MTE2, Pipe.MTE3)
        self.picks = k.queue("UB", tiling["rows"] * 4, 2, Pipe.MTE2, Pipe.MTE3)
        self.data = Region.dense(GM, 0, 0, (self.rows, self.width), args.operands[0].dtype.np)
        self.indices = Region.dense(GM, 1, 0, (self.rows,), args.operands[1].dtype.np)
        segments = args.operands[2].shape[0]
        self.out = Region.dense(GM, 2, 0, (segments, self.width), self.data.dtype)
        self.flag = k.flag_id()
        self.others = min(tiling["blocks"], k.chip.vector_cores())

    def tile(self, r0: int, r1: int) -> Iterator[Instr]:
        """Rows [r0, r1): their indices, then row after row."""
        place = yield from self.picks.alloc()
        picks = place.region((r1 - r0,), self.indices.dtype)
        yield self.k.load(picks, self.indices[r0:r1])
        yield self.picks.enque()
        yield self.picks.deque()
        if self.one_by_one:
            for r in self.k.loop(r1 - r0):
                rows = yield from self._load(r0 + r, r0 + r + 1)
                yield from self._add(rows[0], picks[r : r + 1])
                yield self.queue.free()
        else:
            rows = yield from self._load(r0, r1)
            for r in self.k.loop(r1 - r0):
                yield from self._add(rows[r], picks[r : r + 1])
            yield self.queue.free()
        yield self.picks.free()

    def _load(self, r0: int, r1: int) -> Loading:
        place = yield from self.queue.alloc()
        rows = place.region((r1 - r0, self.pitch), self.data.dtype)[:, : self.width]
        yield self.k.load(rows, self.data[r0:r1])
        yield self.queue.enque()
        yield self.queue.deque()
        return rows

    def _add(self, row: Region, pick: Region) -> Iterator[Instr]:
        """One atomic add, and wait for it."""
        yield self.k.memo(("add",), partial(self._command, row, pick))
        yield self.k.set_flag(Pipe.MTE3, Pipe.MTE3, self.flag)
        yield self.k.wait_flag(Pipe.MTE3, Pipe.MTE3, self.flag)

    def _command(self, row: Region, pick: Region) -> Instr:
        mte3 = self.k.chip.core.mte3
        cap = cost.dma_cap(row.nbytes, 1, mte3.rate, mte3.burst, mte3.min_burst)
        effect = effects.ScatterAdd(self.out, row, pick) if self.k.functional else None
        issue = INDEX_INSTRUCTIONS * self.k.chip.core.scalar.issue
        waiting = self.others * SAME_ADDRESS / self.out.shape[0]  # for their adds, on average
        head = max(mte3.head, round(waiting))
        return isa.gm_transfer(
            Pipe.MTE3, "atomic_add", issue, head, row.nbytes, cap, 2, True, effect
        )
