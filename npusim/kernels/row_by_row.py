"""Rows taken one by one, with the scalar unit in the chain, as CANN's first-generation kernels do.

Softmax of ragged rows (not whole 32 B blocks) and SoftmaxCrossEntropyWithLogits. What the vector
unit cannot do there, the scalar unit does on values in UB, while the vector unit waits:

* a value per row is read and handed to a vector_dup that spreads it over the row;
* a maximum in fp32 (there is no vcmax) is found element by element: over the whole row, or over
  what vmax left of two repeats and more;
* the last 32 B block of a ragged row is moved so that its store ends where the row does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.elementwise import unsupported_type
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.rows import F32, UB_SHARE, RowReducer, has_reduction, in_queue, out_queue
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

#: Cycles of the scalar unit to read a value from UB and act on it: compare and branch, or set up a
#: vector_dup (SoftmaxCrossEntropyWithLogits: 5200 cycles a row of 100, 3400 a row of 1001).
SCALAR_STEP = 42
#: Cycles of the scalar unit to move one element in UB: two addresses, a load and a store (what the
#: vector chain leaves of the 479 cycles of a Softmax row of 50, over 16 elements).
SCALAR_MOVE = 10
BLOCK = 32  #: bytes
BLOCK_ROWS = 8  #: rows at least of a block: its losses are a 32 B block

OPS = ("SoftmaxV2", "SoftmaxCrossEntropyWithLogits")
#: Row-sized buffers in UB: stored ones, fp32 ones.
BUFFERS = {"SoftmaxV2": (6, 2), "SoftmaxCrossEntropyWithLogits": (4, 5)}


def _rows(args: KernelArgs) -> tuple[int, int]:
    s = args.operands[0].shape
    return prod(s[:-1]), s[-1]


def _share(args: KernelArgs, tiling: Tiling, block: int) -> tuple[int, int]:
    rows, _ = _rows(args)
    r0, r1 = (rows * (block + j) // tiling["blocks"] for j in (0, 1))
    return r0, r1


@kernel("RowByRow")
class RowByRow(TileKernel):
    """SoftmaxV2 and SoftmaxCrossEntropyWithLogits along the last axis of ND tensors."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        spec = args.inputs[0]
        if args.op_type not in OPS or spec is None or args.epilogue or not spec.shape:
            return f"no row program for {args.op_type}"
        if any(o.layout is not Layout.ND for o in args.operands) or not spec.nbytes:
            return f"takes ND, not {spec.layout.value}"
        if any(o.dtype is not spec.dtype for o in args.operands):
            return "operands of several types"
        if spec.dtype not in (DType.FLOAT16, DType.FLOAT32):
            return f"element type {spec.dtype.value}"
        return unsupported_type(spec.dtype, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        rows, length = _rows(args)
        stored, wide = BUFFERS[args.op_type]
        need = (length + 32) * (stored * args.operands[0].dtype.size + 4 * wide) + 1024
        if need <= chip.core.ub.size * UB_SHARE:
            yield {"blocks": max(1, min(chip.vector_cores(), rows // BLOCK_ROWS))}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling: its rows per block."""
        return _rows(args)[0] / tiling["blocks"]

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        traffic = {i: Traffic(o.nbytes, o.nbytes) for i, o in enumerate(args.operands)}
        n = tiling["blocks"]
        keys = [r1 - r0 for r0, r1 in (_share(args, tiling, b) for b in range(n))]
        return Plan(tiling, n, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        run: _Softmax | _CrossEntropy
        run = _Softmax(k, args) if args.op_type == "SoftmaxV2" else _CrossEntropy(k, args)
        r0, r1 = _share(args, tiling, block)
        for i in k.loop(r1 - r0):
            yield from run.row(r0 + i)


class _Run:
    """One block at work, a row (1, length) at a time; `slots` of each input row."""

    slots = 2

    def __init__(self, k: Kernel, args: KernelArgs) -> None:
        self.k, self.args = k, args
        self.rows, self.length = _rows(args)
        self.dtype = args.operands[0].dtype.np
        self.size = -(-self.length * self.dtype.itemsize // BLOCK) * BLOCK
        self.ragged = self.size - self.length * self.dtype.itemsize
        self.queues = [in_queue(k, self.size, self.slots) for _ in args.inputs]
        self.results = out_queue(k, self.size)
        self.sums = RowReducer(k, "add", 1, self.length, F32)
        top = self.dtype if args.op_type == "SoftmaxV2" else F32
        if has_reduction(k.chip, "max", top):
            self._tops = RowReducer(k, "max", 1, self.length, top)
        self._stats = {name: k.alloc("UB", BLOCK) for name in ("top", "sum", "loss")}

    def temp(self, dtype: np.dtype = F32) -> Region:
        """A row-sized buffer."""
        place = self.k.alloc("UB", self.length * dtype.itemsize)
        return place.region((1, self.length), dtype)

    def stat(self, name: str, dtype: np.dtype = F32) -> Region:
        """A value of the row."""
        return self._stats[name].region((1,), dtype)

    def gm(self, index: int, row: int) -> Region:
        """A row of an operand in GM."""
        whole = Region.dense(GM, index, 0, (self.rows, self.length), self.dtype)
        return whole[row : row + 1]

    def load(self, index: int, row: int) -> Iterator[Instr]:
        """Load a row of an input; it is `loaded(index)` then."""
        place = yield from self.queues[index].alloc()
        yield self.k.load(place.region((1, self.length), self.dtype), self.gm(index, row))
        yield self.queues[index].enque()
        yield self.queues[index].deque()

    def loaded(self, index: int) -> Region:
        """The row that `load` brought."""
        return self.queues[index].front.region((1, self.length), self.dtype)

    def by_scalar(
        self, fn: Callable[..., np.ndarray], cycles: int, dst: Region, *srcs: Region
    ) -> Instr:
        """dst = fn(srcs…) by the scalar unit, which the vector unit waits for."""
        self.k.barrier()
        done = self.k.vec_by("copy", fn, dst, dst, *srcs)
        done.occupy, done.tail, done.serial = cycles, 0, True
        self.k.barrier()
        return done

    def spread(self, dst: Region, value: Region) -> Iterator[Instr]:
        """A value of the row over the row."""
        yield self.by_scalar(lambda x: x, SCALAR_STEP, value, value)
        yield self.k.vec("copy", dst, value)

    def maximum(self, dst: Region, x: Region, work: Region) -> Iterator[Instr]:
        """dst = the row's maximum: vcmax in fp16, the scalar unit in fp32."""
        k = self.k
        if has_reduction(k.chip, "max", x.dtype):
            yield from self._tops(dst, x)
            return
        lanes = int(k.chip.core.vector.lanes["float32"])
        repeat = int(k.chip.core.vector.repeat_bytes) // 4
        left = x
        if self.length >= 2 * repeat:
            left = work[:, :lanes]
            yield k.vec_by("max", partial(_fold_max, lanes), x, left, x)
        cycles = left.size * SCALAR_STEP
        yield self.by_scalar(lambda a: a.max(-1), cycles, dst, left)

    def store(self, index: int, row: int, out: Region) -> Iterator[Instr]:
        """Store a row of an output; a ragged one's last block is moved by the scalar unit first."""
        if self.ragged:
            last = out[:, -min(self.length, BLOCK // self.dtype.itemsize) :]
            yield self.by_scalar(lambda x: x, last.size * SCALAR_MOVE, last, last)
        yield self.results.enque()
        yield self.results.deque()
        yield self.k.store(self.gm(index, row), out)
        yield self.results.free()


class _Softmax(_Run):
    """Maximum and shift in the stored type, the rest in fp32."""

    def __init__(self, k: Kernel, args: KernelArgs) -> None:
        super().__init__(k, args)
        self.whole, self.shifted = self.temp(self.dtype), self.temp(self.dtype)
        self.power, self.wide = self.temp(), self.temp()

    def row(self, row: int) -> Iterator[Instr]:
        """One row."""
        k, power = self.k, self.power
        yield from self.load(0, row)
        x, top = self.loaded(0), self.stat("top", self.dtype)
        yield from self.maximum(top, x, self.whole)
        yield from self.spread(self.whole, top)
        narrow = self.shifted if self.dtype != F32 else power
        yield k.vec("sub", narrow, x, self.whole)
        yield self.queues[0].free()
        if self.dtype != F32:
            yield k.vec("conv", power, narrow)
        yield k.vec("exp", power, power)
        yield from self.sums(self.stat("sum"), power)
        yield from self.spread(self.wide, self.stat("sum"))
        place = yield from self.results.alloc()
        out = place.region((1, self.length), self.dtype)
        yield k.vec("div", out if self.dtype == F32 else power, power, self.wide)
        if self.dtype != F32:
            yield k.vec("conv", out, power)
        yield from self.store(1, row, out)


class _CrossEntropy(_Run):
    """Logits, labels → loss, softmax - labels; rows are not double-buffered."""

    slots = 1

    def __init__(self, k: Kernel, args: KernelArgs) -> None:
        super().__init__(k, args)
        self.losses = k.queue("UB", BLOCK, 1, Pipe.V, Pipe.MTE3)
        self.shifted, self.power, self.wide, self.log = (self.temp() for _ in range(4))
        if self.dtype != F32:
            self.labels = self.temp()

    def row(self, row: int) -> Iterator[Instr]:
        """One row."""
        k, shifted, power, wide = self.k, self.shifted, self.power, self.wide
        for index in (0, 1):
            yield from self.load(index, row)
        x, labels = self.loaded(0), self.loaded(1)
        if self.dtype != F32:
            yield k.vec("conv", shifted, x)
            yield k.vec("conv", self.labels, labels)
            x, labels = shifted, self.labels
        yield from self.maximum(self.stat("top"), x, power)
        yield from self.spread(wide, self.stat("top"))
        yield k.vec("sub", shifted, x, wide)
        yield k.vec("exp", power, shifted)
        yield from self.sums(self.stat("sum"), power)
        yield from self.spread(wide, self.stat("sum"))
        yield k.vec("div", power, power, wide)
        yield k.vec("ln", self.log, wide)
        yield k.vec("sub", shifted, shifted, self.log)
        yield k.vec("mul", shifted, labels, shifted)
        yield k.vec("muls", shifted, shifted, scalar=-1.0)
        yield from self.sums(self.stat("loss"), shifted)
        place = yield from self.losses.alloc()
        loss = place.region((1,), self.dtype)
        yield k.vec("conv" if self.dtype != F32 else "copy", loss, self.stat("loss"))
        place = yield from self.results.alloc()
        out = place.region((1, self.length), self.dtype)
        yield k.vec("sub", out if self.dtype == F32 else power, power, labels)
        if self.dtype != F32:
            yield k.vec("conv", out, power)
        for queue in self.queues:
            yield queue.free()
        yield self.losses.enque()
        yield self.losses.deque()
        gm = Region.dense(GM, len(self.args.inputs), 0, (self.rows,), self.dtype)
        yield k.store(gm[row : row + 1], loss)
        yield self.losses.free()
        yield from self.store(len(self.args.inputs) + 1, row, out)


def _fold_max(lanes: int, x: np.ndarray) -> np.ndarray:
    """Maxima of a row (1, n) over `lanes` lanes."""
    pad = -x.shape[1] % lanes
    padded = np.pad(x, ((0, 0), (0, pad)), constant_values=-np.inf)
    return padded.reshape(1, -1, lanes).max(1)
