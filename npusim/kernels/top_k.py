"""TopKD: rows sorted by the proposal instructions, after TBE's `top_k_d` for rows of up to 4096.

A batch of rows is loaded row by row and padded to multiples of 16 by scalar stores. vconcat makes
proposals of 8 fp16 fields out of it (the score twice, as it cannot be extracted, and the column in
two parts), vrpsort16 sorts 16 at a time, vmrgsort4 merges up to four sorted lists a level,
vextract takes the fields apart again, and both parts of the column are converted and added. Rows
leave one by one. There is one buffer of each kind, so that load, work and store take turns.

Every row is sorted whole, whatever k is.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.queues import Alloc
from npusim.program.isa import Instr, Kind, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

F16, F32, I32 = (np.dtype(t) for t in (np.float16, np.float32, np.int32))
MOST = 4096  #: columns that the assist numbers and UB sorts
STEP = 16  #: proposals that vconcat, vrpsort16 and vextract take at a time
FIELDS = 8  #: fp16 values of a proposal
LISTS = 4  #: that vmrgsort4 merges
ROW_BYTES = 50  #: of UB for an element of a row, in all buffers
X1, Y1, Y2, SCORE = 0, 1, 3, 4  #: fields
LOWEST = -65504.0  #: what rows are padded with

# Cycles, from vec_ratio of twelve shapes on a 310 (Ascend/workload_analysis): 31.4 a step of 16,
# 1.0 a proposal and merge level and 20 a row give eleven of them within 3 %, one 11 % too low.
FIELD = 2.0  #: vconcat or vextract of a step
SORT = 16.0  #: vrpsort16 of a step
MERGE = 1.0  #: vmrgsort4, a proposal
HEAD = 3.0  #: an instruction on one row
# … and from mte2_ratio, mte3_ratio and what is left of the time.
ROW = 14  #: the command that moves a row: the scalar unit's time
ROW_LOAD = 12  #: … MTE2's time, back to back
ROW_STORE = 10  #: … MTE3's time
SPLIT_BLOCK = 95  #: … MTE3's where rows end within a 32 B block of GM
SCALAR_STORE = 7.0  #: one element that pads a row


def _padded(columns: int) -> int:
    return -(-columns // STEP) * STEP


@kernel("TopKD")
class TopKD(TileKernel):
    """Tiling: blocks over rows; `batch` rows at a time."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """fp16 rows of up to 4096 in ND."""
        if args.op_type != "TopKD" or args.epilogue or len(args.outputs) != 2:
            return f"{args.op_type} with {len(args.outputs)} outputs"
        if any(o is None or o.layout is not Layout.ND for o in args.operands):
            return "takes ND tensors"
        kinds = [o.dtype for o in args.operands]
        if kinds != [DType.FLOAT16, DType.FLOAT16, DType.FLOAT16, DType.INT32]:
            return f"types {', '.join(k.value for k in kinds)}"
        x = args.operands[0]
        if x.shape[-1] > MOST or args.operands[1].shape != (2 * MOST,) or not x.nbytes:
            return (
                f"rows of {x.shape[-1]} (at most {MOST}) with an assist of {args.operands[1].shape}"
            )
        return ""

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """The source's only one."""
        rows, columns = _extent(args)
        padded = _padded(columns)
        batch = (chip.core.ub.size - 96 - 4 * padded) // (padded * ROW_BYTES)
        if batch > 0:
            blocks = min(rows, chip.vector_cores())
            yield {"blocks": blocks, "batch": min(batch, -(-rows // blocks))}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling: its rows' steps."""
        rows, columns = _extent(args)
        return rows * _padded(columns) * 4.0 / tiling["blocks"]

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Everything once; the used part of the assist once a batch, which hits L2."""
        traffic = {i: Traffic(o.nbytes, o.nbytes) for i, o in enumerate(args.operands)}
        shares = [_share(args, tiling, b) for b in range(tiling["blocks"])]
        columns = _extent(args)[1]
        batches = sum(-(-len(s) // tiling["batch"]) for s in shares)
        traffic[1] = Traffic(4 * columns, 4 * columns * batches)
        return Plan(tiling, tiling["blocks"], traffic, group_blocks([len(s) for s in shares]))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """Batch by batch."""
        run, rows = _Run(k, args, tiling), _share(args, tiling, block)
        for i in k.loop(-(-len(rows) // tiling["batch"])):
            first = rows.start + i * tiling["batch"]
            yield from run.batch(first, min(tiling["batch"], rows.stop - first))


def _extent(args: KernelArgs) -> tuple[int, int]:
    """Rows, columns."""
    x = args.operands[0]
    return x.nbytes // 2 // x.shape[-1], x.shape[-1]


def _share(args: KernelArgs, tiling: Tiling, block: int) -> range:
    rows, n = _extent(args)[0], tiling["blocks"]
    return range(*(rows * (block + i) // n for i in (0, 1)))


class _Run:
    """One block at work; `n` rows of `padded` columns."""

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling) -> None:
        self.k, self.args = k, args
        self.columns, self.top = args.operands[0].shape[-1], args.outputs[0].shape[-1]
        self.padded = _padded(self.columns)
        size = tiling["batch"] * self.padded
        # `data` takes the rows in and, after the sort, the values out; as the source has it.
        self.data = k.queue("UB", 2 * size, 1, Pipe.MTE2, Pipe.V)
        self.helper = k.queue("UB", 4 * self.padded, 1, Pipe.MTE2, Pipe.V)
        self.regions = [k.alloc("UB", 2 * FIELDS * size) for _ in range(2)]
        self.halves = [k.alloc("UB", 2 * size) for _ in range(2)]
        self.parts = [k.alloc("UB", 4 * size) for _ in range(2)]
        self.index = k.queue("UB", 4 * size, 1, Pipe.V, Pipe.MTE3)
        self.values = k.flag_id()

    def batch(self, first: int, n: int) -> Iterator[Instr]:
        """Rows [first, first + n)."""
        yield from self._load(first, n)
        place = yield from self._sorted(n)
        yield from self._extract(place, n)
        yield from self._store(first, n)

    def _vector(
        self, name: str, fn: Any, cycles: float, dst: Region, *srcs: Region, n: int = 0
    ) -> Instr:
        """dst = fn(*srcs) in that many cycles."""

        def build() -> Instr:
            walked = Region.dense("UB", -1, dst.offset, (128,), F16)
            spent = cycles - self.k.chip.core.vector.head
            return self.k.vec_by("copy", fn, walked, dst, *srcs, per_repeat=max(0.0, spent))

        return self.k.memo((name, n, dst.shape), build)

    def _load(self, first: int, n: int) -> Iterator[Instr]:
        """The rows, and the assist of their columns; padding."""
        k, columns, padded = self.k, self.columns, self.padded
        slot = yield from self.data.alloc()
        tile = slot.region((n, padded), F16)
        gm = Region.dense(GM, 0, 0, (_extent(self.args)[0], columns), F16)
        yield k.load(tile[:, :columns], gm[first : first + n])
        yield from self._row_commands(Pipe.MTE2, n, ROW_LOAD)
        yield self.data.enque()
        helper = yield from self.helper.alloc()
        table = Region.dense(GM, 1, 0, (2, MOST), F16)
        yield k.load(helper.region((2, padded), F16)[:, :columns], table[:, :columns])
        yield self.helper.enque()
        yield self.data.deque()
        yield self.helper.deque()
        if padded > columns:
            pads = n * (padded - columns)
            low = lambda x: np.full_like(x, LOWEST)  # noqa: E731
            edge = tile[:, columns:]
            yield self._vector("pads", low, pads * SCALAR_STORE, edge, edge, n=n)
            edge = helper.region((2, padded), F16)[:, columns:]
            zero = lambda x: np.zeros_like(x)  # noqa: E731
            yield self._vector("zeros", zero, 0.0, edge, edge)

    def _sorted(self, n: int) -> Generator[Instr, None, Alloc]:
        """Proposals of the rows, sorted; the place that they end in."""
        steps, source, other = self.padded // STEP, *self.regions
        proposals = self._proposals(source, n)
        tile, table = self.data.front.region((n, self.padded), F16), self.helper.front
        for field in (SCORE, Y2):
            cycles = HEAD + n * steps * FIELD
            yield self._vector(f"concat{field}", _same, cycles, proposals[:, :, field], tile, n=n)
        for half, field in enumerate((X1, Y1)):
            row = table.region((2, self.padded), F16)[half].expand(0).broadcast((n, self.padded))
            cycles = n * (HEAD + steps * FIELD)
            yield self._vector(f"concat{field}", _same, cycles, proposals[:, :, field], row, n=n)
        yield self.helper.free()
        size, cycles = STEP, HEAD + n * steps * SORT
        while True:
            dst = self._proposals(other, n)
            fn = _sorter(min(size, self.padded))
            yield self._vector(f"sort{size}", fn, cycles, dst, self._proposals(source, n), n=n)
            source, other = other, source
            if size >= self.padded:
                return source
            size, cycles = size * LISTS, n * self.padded * MERGE

    def _proposals(self, place: Alloc, n: int) -> Region:
        return place.region((n, self.padded, FIELDS), F16)

    def _extract(self, place: Alloc, n: int) -> Iterator[Instr]:
        """Values and columns; stores wait for both."""
        k, steps, proposals = self.k, self.padded // STEP, self._proposals(place, n)
        tile = self.data.front.region((n, self.padded), F16)
        cycles = HEAD + n * steps * FIELD
        yield self._vector("values", _same, cycles, tile, proposals[:, :, Y2], n=n)
        for i, field in enumerate((X1, Y1)):
            half = self.halves[i].region((n, self.padded), F16)
            cycles = n * (HEAD + steps * FIELD)
            yield self._vector(f"half{i}", _same, cycles, half, proposals[:, :, field], n=n)
        for i in (0, 1):
            half, part = (p[i].region((n, self.padded), t) for p, t in (
                (self.halves, F16), (self.parts, I32)))  # fmt: skip
            costs = k.chip.core.vector.costs["conv"].b32 or 0.0
            cycles = n * (HEAD + -(-self.padded // 64) * costs)
            yield self._vector(f"conv{i}", _whole, cycles, part, half, n=n)
        out = (yield from self.index.alloc()).region((n * self.padded,), I32)
        low, high = (p.region((n * self.padded,), I32) for p in self.parts)
        yield k.memo(("add", n), lambda: k.vec("add", out, low, high))
        yield k.set_flag(Pipe.V, Pipe.MTE3, self.values)
        yield self.index.enque()

    def _store(self, first: int, n: int) -> Iterator[Instr]:
        """Rows of values, then of columns."""
        k = self.k
        yield k.wait_flag(Pipe.V, Pipe.MTE3, self.values)
        tile = self.data.front.region((n, self.padded), F16)
        yield from self._store_rows(0, first, tile)
        # MTE3 has read `data`: V, which frees it for MTE2, waits for that.
        yield k.set_flag(Pipe.MTE3, Pipe.V, self.values)
        yield self.index.deque()
        yield from self._store_rows(1, first, self.index.front.region((n, self.padded), I32))
        yield self.index.free()
        yield k.wait_flag(Pipe.MTE3, Pipe.V, self.values)
        yield self.data.free()

    def _store_rows(self, output: int, first: int, tile: Region) -> Iterator[Instr]:
        k, n, dtype = self.k, tile.shape[0], tile.dtype
        whole = Region.dense(
            GM, len(self.args.inputs) + output, 0, (_extent(self.args)[0], self.top), dtype
        )
        split = self.top * dtype.itemsize % 32 != 0
        yield from self._row_commands(Pipe.MTE3, n, SPLIT_BLOCK if split else ROW_STORE)
        yield k.memo(
            ("store", output, n), lambda: k.store(whole[first : first + n], tile[:, : self.top])
        )

    def _row_commands(self, pipe: Pipe, n: int, cycles: int) -> Iterator[Instr]:
        """The commands that move n rows, one by one; their bytes are counted with the transfer."""
        build = lambda: Instr(Kind.LOCAL, pipe, "row", ROW, cycles)  # noqa: E731
        for _ in range(n):
            yield self.k.memo(("row", pipe, cycles), build)


def _same(x: np.ndarray) -> np.ndarray:
    return x


def _whole(x: np.ndarray) -> np.ndarray:
    return np.rint(x).astype(np.int32)


def _sorter(size: int) -> Any:
    """Sorts every `size` proposals by their score, downwards, equal ones in order."""

    def sort(proposals: np.ndarray) -> np.ndarray:
        out = proposals.copy()
        for lo in range(0, proposals.shape[1], size):
            part = proposals[:, lo : lo + size]
            order = np.argsort(-part[:, :, SCORE], axis=1, kind="stable")
            out[:, lo : lo + size] = np.take_along_axis(part, order[:, :, None], 1)
        return out

    return sort
