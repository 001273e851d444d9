"""SumAll: one number out of a whole tensor, every block adding its part to GM atomically.

ReduceSum and ReduceMean of everything, SquareSumV1 (Σx²), SquareSumV2 (Σx², and x passed on).
The result must hold zero before, which AtomicAddrClean sees to on the chip.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType
from npusim.kernels import vector_ops
from npusim.kernels.elementwise import SMALL_BLOCK_BYTES, UB_SHARE, unsupported_type
from npusim.kernels.estimate import pipeline_cycles, port_rate
from npusim.kernels.flat import Stretch
from npusim.kernels.lang import Alloc, Kernel, TileKernel
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import Region

F32 = np.dtype(np.float32)
LINE = 64  #: fp32 elements that vcadd sums at a time
MOST = LINE * LINE * 5  #: elements of a tile, so that two more vcadds finish
WHOLE_SHARE = 0.95  #: of UB that a share taken whole may fill
BLOCK = 8  #: fp32 elements of 32 B, which a block's share is a multiple of
#: Cycles per repeat of vcadd over a tile, where the chip's own are more: SquareSumV1 takes 7.3
#: cycles per 64 elements over its blocks' two rounds on 30 cores, its squaring pass included.
#: SquareSumV2, which also stores a tile, keeps the chip's (12 cycles per 64 with both passes).
VCADD = 5.2


def _square(args: KernelArgs) -> bool:
    return args.op_type in ("SquareSumV1", "SquareSumV2")


def _passes_on(args: KernelArgs) -> bool:
    return args.op_type == "SquareSumV2"


def _footprint(args: KernelArgs, chunk: int, each: int = 2) -> int:
    """UB bytes: `each` input slots, the working tile, `each` slots to pass on, partial sums."""
    if chunk > MOST:
        return 1 << 30
    width = args.inputs[0].dtype.size if args.inputs[0] else 4
    slots = (1 + _passes_on(args)) * each
    return slots * chunk * width + 4 * chunk + 3 * (chunk // LINE * 4 + 32) + 256


def _elements(args: KernelArgs) -> int:
    return args.operands[0].nbytes // args.operands[0].dtype.size


def share_of(n: int, rows: int, blocks: int) -> int:
    """Elements of a block, as CANN's reductions cut them: whole rows where there are enough.

    The units (rows, else 32 B) are dealt out in equal shares; where they do not divide, one block
    fewer gets ⌊units / (blocks - 1)⌋ each, and the last what is left: 768 rows on 31 blocks are
    30 times 25 and 18.
    """
    unit = n // rows if rows >= blocks else BLOCK
    units = -(-n // unit)
    even = -(-units // blocks)
    if units % blocks and blocks > 1:
        fewer = units // (blocks - 1)
        if fewer and -(-units // fewer) == blocks:
            even = fewer
    return even * unit


def _stretch(args: KernelArgs, tiling: Tiling, block: int) -> Stretch:
    """A block's run: full shares, the last one short."""
    n, share = _elements(args), tiling["share"]
    return Stretch(block * share, min(share, n - block * share), tiling["chunk"])


