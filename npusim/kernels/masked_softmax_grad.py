"""ScaledMaskedSoftmaxGrad of aligned rows, as CANN's TIK kernel does it.

As `masked_softmax`, one buffer each: y and dy are loaded and widened, their product folded to a sum
per row; dy is loaded again; row by row the sum's scalar is subtracted, then times y, mask, scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from npusim.chip.spec import ChipSpec
from npusim.ir import DType
from npusim.kernels.attention_vector import F16, U8
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.masked_softmax import (
    Job,
    by_scalar,
    classes_of,
    fold_lines,
    job_of,
    refuse_rows,
    row_tilings,
)
from npusim.kernels.rows import F32
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, kernel
from npusim.program.region import GM, Region

MASK = 2  #: index of the mask
BLOCK = 16  #: elements to which a row of products is folded


@kernel("ScaledMaskedSoftmaxGrad")
class MaskedSoftmaxGrad(TileKernel):
    """Gradient of a softmax of scaled and masked rows."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Rows as the forward kernel takes them, in 16 bits."""
        if args.op_type != "ScaledMaskedSoftmaxGrad" or args.epilogue:
            return f"operator {args.op_type}, or an epilogue"
        x = args.inputs[0]
        if x is not None and x.dtype not in (DType.FLOAT16, DType.BFLOAT16):
            return f"rows of {x.dtype.value}"
        return refuse_rows(args, chip, MASK)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """One: see `row_tilings`."""
        return row_tilings(job_of(args, MASK), chip)

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling."""
        return float(tiling["per"])

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """dy is read twice; every plane reads its mask."""
        job, x, mask = job_of(args, MASK), args.operands[0], args.operands[MASK]
        traffic = {
            0: Traffic(x.nbytes, 2 * x.nbytes),
            1: Traffic(x.nbytes, x.nbytes),
            MASK: Traffic(mask.nbytes, prod(x.shape)),
            len(args.inputs): Traffic(x.nbytes, x.nbytes),
        }
        return Plan(tiling, tiling["blocks"], traffic, classes_of(job, tiling))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """See the module's text."""
        job = job_of(args, MASK)
        core = _Lines(k, args, job)
        first = block * tiling["per"]
        for i in k.loop(min(tiling["per"], job.tiles - first)):
            yield from core.tile(first + i)


class _Lines:
    """One block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, job: Job) -> None:
        self.k, self.job = k, job
        self.dtype = args.operands[0].dtype.np
        self.scale = float(args.get("scale", 1.0))
        self.out = len(args.inputs)
        size = job.lines * job.width
        self.rows = k.queue("UB", size * 2, 1, Pipe.MTE2, Pipe.V)
        self.bytes = k.queue("UB", size, 1, Pipe.MTE2, Pipe.V)
        self.wide = k.alloc("UB", size * 4)
        self.soft = k.alloc("UB", size * 4)
        self.packed = k.alloc("UB", job.lines * BLOCK * 4)
        self.scalars = k.alloc("UB", job.lines * 4)
        self._ready, self._left = k.flag_id(), k.flag_id()
        self._count = 0

    def tile(self, index: int) -> Iterator[Instr]:
        """Load, work, store."""
        k, job = self.k, self.job
        plane, row = divmod(index * job.lines, job.height)
        shape = (job.lines, job.width)
        wide, soft = self.wide.region(shape, F32), self.soft.region(shape, F32)
        if self._count:
            yield k.wait_flag(Pipe.MTE3, Pipe.MTE2, self._left)
        self._count += 1
        yield from self._load(1, plane, row, soft)
        yield from self._load(0, plane, row, wide)
        yield k.memo(("product",), lambda: k.vec("mul", wide, wide, soft))
        mask = yield from self.bytes.alloc()
        bytes_ = mask.region(shape, U8)
        start = (job.mask_plane(plane) * job.height + row) * job.width
        gm = Region.dense(GM, MASK, start, shape, U8)
        yield k.memo(("mask",), lambda: k.load(bytes_, gm))
        yield self.bytes.enque()
        sums = self.scalars.region((job.lines,), F32)
        yield from self._sum(wide, sums)
        yield from self._load(0, plane, row, wide)
        yield k.memo(("minus",), lambda: k.vec("muls", sums, sums, scalar=-1.0))
        yield from by_scalar(k, "add", wide, sums)
        yield k.memo(("times y",), lambda: k.vec("mul", wide, wide, soft))
        yield self.bytes.deque()
        result = self.rows.slots[0].region(shape, self.dtype)
        yield from self._finish(wide, soft, bytes_, result)
        yield self.bytes.free()
        yield k.set_flag(Pipe.V, Pipe.MTE3, self._ready)
        yield k.wait_flag(Pipe.V, Pipe.MTE3, self._ready)
        dst = self._gm(self.out, plane, row)
        yield k.memo(("store",), lambda: k.store(dst, result))
        yield k.set_flag(Pipe.MTE3, Pipe.MTE2, self._left)

    def _gm(self, operand: int, plane: int, row: int) -> Region:
        job, es = self.job, self.dtype.itemsize
        start = (plane * job.height + row) * job.width * es
        return Region.dense(GM, operand, start, (job.lines, job.width), self.dtype)

    def _load(self, operand: int, plane: int, row: int, dst: Region) -> Iterator[Instr]:
        """dst ← the operand's rows in fp32."""
        k = self.k
        slot = yield from self.rows.alloc()
        stored, src = slot.region(dst.shape, self.dtype), self._gm(operand, plane, row)
        yield k.memo(("load", operand), lambda: k.load(stored, src))
        yield self.rows.enque()
        yield self.rows.deque()
        yield k.memo(("widen",), lambda: k.vec("conv", dst, stored))
        yield self.rows.free()

    def _sum(self, x: Region, sums: Region) -> Iterator[Instr]:
        """Sums of the rows of x, which is folded in place."""
        k, lines = self.k, x.shape[0]
        folded = yield from fold_lines(k, "add", x, BLOCK, x)
        packed = self.packed.region((lines, BLOCK), F32)
        yield k.memo(("pack",), lambda: k.vec("copy", packed, folded[:, :BLOCK]))
        yield k.memo(("sum",), lambda: k.reduce("cadd", sums, packed))

    def _finish(self, x: Region, soft: Region, mask: Region, result: Region) -> Iterator[Instr]:
        """result ← scale · x where the mask is 0, else 0."""
        k, narrow = self.k, result.dtype == F16
        half = Region.dense("UB", -1, (soft if narrow else result).offset, x.shape, F16)
        if narrow:
            yield k.memo(("narrow",), lambda: k.vec("conv", result, x))
        yield k.memo(("bytes",), lambda: k.vec("conv", half, mask))
        yield k.memo(("less",), lambda: k.vec("muls", half, half, scalar=-1.0))
        yield k.memo(("one",), lambda: k.vec("adds", half, half, scalar=1.0))
        if narrow:
            for i in range(2):  # CANN's kernel multiplies twice: the mask is 0 or 1
                yield k.memo(("kept", i), lambda: k.vec("mul", result, result, half))
            yield k.memo(("scale",), lambda: k.vec("muls", result, result, scalar=self.scale))
            return
        yield k.memo(("wide mask",), lambda: k.vec("conv", soft, half))
        yield k.memo(("kept",), lambda: k.vec("mul", x, x, soft))
        yield k.memo(("scale",), lambda: k.vec("muls", x, x, scalar=self.scale))
        yield k.memo(("narrow",), lambda: k.vec("conv", result, x))
