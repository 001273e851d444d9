"""RmsNorm and AddRmsNorm as CANN's Ascend C kernels compute them: one slot a queue, no overlap.

Rows of at most `MERGED` elements share a tile and its barriers, with gamma spread over the tile's
rows once a block; longer ones are taken one by one. (CANN's rms_norm_merge_n.h and rms_norm.h.)
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
from npusim.kernels.rows import F32
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, Plan, Tiling, kernel

MERGED = 2000  #: elements of a row above which tiles hold one (SMALL_REDUCE_NUM of CANN's tiling)
#: Cycles of a tile, and of each of its elements, that the estimate counts. Fitted to what the
#: machine makes of AddRmsNorm with rows of 768 to 4096 on 910A and 910B2 (within 15 %).
EXPOSED, PER_ELEMENT = 1000.0, 0.45
GAMMA = {"RmsNorm": 1, "AddRmsNorm": 2}  #: operand index


def _job(args: KernelArgs) -> RowJob:
    return row_job(args.operands[0], args.operands[GAMMA[args.op_type]])


def _footprint(args: KernelArgs, m: int) -> int:
    """UB bytes: a slot of each tensor, gamma per tile row, two fp32 tiles, partial sums."""
    job, gamma = _job(args), GAMMA[args.op_type]
    x = args.operands[0].dtype.size
    scale = args.operands[gamma].dtype.size
    whole = (2 if gamma == 1 else 4) * x
    row = job.pitch * (whole + scale + 8 + (4 if gamma == 2 else 0)) + 4 * REPEAT + 96
    return m * row + 3 * job.pitch * scale + 512


@kernel("RmsNorm")
class RmsNorm(TileKernel):
    """x (+ x2), gamma → y, 1/√(mean(x²) + ε) a row (, x + x2). Tiling: blocks, `m` rows a tile."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Floats in ND, the statistics in fp32."""
        gamma = GAMMA.get(args.op_type)
        if gamma is None:
            return f"operator {args.op_type}"
        if len(args.inputs) != gamma + 1 or len(args.outputs) != gamma + 1:
            return f"{len(args.inputs)} inputs and {len(args.outputs)} outputs"
        if args.outputs[1].dtype.np != F32:
            return f"statistics in {args.outputs[1].dtype.value}"
        return refuse_rows(args, gamma, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """One: as many rows as fit."""
        job = _job(args)
        if m := rows_that_fit(job, partial(_footprint, args), chip):
            m = 1 if job.width > MERGED else m
            yield {"m": m, "blocks": job.blocks(chip.vector_cores())}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling: the time of its tiles, for who compares operators."""
        job = _job(args)
        return job.tiles(tiling, 0) * (EXPOSED + PER_ELEMENT * tiling["m"] * job.width)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Every tensor once; gamma once a block."""
        return row_plan(args, _job(args), tiling, (GAMMA[args.op_type],))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """Load, normalise and store tile by tile."""
        run = _Run(k, args, tiling)
        yield from run.start()
        for _ in run.tile.walk(tiling, block):
            yield from run.one()


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling) -> None:
        self.k, self.args, self.job = k, args, _job(args)
        self.tile = RowTile(k, self.job, tiling["m"], slots=1)
        self.gamma_index = GAMMA[args.op_type]
        self.epsilon = float(args.get("epsilon", 1e-6))
        self.m = tiling["m"]

    def start(self) -> Iterator[Instr]:
        """Gamma, spread over the rows of a tile as it is stored."""
        stored = yield from self.tile.load_gamma(self.gamma_index)
        shape = (self.m, self.job.pitch)
        self.gamma = self.tile.stage.temp("gamma", shape, stored.dtype)
        yield self.k.vec("copy", self.gamma, stored.expand(0).broadcast(shape))

    def _input(self) -> Iterator[Instr]:
        """x in fp32, in self.x; AddRmsNorm: the sum, which it stores too."""
        tile = self.tile
        self.x = yield from tile.wide(0, "x")
        if self.gamma_index == 1:
            return
        other = yield from tile.wide(1, "other")
        yield self.k.vec("add", self.x, self.x, other)
        yield from tile.store(len(self.args.inputs) + 2, self.x)

    def one(self) -> Iterator[Instr]:
        """One tile."""
        k, tile, out = self.k, self.tile, len(self.args.inputs)
        yield from self._input()
        square = tile.temp("square")
        yield k.vec("mul", square, self.x, self.x)
        rstd = yield from tile.row_sum("rstd", square)
        yield k.vec("muls", rstd, rstd, scalar=1.0 / self.job.width)
        yield k.vec("adds", rstd, rstd, scalar=self.epsilon)
        yield k.vec("sqrt", rstd, rstd)
        one = tile.per_row("one")
        yield k.vec("dup", one, scalar=1.0)
        yield k.vec("div", rstd, one, rstd)
        yield from tile.store_rows(out + 1, rstd)
        yield from tile.spread(rstd, square)
        yield k.vec("mul", square, self.x, square)
        yield k.vec("mul", square, square, (yield from self._scale()))
        yield from tile.store(out, square)

    def _scale(self) -> Spread:
        """Gamma of the tile's rows in fp32; stored in 16 bits it is converted for every tile."""
        gamma = self.gamma[: self.tile.rows]
        if gamma.dtype == F32:
            return gamma
        yield self.k.vec("conv", self.x, gamma)
        return self.x
