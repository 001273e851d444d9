"""What CANN's Ascend C kernels over rows share: blocks of whole rows, tiles of them, sums, spreads.

The operator library (RmsNorm and its kin) deals ⌈rows / cores⌉ rows to a block, takes as many into
a tile as UB holds, computes in fp32 with a barrier after every instruction, and keeps the results
of a row's sum in UB (tiles of several rows) or reads them into the scalar unit (single rows).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.elementwise import unsupported_type
from npusim.kernels.lang import Kernel
from npusim.kernels.rows import F32, padded
from npusim.kernels.stage import Loading, Stage
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, OperandSpec, Plan, Tiling, Traffic, group_blocks
from npusim.program.region import GM, Region

REPEAT = 64  #: fp32 elements of a repeat
UB_LEFT = 1024  #: bytes of UB that the library leaves to the system (USED_UB of its tilings)
Spread = Generator[Instr, None, Region]


@dataclass(frozen=True)
class RowJob:
    """`rows` rows of `width` elements; in UB a row takes `pitch` elements."""

    rows: int
    width: int

    @property
    def pitch(self) -> int:
        """Elements of a row in UB: whole 32 B blocks of two-byte elements."""
        return padded(self.width, 16)

    def blocks(self, cores: int) -> int:
        """Block dim."""
        return -(-self.rows // -(-self.rows // cores))

    def share(self, blocks: int, block: int) -> tuple[int, int]:
        """Rows [r0, r1) of a block: all blocks but the last have as many."""
        each = -(-self.rows // blocks)
        return min(self.rows, each * block), min(self.rows, each * (block + 1))

    def tiles(self, tiling: Tiling, block: int) -> int:
        """Tiles of a block."""
        r0, r1 = self.share(tiling["blocks"], block)
        return -(-(r1 - r0) // tiling["m"])


def rows_that_fit(job: RowJob, footprint: Callable[[int], int], chip: ChipSpec) -> int:
    """Rows of a tile: as many of a block's as UB holds, by the bytes of m rows; 0: not one."""
    room, one = chip.core.ub.size - UB_LEFT, footprint(1)
    if one > room:
        return 0
    each = -(-job.rows // job.blocks(chip.vector_cores()))
    return min(each, 1 + (room - one) // (footprint(2) - one))


def row_plan(args: KernelArgs, job: RowJob, tiling: Tiling, often: Sequence[int] = ()) -> Plan:
    """Every operand is moved once, those numbered in `often` once a block."""
    n = tiling["blocks"]
    traffic = {
        i: Traffic(o.nbytes, o.nbytes * (n if i in often else 1))
        for i, o in enumerate(args.operands)
    }
    shares = [job.share(n, b) for b in range(n)]
    return Plan(tiling, n, traffic, group_blocks([r1 - r0 for r0, r1 in shares]))


def row_job(x: OperandSpec, gamma: OperandSpec) -> RowJob:
    """Rows as long as gamma."""
    width = max(1, prod(gamma.shape))
    return RowJob(prod(x.shape) // width, width)


def refuse_rows(args: KernelArgs, gamma: int, chip: ChipSpec) -> str:
    """Why the launch is no work for a row kernel of the library; '' when it is."""
    if args.epilogue or any(o is None or o.layout is not Layout.ND for o in args.operands):
        return "takes ND tensors and no epilogue"
    x, scale = args.operands[0], args.operands[gamma]
    if not x.nbytes or not scale.shape or x.shape[-len(scale.shape) :] != scale.shape:
        return f"gamma of shape {scale.shape} for rows of {x.shape}"
    kinds = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
    if any(o.dtype not in kinds for o in args.operands):
        return "types other than fp16, bf16 and fp32"
    return next((r for o in args.operands if (r := unsupported_type(o.dtype, chip))), "")


class RowTile:
    """The tile at work: rows [r0, r1) of the launch, as (rows, pitch) in UB.

    Padding behind a row's end holds whatever was there; sums leave it out.
    """

    def __init__(self, k: Kernel, job: RowJob, m: int, slots: int) -> None:
        self.k, self.job, self.m = k, job, m
        self.stage = Stage(k, slots)
        self.r0 = self.r1 = 0

    def walk(self, tiling: Tiling, block: int) -> Iterator[None]:
        """A block's tiles one after the other; sets the rows of each."""
        start, end = self.job.share(tiling["blocks"], block)
        for t in self.k.loop(self.job.tiles(tiling, block)):
            self.r0 = start + t * tiling["m"]
            self.r1 = min(end, self.r0 + tiling["m"])
            yield

    @property
    def rows(self) -> int:
        """Rows of the current tile."""
        return self.r1 - self.r0

    @property
    def shape(self) -> tuple[int, int]:
        """Of the tile in UB."""
        return self.rows, self.job.pitch

    def temp(self, name: str, dtype: np.dtype = F32) -> Region:
        """A temporary as large as the tile."""
        return self.stage.temp(name, self.shape, dtype, self.m * self.job.pitch)

    def per_row(self, name: str) -> Region:
        """One fp32 value a row."""
        return self.stage.temp(name, (self.rows,), F32, self.m)

    def _gm(self, index: int) -> Region:
        dtype = self.k.args.operands[index].dtype.np
        whole = Region.dense(GM, index, 0, (self.job.rows, self.job.width), dtype)
        return whole[self.r0 : self.r1]

    def raw(self, index: int) -> Loading:
        """A whole operand's tile as stored; free it when read."""
        width = self.job.width
        room = self.m * self.job.pitch
        return self.stage.load_inside(self._gm(index), room, self.shape, lambda t: t[:, :width])

    def wide(self, index: int, name: str) -> Spread:
        """A whole operand's tile in fp32: converted into temporary `name`, fp32 copied."""
        x = yield from self.raw(index)
        wide = self.temp(name)
        yield self.k.vec("conv" if x.dtype != F32 else "copy", wide, x)
        yield self.stage.free(index)
        return wide

    def _gm_rows(self, index: int) -> Region:
        return Region.dense(GM, index, 0, (self.job.rows,), F32)[self.r0 : self.r1]

    def load_rows(self, index: int) -> Loading:
        """An fp32 value a row; free it when read."""
        return self.stage.load(self._gm_rows(index), self.m)

    def load_gamma(self, index: int) -> Spread:
        """The value per column as stored, in a temporary: once a block."""
        dtype = self.k.args.operands[index].dtype.np
        gm = Region.dense(GM, index, 0, (self.job.width,), dtype)
        pitch, width = self.job.pitch, self.job.width
        stage = self.stage
        x = yield from stage.load_inside(gm, pitch, (pitch,), lambda t: t[:width])
        kept = stage.temp(f"gamma{index}", (pitch,), dtype)
        yield self.k.vec("copy", kept, x)
        yield stage.free(index)
        return kept

    def store(self, index: int, value: Region) -> Iterator[Instr]:
        """Convert a tile to its stored type and store it."""
        dtype = self.k.args.operands[index].dtype.np
        out = yield from self.stage.out(index, self.shape, dtype, self.m * self.job.pitch)
        yield self.k.vec("conv" if dtype != F32 else "copy", out, value)
        yield from self.stage.store(self._gm(index), out[:, : self.job.width])

    def store_rows(self, index: int, value: Region) -> Iterator[Instr]:
        """Store an fp32 value a row."""
        out = yield from self.stage.out(index, value.shape, F32, self.m)
        yield self.k.vec("copy", out, value)
        yield from self.stage.store(self._gm_rows(index), out)

    def row_sum(self, name: str, x: Region) -> Spread:
        """Σ of each row: its pieces of a repeat added up one after the other, then vcadd."""
        k, total, width = self.k, self.per_row(name), self.job.width
        if width <= REPEAT:
            yield k.reduce("cadd", total, x[:, :width])
            return total
        part = self.stage.temp("part", (self.rows, REPEAT), F32, self.m * REPEAT)
        yield k.vec("dup", part, scalar=0.0)
        for at in range(0, width, REPEAT):
            n = min(REPEAT, width - at)
            yield k.vec("add", part[:, :n], part[:, :n], x[:, at : at + n])
        yield k.reduce("cadd", total, part)
        return total

    def row_sum_by_halves(self, name: str, x: Region) -> Spread:
        """Σ of a single row, which it overwrites: folded in halves to a repeat, then vcadd."""
        k, total, n = self.k, self.per_row(name), self.job.width
        while n > REPEAT:
            half = 1 << ((n - 1).bit_length() - 1)  # the largest power of two below n
            yield k.vec("add", x[:, : n - half], x[:, : n - half], x[:, half:n])
            n = half
        yield k.reduce("cadd", total, x[:, :n])
        return total

    def spread(self, value: Region, into: Region) -> Iterator[Instr]:
        """A value a row over the whole of `into`: a 32 B block a row, then copies of it."""
        blocks = self.stage.temp("blocks", (self.rows, 8), F32, self.m * 8)
        yield self.k.vec("brcb", blocks, value.expand(1))
        yield self.k.vec("copy", into, blocks[:, :1])

    def columns(self, value: Region) -> Region:
        """A value a column, read for every row of the tile."""
        return value.expand(0).broadcast(self.shape)
