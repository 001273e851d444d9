"""LogSoftmax and its gradient over fp32 rows that UB does not hold, as first-generation CANN does.

A row goes through UB in pieces, several times: after the first pass what is read again is in L2.
The gradient keeps the row of dy in UB where it fits. The maximum is that of the row in fp16 where
there is no vcmax for fp32 (the result does not depend on it); log softmax spreads a value of the
row over every piece by a vector_dup.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.elementwise import unsupported_type
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.rows import F16, F32, RowReducer, has_reduction, in_queue, largest, padded
from npusim.kernels.stage import Loading, Stage
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

UB_SHARE_ALL = 0.95  #: of UB that pieces take
OPS = ("LogSoftmaxV2", "LogSoftmaxGrad")
#: fp32 buffers of a piece: two slots of each operand, the spread value, work; gradient with dy
#: kept: two slots of y and of the result, work.
BUFFERS = {"LogSoftmaxV2": 7, "LogSoftmaxGrad": 8}
BUFFERS_KEPT = 5
LEAST_PIECE = 2048  #: elements of a piece below which dy is read again instead


def _rows(args: KernelArgs) -> tuple[int, int]:
    s = args.operands[0].shape
    return prod(s[:-1]), s[-1]


def _share(args: KernelArgs, tiling: Tiling, block: int) -> range:
    rows, _ = _rows(args)
    return range(*(rows * (block + j) // tiling["blocks"] for j in (0, 1)))


def _piece(length: int, room: int, buffers: int) -> int:
    """Elements of a piece so that its buffers, and partial sums, fit `room` bytes; even pieces."""
    if room < (4 * buffers + 1) * 64:
        return 0
    most = largest(length, 64, lambda w: (4 * buffers + 1) * w <= room)
    return min(length, padded(-(-length // -(-length // most)), 64))


@kernel("LongRows")
class LongRows(TileKernel):
    """x → log softmax (LogSoftmaxV2); dy, log softmax → dx (LogSoftmaxGrad); last axis."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        spec = args.inputs[0]
        if args.op_type not in OPS or spec is None or args.epilogue or not spec.shape:
            return f"no program for {args.op_type}"
        if any(o.layout is not Layout.ND or o.dtype is not DType.FLOAT32 for o in args.operands):
            return "takes ND tensors of fp32"
        if not spec.nbytes:
            return "an empty tensor"
        return unsupported_type(spec.dtype, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        rows, length = _rows(args)
        room = int(chip.core.ub.size * UB_SHARE_ALL) - 1024
        blocks, buffers = min(rows, chip.vector_cores()), BUFFERS[args.op_type]
        if args.op_type == "LogSoftmaxGrad":
            left = room - 4 * (length + 64 * (length // LEAST_PIECE + 1))
            w = _piece(length, left, BUFFERS_KEPT)
            if w >= min(length, LEAST_PIECE):
                yield {"w": w, "blocks": blocks, "kept": 1}
                return
        w = _piece(length, room, buffers)
        if w > 0:
            yield {"w": w, "blocks": blocks, "kept": 0}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling: its rows per block."""
        return _rows(args)[0] / tiling["blocks"]

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        n, again = tiling["blocks"], 2 - tiling["kept"]
        reads = (3,) if args.op_type == "LogSoftmaxV2" else (again, 1)
        traffic = {
            i: Traffic(o.nbytes, o.nbytes * times)
            for i, (o, times) in enumerate(zip(args.operands, (*reads, 1), strict=True))
        }
        return Plan(
            tiling, n, traffic, group_blocks([len(_share(args, tiling, b)) for b in range(n)])
        )

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        run: _Forward | _Gradient
        run = (_Forward if args.op_type == "LogSoftmaxV2" else _Gradient)(k, args, tiling)
        rows = _share(args, tiling, block)
        for i in k.loop(len(rows)):
            yield from run.row(rows[i])


class _Run:
    """One block at work, a piece of a row at a time."""

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling) -> None:
        self.k, self.stage, self.w = k, Stage(k), tiling["w"]
        self.rows, self.length = _rows(args)
        self.out_index = len(args.inputs)
        self.sums = RowReducer(k, "add", 1, self.w, F32)
        self.starts = range(0, self.length, self.w)

    def _gm(self, index: int, row: int, start: int) -> Region:
        whole = Region.dense(GM, index, 0, (self.rows, self.length), F32)
        return whole[row : row + 1, start : start + self.w]

    def _load(self, index: int, row: int, start: int) -> Loading:
        return self.stage.load(self._gm(index, row, start), self.w)

    def _temp(self, name: str, like: Region) -> Region:
        return self.stage.temp(name, like.shape, F32, self.w)

    def _stat(self, name: str) -> Region:
        return self.stage.temp(name, (1,), F32)

    def _add_up(self, x: Region, start: int, total: Region) -> Iterator[Instr]:
        """The piece's sum, onto the row's."""
        if not start:
            yield from self.sums(total, x)
            return
        part = self._stat("part")
        yield from self.sums(part, x)
        yield self.k.vec("add", total, total, part)

    def _out(self, row: int, start: int, *steps: tuple[str, Region, Region]) -> Iterator[Instr]:
        """The last step's result, stored."""
        gm = self._gm(self.out_index, row, start)
        out = yield from self.stage.out(self.out_index, gm.shape, F32, self.w)
        for op, a, b in steps:
            yield self.k.vec(op, out, a, b)
        yield from self.stage.store(gm, out)


class _Forward(_Run):
    """Three passes: maximum, sum of exponentials, result."""

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling) -> None:
        super().__init__(k, args, tiling)
        self.kind = F32 if has_reduction(k.chip, "max", F32) else F16
        self.max = RowReducer(k, "max", 1, self.w, self.kind)

    def row(self, row: int) -> Iterator[Instr]:
        """One row."""
        k, top, total = self.k, self._stat("top"), self._stat("total")
        narrow = self.stage.temp("narrow", (1,), self.kind)
        for start in self.starts:
            x = yield from self._load(0, row, start)
            yield from self._maximum(x, start, narrow)
            yield self.stage.free(0)
        yield k.vec("conv" if self.kind != F32 else "copy", top, narrow)
        for start in self.starts:
            x = yield from self._load(0, row, start)
            whole, power = self._temp("whole", x), self._temp("power", x)
            yield k.vec("copy", whole, top)
            yield k.vec("sub", power, x, whole)
            yield self.stage.free(0)
            yield k.vec("exp", power, power)
            yield from self._add_up(power, start, total)
        yield k.vec("ln", total, total)
        yield k.vec("add", top, top, total)
        for start in self.starts:
            x = yield from self._load(0, row, start)
            whole = self._temp("whole", x)
            yield k.vec("copy", whole, top)
            yield from self._out(row, start, ("sub", x, whole))
            yield self.stage.free(0)

    def _maximum(self, x: Region, start: int, top: Region) -> Iterator[Instr]:
        k = self.k
        if x.dtype != self.kind:
            narrow = self.stage.temp("power", x.shape, self.kind, 2 * self.w)
            yield k.vec("conv", narrow, x)
            x = narrow
        if not start:
            yield from self.max(top, x)
            return
        part = self.stage.temp("maximum", (1,), self.kind)
        yield from self.max(part, x)
        yield k.vec("max", top, top, part)


class _Gradient(_Run):
    """Two passes: Σ dy; dy - e^y · Σ dy."""

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling) -> None:
        super().__init__(k, args, tiling)
        self.kept = bool(tiling["kept"])
        slots = len(self.starts) if self.kept else 2
        self.queue = in_queue(k, 4 * self.w, slots)

    def _load_dy(self, row: int, start: int) -> Loading:
        gm = self._gm(0, row, start)
        place = yield from self.queue.alloc()
        yield self.k.load(place.region(gm.shape, F32), gm)
        yield self.queue.enque()
        yield self.queue.deque()
        return self.queue.front.region(gm.shape, F32)

    def row(self, row: int) -> Iterator[Instr]:
        """One row."""
        k, total, pieces = self.k, self._stat("total"), []
        for start in self.starts:
            dy = yield from self._load_dy(row, start)
            yield from self._add_up(dy, start, total)
            if self.kept:
                pieces.append(dy)
            else:
                yield self.queue.free()
        for i, start in enumerate(self.starts):
            dy = pieces[i] if self.kept else (yield from self._load_dy(row, start))
            y = yield from self._load(1, row, start)
            power = self._temp("power", dy)
            yield k.vec("exp", power, y)
            yield self.stage.free(1)
            yield k.vec("mul", power, power, total.broadcast(power.shape))
            yield from self._out(row, start, ("sub", dy, power))
            yield self.queue.free()
