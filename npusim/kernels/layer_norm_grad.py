"""LayerNormGradV3: the gradient of a layer normalisation and of its scale and offset in one kernel.

Tiles of as many rows as UB holds, in fp32, as RmsNormGrad has them; the gradients of scale and
offset add up row by row, and the blocks add theirs atomically into zeros after they have met.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from npusim.chip.spec import ChipSpec
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.library_rows import (
    REPEAT,
    RowJob,
    RowTile,
    Spread,
    refuse_rows,
    row_job,
    row_plan,
    rows_that_fit,
)
from npusim.kernels.rms_norm_grad import MEETING
from npusim.kernels.rows import F32
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, kernel
from npusim.program.region import GM, Region

_DY, _X, _RSTD, _MEAN, _GAMMA = range(5)
_DX, _DGAMMA, _DBETA = 5, 6, 7


def _job(args: KernelArgs) -> RowJob:
    return row_job(args.operands[0], args.operands[_GAMMA])


def _footprint(args: KernelArgs, m: int) -> int:
    """UB bytes: two slots of dy, x, dx and statistics, three fp32 tiles, sums, column vectors."""
    job, x = _job(args), args.operands[0].dtype.size
    row = job.pitch * (6 * x + 12) + 4 * REPEAT + 192
    return m * row + job.pitch * (20 + 3 * args.operands[_GAMMA].dtype.size) + 1024


@kernel("LayerNormGrad")
class LayerNormGrad(TileKernel):
    """dy, x, 1/σ, mean, scale → dx, gradients of scale and offset. Tiling: blocks, `m` rows."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Floats in ND, statistics and the gradients of scale and offset in fp32."""
        if args.op_type != "LayerNormGradV3":
            return f"operator {args.op_type}"
        if len(args.inputs) != 5 or len(args.outputs) != 3:
            return f"{len(args.inputs)} inputs and {len(args.outputs)} outputs"
        if any(args.operands[i].dtype.np != F32 for i in (_RSTD, _MEAN, _DGAMMA, _DBETA)):
            return "statistics or gradients of scale and offset in other than fp32"
        return refuse_rows(args, _GAMMA, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """One: as many rows as fit."""
        job = _job(args)
        if m := rows_that_fit(job, partial(_footprint, args), chip):
            yield {"m": m, "blocks": job.blocks(chip.vector_cores())}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling: its tiles."""
        return float(_job(args).tiles(tiling, 0))

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Every tensor once; column vectors once a block."""
        return row_plan(args, _job(args), tiling, (_GAMMA, _DGAMMA, _DBETA))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """Meet, work tile by tile, add the gradients of scale and offset."""
        run = _Run(k, args, tiling)
        yield k.stall(Pipe.MTE2, MEETING)
        yield from run.start()
        for _ in run.tile.walk(tiling, block):
            yield from run.one()
        yield from run.finish()


class _Run:
    """One block at work: `standard` holds (x - mean)/σ, `g` dy·scale, `work` products and dx."""

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling) -> None:
        self.k, self.job = k, _job(args)
        self.tile = RowTile(k, self.job, tiling["m"], slots=2)

    def start(self) -> Iterator[Instr]:
        """Scale in fp32, the gradients zero."""
        k, pitch = self.k, (self.job.pitch,)
        stored = yield from self.tile.load_gamma(_GAMMA)
        self.gamma = self.tile.stage.temp("gamma", pitch, F32)
        yield k.vec("conv" if stored.dtype != F32 else "copy", self.gamma, stored)
        self.sums: dict[int, Region] = {}
        for i in (_DGAMMA, _DBETA):
            self.sums[i] = yield from self.tile.stage.out(i, pitch, F32, self.job.pitch)
            yield k.vec("dup", self.sums[i], scalar=0.0)

    def finish(self) -> Iterator[Instr]:
        """Add the block's gradients of scale and offset to the others'."""
        width = self.job.width
        for i, total in self.sums.items():
            gm = Region.dense(GM, i, 0, (width,), F32)
            yield from self.tile.stage.store(gm, total[:width], atomic=True)

    def _add_rows(self, index: int, rows: Region) -> Iterator[Instr]:
        total = self.sums[index]
        for i in range(self.tile.rows):
            add = partial(self.k.vec, "add", total, total, rows[i])
            yield self.k.memo(("rows", index, i == 0), add)

    def one(self) -> Iterator[Instr]:
        """One tile."""
        k, tile = self.k, self.tile
        rstd = yield from tile.load_rows(_RSTD)
        mean = yield from tile.load_rows(_MEAN)
        work = tile.temp("work")
        standard = yield from tile.wide(_X, "standard")
        yield from tile.spread(mean, work)
        yield tile.stage.free(_MEAN)
        yield k.vec("sub", standard, standard, work)
        yield from tile.spread(rstd, work)
        yield k.vec("mul", standard, standard, work)
        g = yield from tile.wide(_DY, "g")
        yield from self._add_rows(_DBETA, g)
        yield k.vec("mul", work, g, standard)
        yield from self._add_rows(_DGAMMA, work)
        yield k.vec("mul", g, g, tile.columns(self.gamma))
        yield k.vec("mul", work, g, standard)
        slope = yield from self._mean("slope", work)
        shift = yield from self._mean("shift", g)
        yield from tile.spread(shift, work)
        yield k.vec("sub", g, g, work)
        yield from tile.spread(slope, work)
        yield k.vec("mul", work, work, standard)
        yield k.vec("sub", g, g, work)
        yield from tile.spread(rstd, work)
        yield tile.stage.free(_RSTD)
        yield k.vec("mul", work, g, work)
        yield from tile.store(_DX, work)

    def _mean(self, name: str, rows: Region) -> Spread:
        """The mean of each row."""
        mean = yield from self.tile.row_sum(name, rows)
        yield self.k.vec("muls", mean, mean, scalar=1.0 / self.job.width)
        return mean
