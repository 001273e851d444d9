"""LayerNormBetaGammaBackpropV2: sums over the rows, a group of columns per block.

A block walks all rows of its columns: FRACTAL_NZ one block of 16 columns (a block dim of N1), ND
48 columns or more (block dim at most 16), which makes every burst of the load a short one. Four
passes: (conversion,) product, two accumulating adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.elementwise import unsupported_type
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.rows import F32, UB_SHARE
from npusim.kernels.stage import Loading, Stage
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

REPEAT = 64  #: fp32 elements
LANES = 16
ND_BLOCKS = 16  #: at most, over the columns of an ND tensor


def _view(args: KernelArgs) -> tuple[int, int, int]:
    """(column groups, rows, columns of a group) before a tiling splits ND columns."""
    spec = args.operands[0]
    s = spec.storage_shape
    if spec.layout is Layout.FRACTAL_NZ:
        return s[-4], s[-3] * s[-2], s[-1]
    return s[-1] // LANES, prod(s[:-1]), LANES


@kernel("ColumnSums")
class ColumnSums(TileKernel):
    """dy, standardised x → Σ dy·x, Σ dy over the rows, fp32."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        spec = args.inputs[0]
        if args.op_type != "LayerNormBetaGammaBackpropV2" or spec is None or args.epilogue:
            return f"no program for {args.op_type}"
        if spec.layout not in (Layout.ND, Layout.FRACTAL_NZ) or not spec.nbytes:
            return f"takes ND or FRACTAL_NZ, not {spec.layout.value}"
        blocked = spec.layout is Layout.FRACTAL_NZ
        if spec.shape[-1] % LANES or (blocked and len(spec.shape) != 2):
            return "whole blocks of 16 columns of a matrix only"
        if any(o.dtype not in (DType.FLOAT16, DType.FLOAT32) for o in args.operands):
            return "types other than fp16 and fp32"
        return unsupported_type(spec.dtype, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        groups, rows, lanes = _view(args)
        nz = args.operands[0].layout is Layout.FRACTAL_NZ
        blocks = min(groups, groups if nz else ND_BLOCKS, chip.vector_cores())
        while groups % blocks:
            blocks -= 1
        width = groups // blocks * lanes
        per = width * (2 * sum(o.dtype.size for o in args.operands[:2]) + 8)
        vectors = 7 * 4 * width  # two sums, a part, two slots of each output
        m = min(rows, int((chip.core.ub.size * UB_SHARE - vectors) / per))
        if m >= 1:
            yield {"m": m, "blocks": blocks}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        groups, rows, lanes = _view(args)
        return groups / tiling["blocks"] * rows * lanes

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        traffic = {i: Traffic(o.nbytes, o.nbytes) for i, o in enumerate(args.operands)}
        n = tiling["blocks"]
        return Plan(tiling, n, traffic, group_blocks([0] * n))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        run = _Run(k, args, tiling, block)
        yield from run.start()
        whole, rest = divmod(run.rows, tiling["m"])
        for g in range(run.g0, run.g1):
            for i in k.loop(whole):
                yield from run.tile(g, i * tiling["m"], (i + 1) * tiling["m"])
            if rest:
                yield from run.tile(g, whole * tiling["m"], run.rows)
        yield from run.finish()


class _Run:
    """One block: columns [c0, c0 + width) of the matrix, in loads of one piece or (NZ) of 16."""

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> None:
        self.k, self.args, self.stage = k, args, Stage(k)
        groups, self.rows, lanes = _view(args)
        mine = groups // tiling["blocks"]
        self.nz = args.operands[0].layout is Layout.FRACTAL_NZ
        self.lanes = lanes if self.nz else mine * lanes
        self.g0, self.g1 = (block * mine, (block + 1) * mine) if self.nz else (block, block + 1)
        self.c0, self.width = block * mine * lanes, mine * lanes
        self.groups = groups if self.nz else tiling["blocks"]
        self.room = tiling["m"] * self.lanes

    def _total(self, j: int) -> Region:
        return self.stage.temp(f"total{j}", (self.g1 - self.g0, self.lanes), F32)

    def start(self) -> Iterator[Instr]:
        """Clear the sums."""
        for j in (0, 1):
            yield self.k.vec("dup", self._total(j), scalar=0.0)

    def _load(self, index: int, g: int, r0: int, r1: int) -> Loading:
        dtype = self.args.operands[index].dtype.np
        if self.nz:
            gm = Region.dense(GM, index, 0, (self.groups, self.rows, self.lanes), dtype)
            piece = gm[g, r0:r1]
        else:
            gm = Region.dense(GM, index, 0, (self.rows, self.groups * self.lanes), dtype)
            piece = gm[r0:r1, g * self.lanes : (g + 1) * self.lanes]
        return self.stage.load(piece, self.room)

    def tile(self, g: int, r0: int, r1: int) -> Iterator[Instr]:
        """Rows [r0, r1) of one group."""
        k = self.k
        dy = yield from self._load(0, g, r0, r1)
        x = yield from self._load(1, g, r0, r1)
        wide = self.stage.temp("dy", dy.shape, F32, self.room)
        product = self.stage.temp("product", dy.shape, F32, self.room)
        for name, index, source in (("dy", 0, dy), ("x", 1, x)):
            if source.dtype != F32:
                yield k.vec("conv", wide if name == "dy" else product, source)
                yield self.stage.free(index)
        first = wide if dy.dtype != F32 else dy
        second = product if x.dtype != F32 else x
        yield k.vec("mul", product, first, second)
        part = self.stage.temp("part", (self.lanes,), F32)
        for j, source in enumerate((product, first)):
            total = self._total(j)[g - self.g0]
            yield k.vec_by("accumulate", _over_rows, self._walked(source), part, source)
            yield k.vec("add", total, total, part)
        for index, source in ((0, dy), (1, x)):
            if source.dtype == F32:
                yield self.stage.free(index)

    def _walked(self, source: Region) -> Region:
        """What an instruction that adds a tile up walks: NZ four rows a repeat, ND row by row."""
        if self.nz:
            return source
        m, width = source.shape
        line = -(-width // REPEAT) * REPEAT
        return Region.dense("UB", -1, 0, (m, line + REPEAT), F32)[:, :width]

    def finish(self) -> Iterator[Instr]:
        """Store the block's sums."""
        for j in (0, 1):
            index = len(self.args.inputs) + j
            out = yield from self.stage.out(index, (self.width,), F32, self.width)
            flat = self._total(j)
            yield self.k.vec("copy", out.split(0, self.lanes), flat)
            gm = Region.dense(GM, index, self.c0 * 4, (self.width,), F32)
            yield from self.stage.store(gm, out)


def _over_rows(x: np.ndarray) -> np.ndarray:
    return x.sum(0)
