"""RmsNormGrad as CANN's Ascend C kernel computes it (rms_norm_grad_split_n_high_precision.h).

Rows of at most `MERGED` elements share a tile and its barriers, except for the gradient of gamma,
which adds them one by one. Longer rows are taken singly, and the scalar unit reads each row's mean:
it issues the loads of the next row no sooner. The blocks add their gradients of gamma atomically
into zeros, which one of them writes before all of them meet (InitOutput, SyncAll).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.library_rows import (
    REPEAT,
    RowJob,
    RowTile,
    refuse_rows,
    row_job,
    row_plan,
    rows_that_fit,
)
from npusim.kernels.rows import F32
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, kernel
from npusim.program.region import GM, Region

MERGED = 640  #: elements of a row above which tiles hold one (SMALLD_THRESHOLD)
#: Cycles of InitOutput and SyncAll before the first load: what three recorded launches on a 910B4
#: (32768 and 65536 rows of 128, 4096 of 1024) take beyond their launch, vector and load times,
#: 33-37 us at 1.65 GHz, whatever the rows.
MEETING = 55_000
_DY, _X, _RSTD, _GAMMA = range(4)
_DX, _DGAMMA = 4, 5


def _job(args: KernelArgs) -> RowJob:
    return row_job(args.operands[0], args.operands[_GAMMA])


def _footprint(args: KernelArgs, m: int) -> int:
    """UB bytes: two slots of dy, x, dx and rstd, three fp32 tiles, sums, gamma and its gradient."""
    job, x = _job(args), args.operands[0].dtype.size
    row = job.pitch * (6 * x + 12) + 4 * REPEAT + 128
    return m * row + job.pitch * (4 + 4 + 4 + 3 * args.operands[_GAMMA].dtype.size) + 1024


@kernel("RmsNormGrad")
class RmsNormGrad(TileKernel):
    """dy, x, rstd, gamma → dx, gradient of gamma (into zeros). Tiling: blocks, `m` rows a tile."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Floats in ND, statistics and the gradient of gamma in fp32."""
        if args.op_type != "RmsNormGrad":
            return f"operator {args.op_type}"
        if len(args.inputs) != 4 or len(args.outputs) != 2:
            return f"{len(args.inputs)} inputs and {len(args.outputs)} outputs"
        if any(args.operands[i].dtype.np != F32 for i in (_RSTD, _DGAMMA)):
            return "statistics or a gradient of gamma in other than fp32"
        return refuse_rows(args, _GAMMA, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """One: as many rows as fit."""
        job = _job(args)
        if m := rows_that_fit(job, partial(_footprint, args), chip):
            m = 1 if job.width > MERGED else m
            yield {"m": m, "blocks": job.blocks(chip.vector_cores())}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling: its tiles."""
        return float(_job(args).tiles(tiling, 0))

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Every tensor once; gamma and its gradient once a block."""
        return row_plan(args, _job(args), tiling, (_GAMMA, _DGAMMA))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """Meet, work tile by tile, add the gradient of gamma."""
        run = _Run(k, args, tiling)
        yield k.stall(Pipe.MTE2, MEETING)
        yield from run.start()
        for _ in run.tile.walk(tiling, block):
            yield from run.merged() if run.job.width <= MERGED else run.single()
        yield from run.finish()


class _Run:
    """One block at work: `standard` holds x·rstd, `g` dy·gamma, `work` products and dx."""

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling) -> None:
        self.k, self.job = k, _job(args)
        self.tile = RowTile(k, self.job, tiling["m"], slots=2)
        self.read = k.flag_id()  #: the scalar unit has read a row's mean

    def start(self) -> Iterator[Instr]:
        """Gamma in fp32, its gradient zero."""
        k, pitch = self.k, (self.job.pitch,)
        stored = yield from self.tile.load_gamma(_GAMMA)
        self.gamma = self.tile.stage.temp("gamma", pitch, F32)
        yield k.vec("conv" if stored.dtype != F32 else "copy", self.gamma, stored)
        queue = self.tile.stage.out(_DGAMMA, pitch, F32, self.job.pitch)
        self.dgamma = yield from queue
        yield k.vec("dup", self.dgamma, scalar=0.0)
        if self.job.width > MERGED:
            yield k.set_flag(Pipe.V, Pipe.MTE2, self.read)

    def finish(self) -> Iterator[Instr]:
        """Add the block's gradient of gamma to the others'."""
        if self.job.width > MERGED:
            yield self.k.wait_flag(Pipe.V, Pipe.MTE2, self.read)
        width = self.job.width
        gm = Region.dense(GM, _DGAMMA, 0, (width,), F32)
        yield from self.tile.stage.store(gm, self.dgamma[:width], atomic=True)

    def merged(self) -> Iterator[Instr]:
        """A tile of several rows."""
        k, tile = self.k, self.tile
        rstd = yield from tile.load_rows(_RSTD)
        standard, work = tile.temp("standard"), tile.temp("work")
        yield from tile.spread(rstd, work)
        standard = yield from tile.wide(_X, "standard")
        yield k.vec("mul", standard, standard, work)
        g = yield from tile.wide(_DY, "g")
        yield k.vec("mul", work, g, standard)
        for i in range(tile.rows):
            add = partial(k.vec, "add", self.dgamma, self.dgamma, work[i])
            yield k.memo(("dgamma", i == 0), add)
        yield k.vec("copy", work, tile.columns(self.gamma))
        yield k.vec("mul", g, g, work)
        yield k.vec("mul", work, g, standard)
        mean = yield from tile.row_sum("mean", work)
        yield k.vec("muls", mean, mean, scalar=1.0 / self.job.width)
        yield from tile.spread(mean, work)
        yield k.vec("mul", work, standard, work)
        yield k.vec("sub", work, g, work)
        yield from tile.spread(rstd, g)
        yield tile.stage.free(_RSTD)
        yield k.vec("mul", work, work, g)
        yield from tile.store(_DX, work)

    def single(self) -> Iterator[Instr]:
        """One row; its mean and rstd are scalars of the instructions that follow."""
        k, tile = self.k, self.tile
        yield k.wait_flag(Pipe.V, Pipe.MTE2, self.read)
        rstd = yield from tile.load_rows(_RSTD)
        standard = yield from tile.wide(_X, "standard")
        work = tile.temp("work")
        yield self._scaled(standard, standard, rstd)
        g = yield from tile.wide(_DY, "g")
        yield k.vec("mul", work, g, standard)
        yield k.vec("add", self.dgamma, self.dgamma, work[0])
        yield k.vec("mul", g, g, tile.columns(self.gamma))
        yield k.vec("mul", work, g, standard)
        mean = yield from tile.row_sum_by_halves("mean", work)
        yield k.set_flag(Pipe.V, Pipe.MTE2, self.read)
        yield k.vec("muls", mean, mean, scalar=1.0 / self.job.width)
        yield self._scaled(work, standard, mean)
        yield k.vec("sub", work, g, work)
        yield self._scaled(work, work, rstd)
        yield tile.stage.free(_RSTD)
        yield from tile.store(_DX, work)

    def _scaled(self, dst: Region, x: Region, factor: Region) -> Instr:
        """dst = x · factor, one value that the scalar unit hands over (vmuls)."""
        return self.k.vec_by("muls", np.multiply, dst, dst, x, factor.expand(1))
