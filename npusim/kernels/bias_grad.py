"""BiasAddGrad: the sum of a matrix over its rows in fp32, as CANN's first-generation kernel has it.

Blocks split the columns. Of a FRACTAL_NZ matrix, seen as (N1, rows, 16), a block walks its column
blocks one after the other: four rows are a repeat, which adds onto a held one. Of an ND matrix a
block takes a strip of columns of many rows, converts them and adds them up row by row, a
short strip at partial repeats; rows that are no whole 32 B blocks come one a command.
"""

from __future__ import annotations

from collections.abc import Iterator

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.elementwise import unsupported_type
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.row_programs import held_sum
from npusim.kernels.rows import F32, PAD, UB_SHARE, fold_rows, largest, padded
from npusim.kernels.stage import Stage
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

BLOCK = 32  #: bytes
LANES = 16  #: columns of a FRACTAL_NZ block
REPEAT = 64  #: fp32 elements
FOLD = REPEAT // LANES  #: rows of LANES that a repeat adds


def _view(args: KernelArgs) -> tuple[int, int, int]:
    """(column blocks, rows, columns): FRACTAL_NZ as (N1, M, 16), ND as (1, M, N)."""
    s = args.operands[0].shape
    return (s[0], s[1], s[2]) if len(s) == 3 else (1, s[0], s[1])


def _ragged(args: KernelArgs) -> bool:
    spec = args.operands[0]
    return bool(spec.shape[-1] * spec.dtype.size % BLOCK)