@kernel("SumAll")
class SumAll(TileKernel):
    """Tiling: blocks, tiles of `chunk` elements."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """fp16 or fp32 to one number of the same type."""
        if args.op_type not in ("ReduceSum", "ReduceMean", "SquareSumV1", "SquareSumV2"):
            return f"operator {args.op_type}"
        x, out = args.operands[0], args.outputs[0]
        if len(args.outputs) != 1 + _passes_on(args):
            return f"{len(args.outputs)} outputs"
        if x.dtype not in (DType.FLOAT16, DType.FLOAT32) or out.dtype is not x.dtype:
            return f"{x.dtype.value} to {out.dtype.value}"
        if out.nbytes != out.dtype.size or not x.nbytes:
            return "a result of one element from an input of at least one"
        return unsupported_type(x.dtype, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Tiles of whole lines: the share whole, else the fewest equal pieces that fit twice."""
        n, spec = _elements(args), args.operands[0]
        blocks = min(chip.vector_cores(), -(-n * spec.dtype.size // SMALL_BLOCK_BYTES))
        share = share_of(n, spec.shape[0] if len(spec.shape) > 1 else 1, blocks)
        room = int(chip.core.ub.size * UB_SHARE)
        pieces = 1
        whole = -(-share // LINE) * LINE
        if _footprint(args, whole, 1) <= chip.core.ub.size * WHOLE_SHARE:
            yield {"chunk": whole, "share": share, "blocks": -(-n // share)}
            return
        while _footprint(args, chunk := -(-share // pieces // LINE) * LINE) > room:
            if chunk == LINE:
                return
            pieces += 1
        yield {"chunk": chunk, "share": share, "blocks": -(-n // share)}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """Passes over the data, transfers, and the exposed ends."""
        run = _stretch(args, tiling, 0)
        width, blocks, vec = args.operands[0].dtype.size, tiling["blocks"], chip.core.vector
        passes = _square(args) + _passes_on(args) + (width == 2)
        per = passes * (vec.costs["binary"].b32 or 0) + (vec.costs["reduce"].b32 or 0)
        vector = run.size / LINE * per + run.tiles * 4 * (vec.head + vec.tail)
        into, out = (
            port_rate(chip, r, blocks) for r in (chip.core.mte2.ub_rate, chip.core.mte3.rate)
        )
        read = run.size * width / into + run.tiles * chip.core.mte2.head
        write = run.size * width / out * _passes_on(args) + chip.core.mte3.head
        shared = _elements(args) * width * (1 + _passes_on(args)) / chip.hbm_rate
        return pipeline_cycles(chip, vector, read, write, shared, run.tiles)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """The data once, the result once a block."""
        x, out, blocks = args.operands[0], args.outputs[0], tiling["blocks"]
        n = len(args.inputs)
        traffic = {
            0: Traffic(x.nbytes, x.nbytes),
            n: Traffic(out.nbytes, out.nbytes * blocks),
        }
        if _passes_on(args):
            traffic[n + 1] = Traffic(x.nbytes, x.nbytes)
        sizes = [_stretch(args, tiling, b).size for b in range(blocks)]
        return Plan(tiling, blocks, traffic, group_blocks(sizes))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """Tiles summed along lines into one accumulator, which two vcadds finish."""
        run = _Run(k, args, _stretch(args, tiling, block), tiling["blocks"])
        yield k.vec("dup", run.lines(run.accumulator, run.stretch.chunk // LINE), scalar=0.0)
        for i in k.loop(run.stretch.tiles):
            yield from run.tile(i)
        yield from run.finish()


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, run: Stretch, blocks: int) -> None:
        self.k, self.args, self.stretch, self.blocks = k, args, run, blocks
        self.dtype = args.operands[0].dtype.np
        nbytes, partial = run.chunk * self.dtype.itemsize, run.chunk // LINE * 4
        slots = 1 if run.tiles == 1 else 2
        self.data = k.queue("UB", nbytes, slots, Pipe.MTE2, Pipe.V)
        self.on = k.queue("UB", nbytes, slots, Pipe.V, Pipe.MTE3) if _passes_on(args) else None
        self.result = k.queue("UB", 32, 1, Pipe.V, Pipe.MTE3)
        self.work = k.alloc("UB", 4 * run.chunk)
        self.partial, self.accumulator = k.alloc("UB", partial), k.alloc("UB", partial)
        self.last = k.alloc("UB", partial)

    @staticmethod
    def lines(place: Alloc, n: int) -> Region:
        """n fp32 partial sums."""
        return place.region((n,), F32)

    def tile(self, index: int) -> Iterator[Instr]:
        """Load, square, sum 64 at a time, accumulate; pass on."""
        k, cut, n = self.k, self.stretch.tile(index), _elements(self.args)
        size = cut.stop - cut.start
        lines = -(-size // LINE)
        place = yield from self.data.alloc()
        x, whole = (place.region((m,), self.dtype) for m in (size, lines * LINE))
        gm = Region.dense("GM", 0, 0, (n,), self.dtype)[cut]
        yield k.load(x, gm, whole if size % LINE else None)
        yield self.data.enque()
        yield self.data.deque()
        work = self.work.region((lines * LINE,), F32)
        source = whole
        if self.dtype != F32:
            yield k.vec("conv", work, whole)
            source = work
        if _square(self.args):
            yield k.vec("mul", work, source, source)
            source = work
        partial = self.lines(self.partial, lines)
        lined = source.split(0, LINE)
        rate = k.chip.core.vector.costs["reduce"].b32 or VCADD
        rate = rate if _passes_on(self.args) else min(rate, VCADD)
        fn = vector_ops.get("cadd").fn
        yield k.vec_by("cadd", fn, lined, partial, lined, per_repeat=rate)
        total = self.lines(self.accumulator, lines)
        yield k.vec("add", total, total, partial)
        if self.on is not None:
            copy = (yield from self.on.alloc()).region((size,), self.dtype)
            yield k.vec("copy", copy, x)
            yield self.on.enque()
            yield self.on.deque()
            out = Region.dense("GM", len(self.args.inputs) + 1, 0, (n,), self.dtype)
            yield k.store(out[cut], copy)
            yield self.on.free()
        yield self.data.free()

    def finish(self) -> Iterator[Instr]:
        """The accumulator's lines to one number, added to the result."""
        k, n = self.k, self.stretch.chunk // LINE
        source, spare = self.accumulator, self.last
        while n > 1:
            full, rest = divmod(n, LINE)
            at = 0
            for rows, width in ((full, LINE), (1 if rest else 0, rest)):
                if rows:
                    src = source.region((rows, width), F32, at * LINE * 4)
                    yield k.reduce("cadd", spare.region((rows,), F32, at * 4), src)
                    at += rows
            n, source, spare = at, spare, source
        total = self.lines(source, 1)
        if self.args.op_type == "ReduceMean":
            yield k.vec("muls", total, total, scalar=1.0 / _elements(self.args))
        result = (yield from self.result.alloc()).region((1,), self.dtype)
        yield k.vec("copy" if self.dtype == F32 else "conv", result, total)
        yield self.result.enque()
        yield self.result.deque()
        gm = Region.dense("GM", len(self.args.inputs), 0, (1,), self.dtype)
        yield k.store(gm, result, atomic=True)
        yield self.result.free()
