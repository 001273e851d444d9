"""ScaledMaskedSoftmax of aligned rows, as CANN's TIK kernel does it (`scaled_masked_softmax.py`).

A block takes 4 to 32 rows at a time, one buffer each: load the mask and the rows, work, store, then
the next. The mask becomes a factor 1 - m and an addend -10000·m. Row by row the maximum, and later
the sum, is found by folding the row in halves; its scalar is read and applied row by row. In fp16
the rows are fp16 until the exponential, in fp32 from there on; else fp32 throughout.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.attention_vector import F16, U8
from npusim.kernels.elementwise import unsupported_type
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.rows import F32
from npusim.ops.training_attention import MASKED
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

#: Longest row → rows of a tile.
LINES = ((512, 32), (1024, 16), (2048, 8), (4096, 4))
ALIGN = 32  #: rows are multiples of so many elements
Spread = Generator[Instr, None, Region]
UB_BYTES = 11  #: per element: mask, row as stored or mask in fp16, row in fp32, work


@dataclass(frozen=True)
class Job:
    """(planes, height, width) of rows; the mask's leading axes; rows of a tile."""

    lead: tuple[int, ...]
    mask_lead: tuple[int, ...]
    height: int
    width: int
    lines: int

    @property
    def tiles(self) -> int:
        """Tiles of the launch."""
        return prod(self.lead) * self.height // self.lines

    def mask_plane(self, plane: int) -> int:
        """The mask's plane for a plane of the rows."""
        where = np.unravel_index(plane, self.lead) if self.lead else ()
        own = tuple(i if n > 1 else 0 for i, n in zip(where, self.mask_lead, strict=True))
        return int(np.ravel_multi_index(own, self.mask_lead)) if own else 0


def job_of(args: KernelArgs, mask_at: int = 1) -> Job:
    """The rows of a launch whose mask is input `mask_at`."""
    x, mask = args.inputs[0], args.inputs[mask_at]
    assert x is not None and mask is not None
    height, width = x.shape[-2:]
    lines = next(n for most, n in LINES if width <= most)
    return Job(x.shape[:-2], mask.shape[:-2], height, width, lines)


def refuse_rows(args: KernelArgs, chip: ChipSpec, mask_at: int) -> str:
    """'' for ND rows of whole 32 elements, whole tiles of rows in a plane; else why not."""
    x = args.inputs[0]
    mask = args.inputs[mask_at] if len(args.inputs) > mask_at else None
    if x is None or mask is None:
        return "rows without a mask"
    if x.layout is not Layout.ND or len(x.shape) < 2 or not x.nbytes:
        return "takes ND tensors of rows"
    if x.shape[-1] % ALIGN or x.shape[-1] > LINES[-1][0]:
        return f"rows of {x.shape[-1]}: multiples of {ALIGN} up to {LINES[-1][0]}"
    lines = job_of(args, mask_at).lines
    if x.shape[-2] % lines:
        return f"planes of {x.shape[-2]} rows: multiples of {lines}"
    if x.dtype is not DType.FLOAT16 and chip.core.vector.costs["group_reduce"].b32 is None:
        return f"{x.dtype.value}: no vcgmax in fp32"
    return unsupported_type(x.dtype, chip)