@kernel("BiasGrad")
class BiasGrad(TileKernel):
    """ReduceSum of (N1, M, 16) over axis 1, or of (M, N) over axis 0; keepdims 0."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        spec, out = args.inputs[0], args.outputs[0]
        if args.op_type != "ReduceSum" or spec is None or args.epilogue:
            return f"no program for {args.op_type}"
        if spec.layout is not Layout.ND or len(spec.shape) not in (2, 3) or not spec.nbytes:
            return "takes a matrix, or its column blocks"
        axis, nz = len(spec.shape) - 2, len(spec.shape) == 3
        if args.get("axes") != (axis,) or out.shape != spec.shape[:axis] + spec.shape[axis + 1 :]:
            return f"sums over axis {axis} only"
        if nz and (spec.shape[2] != LANES or spec.shape[1] % FOLD):
            return f"column blocks of {spec.shape[1:]}"
        if spec.dtype not in (DType.FLOAT16, DType.FLOAT32) or out.dtype is not spec.dtype:
            return f"element type {spec.dtype.value}"
        return unsupported_type(spec.dtype, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        groups, rows, columns = _view(args)
        cores, size = chip.vector_cores(), args.operands[0].dtype.size
        room = int(chip.core.ub.size * UB_SHARE)
        if len(args.operands[0].shape) == 3:
            mine = -(-groups // cores)
            room -= 4 * (REPEAT + 6 * LANES)
            m = largest(rows, LANES, lambda n: n * LANES * (2 * size + 4) <= room)
            m = padded(-(-rows // -(-rows // m)), LANES)
            if m * LANES * (2 * size + 4) <= room:
                yield {"m": m, "w": LANES, "blocks": -(-groups // mine)}
            return
        w = max(PAD, -(-columns // cores))
        w = min(columns, w if _ragged(args) else padded(w))
        line = padded(w, REPEAT)
        room -= 12 * line + 8 * padded(w)
        m = (
            1
            if _ragged(args)
            else largest(rows, 1, lambda n: n * (2 * w * size + 4 * line) <= room)
        )
        if 2 * w * size + 4 * line <= room:
            yield {"m": -(-rows // -(-rows // m)), "w": w, "blocks": -(-columns // w)}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling: its elements per block."""
        groups, rows, columns = _view(args)
        return groups * rows * columns / tiling["blocks"]

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        traffic = {i: Traffic(o.nbytes, o.nbytes) for i, o in enumerate(args.operands)}
        n = tiling["blocks"]
        keys = [(s.stop - s.start) for s in (_share(args, tiling, b) for b in range(n))]
        return Plan(tiling, n, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        run = _Run(k, args, tiling)
        share = _share(args, tiling, block)
        if len(args.operands[0].shape) == 3:
            for group in range(share.start, share.stop):
                yield from run.column_block(group)
        else:
            yield from run.strip(share)


def _share(args: KernelArgs, tiling: Tiling, block: int) -> slice:
    """A block's column blocks (NZ), or columns (ND)."""
    groups, _, columns = _view(args)
    if len(args.operands[0].shape) == 3:
        return slice(*(groups * (block + j) // tiling["blocks"] for j in (0, 1)))
    return slice(block * tiling["w"], min(columns, (block + 1) * tiling["w"]))


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling) -> None:
        self.k, self.args, self.m, self.w = k, args, tiling["m"], tiling["w"]
        self.dtype, self.stage = args.operands[0].dtype.np, Stage(k)
        self.shape = _view(args)

    def _gm(self) -> Region:
        return Region.dense(GM, 0, 0, self.shape, self.dtype)

    def _wide(self, x: Region, row: int) -> Iterator[Instr]:
        """The tile x in fp32, at `self.tile`; rows are `row` elements apart."""
        place = self.stage.temp("wide", (x.shape[0], row), F32, self.m * row)
        self.tile = place[:, : x.shape[1]]
        yield self.k.vec("conv" if x.dtype != F32 else "copy", self.tile, x)
        yield self.stage.free(0)

    def _store(self, total: Region, gm: Region) -> Iterator[Instr]:
        out = yield from self.stage.out(1, total.shape, self.dtype, padded(self.w))
        yield self.k.vec("conv" if out.dtype != F32 else "copy", out, total)
        yield from self.stage.store(gm, out)

    def column_block(self, group: int) -> Iterator[Instr]:
        """One block of 16 columns, all rows."""
        k, rows = self.k, self.shape[1]
        total = self.stage.temp("total", (FOLD, LANES), F32)
        part = self.stage.temp("part", (FOLD, LANES), F32)
        yield k.vec("dup", total, scalar=0.0)
        for r in range(0, rows, self.m):
            m = min(self.m, rows - r)
            x = yield from self.stage.load(self._gm()[group, r : r + m], self.m * LANES)
            yield from self._wide(x, LANES)
            yield held_sum(k, part, self.tile.split(0, FOLD))
            yield k.vec("add", total, total, part)
        yield from fold_rows(k, "add", total[0], total, total)
        yield from self._store(
            total[0], Region.dense(GM, 1, 0, (self.shape[0], LANES), self.dtype)[group]
        )

    def strip(self, share: slice) -> Iterator[Instr]:
        """A strip of columns, all rows."""
        k, (_, rows, columns), w = self.k, self.shape, share.stop - share.start
        total = self.stage.temp("total", (w,), F32)
        part = self.stage.temp("part", (w,), F32)
        yield k.vec("dup", total, scalar=0.0)
        gm = self._gm()[0, :, share]
        whole, rest = divmod(rows, self.m)
        for i in k.loop(whole):
            yield from self._rows(gm[i * self.m : (i + 1) * self.m], total, part)
        if rest:
            yield from self._rows(gm[whole * self.m :], total, part)
        yield from self._store(total, Region.dense(GM, 1, 0, (columns,), self.dtype)[share])

    def _rows(self, gm: Region, total: Region, part: Region) -> Iterator[Instr]:
        """A tile of a strip, added to its sums."""
        k, (m, w) = self.k, gm.shape
        x = yield from self.stage.load(gm, self.m * w)
        yield from self._wide(x, padded(w, REPEAT))
        if m > 1:
            yield k.reduce("accumulate", part, self.tile)
            yield k.vec("add", total, total, part)
        else:
            yield k.vec("add", total, total, self.tile[0])