def row_tilings(job: Job, chip: ChipSpec) -> Iterator[Tiling]:
    """As many tiles each, on as many cores as that takes."""
    per = -(-job.tiles // chip.vector_cores())
    if UB_BYTES * job.lines * job.width + 4096 <= chip.core.ub.size:
        yield {"per": per, "blocks": -(-job.tiles // per)}


def classes_of(job: Job, tiling: Tiling) -> tuple[tuple[int, int], ...]:
    """Blocks by their tiles: the last may have fewer."""
    per, n = tiling["per"], tiling["blocks"]
    return group_blocks([min(per, job.tiles - b * per) for b in range(n)])


@kernel("ScaledMaskedSoftmax")
class MaskedSoftmax(TileKernel):
    """Softmax of scaled and masked rows."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """As `refuse_rows`."""
        if args.op_type != "ScaledMaskedSoftmax" or args.epilogue:
            return f"operator {args.op_type}, or an epilogue"
        return refuse_rows(args, chip, 1)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """One: see `row_tilings`."""
        return row_tilings(job_of(args), chip)

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling."""
        return float(tiling["per"])

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Every plane reads its mask."""
        job, out = job_of(args), len(args.inputs)
        x, mask = args.operands[0], args.operands[1]
        elements = prod(x.shape)
        traffic = {
            0: Traffic(x.nbytes, x.nbytes),
            1: Traffic(mask.nbytes, elements),
            out: Traffic(x.nbytes, x.nbytes),
        }
        return Plan(tiling, tiling["blocks"], traffic, classes_of(job, tiling))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """See the module's text."""
        job = job_of(args)
        core = _Lines(k, args, job)
        first = block * tiling["per"]
        for i in k.loop(min(tiling["per"], job.tiles - first)):
            yield from core.tile(first + i)


def fold_lines(k: Kernel, op: str, x: Region, block: int, out: Region) -> Spread:
    """Row by row: halves onto each other down to an odd number of blocks, then blocks.

    What is left over of a whole number of blocks comes last. `out` (as x, or x itself) holds the
    result in its first `block` columns, unless x has no more: then it is x.
    """
    lines, width = x.shape
    if width <= block:
        return x
    whole = width - width % block

    def step(name: str, dst: Region, a: Region, b: Region) -> Instr:
        return k.memo(("fold", name, op, *dst.shape), lambda: k.vec(op, dst, a, b))

    for line in range(lines):
        src, dst, length = x[line], out[line], whole
        while length // block % 2 == 0:
            length //= 2
            yield step("halves", dst[:length], src[:length], src[length : 2 * length])
            src = dst
        last = src[length - block : length]
        for i in range(length - block, 0, -block):
            here = dst[i - block : i]
            yield step("blocks", here, src[i - block : i], last)
            last = here
        if length == block and src is not dst:
            yield k.memo(("first",), lambda d=dst[:block], a=src[:block]: k.vec("copy", d, a))  # type: ignore[misc]
        if whole < width:
            rest = dst[: width - whole]
            yield step("rest", rest, x[line, whole:], rest)
    return out


def by_scalar(k: Kernel, op: str, x: Region, scalars: Region) -> Iterator[Instr]:
    """x ← op(x, its row's scalar), which is read once the row before is done."""
    name = {"add": "adds", "mul": "muls"}[op]
    fn = np.add if op == "add" else np.multiply
    for line in range(x.shape[0]):
        row, scalar = x[line], scalars[line : line + 1]
        k.barrier()
        yield k.memo(
            ("by scalar", op),
            lambda r=row, s=scalar: k.vec_by(name, fn, r, r, r, s),  # type: ignore[misc]
        )


class _Lines:
    """One block at work. `rows` are in the type of the first half of the work."""

    def __init__(self, k: Kernel, args: KernelArgs, job: Job) -> None:
        self.k, self.job = k, job
        self.dtype = args.operands[0].dtype.np
        self.early = F16 if self.dtype == F16 else F32
        self.scale = float(args.get("scale", 1.0))
        self.out = len(args.inputs)
        size = job.lines * job.width
        self.bytes = k.queue("UB", size, 1, Pipe.MTE2, Pipe.V)
        self.stored = k.alloc("UB", size * self.dtype.itemsize)
        self.wide = self.stored if self.dtype == F32 else k.alloc("UB", size * 4)
        self.work = k.alloc("UB", size * 4)
        # The mask in fp16, while the rows are fp32: over what they were loaded to.
        self.half = k.alloc("UB", size * 2) if self.dtype == F32 else self.stored
        self.block = 32 // self.early.itemsize  #: elements to which a row is folded
        self.packed = k.alloc("UB", job.lines * 32)
        self.scalars = k.alloc("UB", job.lines * 4)
        self.one = k.alloc("UB", job.lines * 4)
        self._loaded, self._ready, self._left = (k.flag_id() for _ in range(3))
        self._count = 0

    def tile(self, index: int) -> Iterator[Instr]:
        """Load, work, store."""
        k, job = self.k, self.job
        plane, row = divmod(index * job.lines, job.height)
        shape = (job.lines, job.width)
        stored = self.stored.region(shape, self.dtype)
        if self._count:
            yield k.wait_flag(Pipe.MTE3, Pipe.MTE2, self._left)
        self._count += 1
        mask = yield from self._load(plane, row, stored)
        x = stored
        if self.early != self.dtype:
            x = self.wide.region(shape, F32)
            yield k.memo(("widen",), lambda: k.vec("conv", x, stored))
        yield from self._hide(x, mask)
        yield from self._smooth(x)
        wide = self.wide.region(shape, F32)
        if self.early == F16:
            yield k.memo(("promote",), lambda: k.vec("conv", wide, x))
        yield k.memo(("exp",), lambda: k.vec("exp", wide, wide))
        yield from self._normalise(wide)
        if self.dtype != F32:
            yield k.memo(("narrow",), lambda: k.vec("conv", stored, wide))
        yield self.bytes.free()
        yield k.set_flag(Pipe.V, Pipe.MTE3, self._ready)
        yield k.wait_flag(Pipe.V, Pipe.MTE3, self._ready)
        yield k.memo(("store",), lambda: k.store(self._gm(self.out, plane, row), stored))
        yield k.set_flag(Pipe.MTE3, Pipe.MTE2, self._left)

    def _gm(self, operand: int, plane: int, row: int) -> Region:
        job, es = self.job, self.dtype.itemsize
        start = (plane * job.height + row) * job.width * es
        return Region.dense(GM, operand, start, (job.lines, job.width), self.dtype)

    def _load(self, plane: int, row: int, stored: Region) -> Spread:
        """The mask's bytes, then the rows."""
        k, job = self.k, self.job
        slot = yield from self.bytes.alloc()
        mask = slot.region((job.lines, job.width), U8)
        start = (job.mask_plane(plane) * job.height + row) * job.width
        gm = Region.dense(GM, 1, start, mask.shape, U8)
        yield k.memo(("mask",), lambda: k.load(mask, gm))
        yield self.bytes.enque()
        yield self.bytes.deque()
        yield k.memo(("x",), lambda: k.load(stored, self._gm(0, plane, row)))
        yield k.set_flag(Pipe.MTE2, Pipe.V, self._loaded)
        yield k.wait_flag(Pipe.MTE2, Pipe.V, self._loaded)
        return mask

    def _hide(self, x: Region, mask: Region) -> Iterator[Instr]:
        """x ← scale·x·(1 - mask) - 10000·mask."""
        k = self.k
        if x.dtype == F16:
            half = self.work.region((2, *x.shape), F16)
            kept, addend = half[0], half[1]
            yield k.memo(("bytes",), lambda: k.vec("conv", kept, mask))
            yield k.memo(("addend",), lambda: k.vec("muls", addend, kept, scalar=MASKED))
        else:
            kept, addend = self.work.region(x.shape, F32), self.half.region(x.shape, F16)
            yield k.memo(("bytes",), lambda: k.vec("conv", addend, mask))
            yield k.memo(("wide mask",), lambda: k.vec("conv", kept, addend))
            yield k.memo(("addend",), lambda: k.vec("muls", addend, addend, scalar=MASKED))
        yield k.memo(("minus",), lambda: k.vec("muls", kept, kept, scalar=-1.0))
        yield k.memo(("kept",), lambda: k.vec("adds", kept, kept, scalar=1.0))
        yield k.memo(("scale",), lambda: k.vec("muls", x, x, scalar=self.scale))
        yield k.memo(("times",), lambda: k.vec("mul", x, x, kept))
        if x.dtype != F16:
            yield k.memo(("wide addend",), lambda: k.vec("conv", kept, addend))
            addend = kept
        yield k.memo(("plus",), lambda: k.vec("add", x, x, addend))

    def _smooth(self, x: Region) -> Iterator[Instr]:
        """x ← x - maximum of its row."""
        k, lines = self.k, x.shape[0]
        folded = yield from fold_lines(k, "max", x, self.block, self.work.region(x.shape, x.dtype))
        packed = self.packed.region((lines, self.block), x.dtype)
        top = self.scalars.region((lines,), x.dtype)
        yield k.memo(("pack",), lambda: k.vec("copy", packed, folded[:, : self.block]))
        yield k.memo(("top",), lambda: k.reduce("cgmax", top, packed))
        yield k.memo(("less",), lambda: k.vec("muls", top, top, scalar=-1.0))
        yield from by_scalar(k, "add", x, top)

    def _normalise(self, x: Region) -> Iterator[Instr]:
        """x ← x / sum of its row."""
        k, lines = self.k, x.shape[0]
        one = self.one.region((lines,), F32)
        total = self.scalars.region((lines,), F32)
        yield k.memo(("one",), lambda: k.vec("dup", one, scalar=1.0))
        width = min(64, x.shape[1])
        folded = yield from fold_lines(k, "add", x, width, self.work.region(x.shape, F32))
        yield k.memo(("total",), lambda: k.reduce("cadd", total, folded[:, :width]))
        yield k.memo(("inverse",), lambda: k.vec("div", total, one, total))
        yield from by_scalar(k, "mul", x, total)
