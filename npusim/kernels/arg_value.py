"""ArgMaxWithValue, ArgMinWithValue: rows reduced with their index by vcmax and vcmin.

The instruction gives the extreme of each repeat with its place; a second one over those finds the
row's, and which repeat it came from says the index.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.elementwise import MIN_BLOCK_BYTES, unsupported_type
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.library_rows import UB_LEFT, RowJob, row_plan
from npusim.kernels.rows import has_reduction, padded
from npusim.kernels.stage import Stage
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, Plan, Tiling, kernel
from npusim.program.region import GM, Region

I32 = np.dtype(np.int32)
_OPS = {"ArgMaxWithValue": ("max", np.argmax), "ArgMinWithValue": ("min", np.argmin)}


def _job(args: KernelArgs) -> RowJob:
    shape = args.operands[0].shape
    return RowJob(prod(shape[:-1]), shape[-1])


def _pieces(args: KernelArgs, chip: ChipSpec) -> tuple[int, int]:
    """Elements of a repeat, and repeats of a row."""
    per = chip.core.vector.repeat_bytes // args.operands[0].dtype.size
    return per, -(-_job(args).width // per)


def _footprint(args: KernelArgs, chip: ChipSpec, m: int) -> int:
    """UB bytes: two slots of rows, an extreme a repeat, two results a row in two slots."""
    per, n = _pieces(args, chip)
    size = args.operands[0].dtype.size
    return m * (2 * n * per * size + padded(n, 16) * size + 2 * (4 + size)) + 512


@kernel("ArgValue")
class ArgValue(TileKernel):
    """Index and value of each row's extreme. Tiling: blocks, `m` rows a tile."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """fp16 or fp32 in ND, where one instruction takes the extreme of a repeat."""
        if args.op_type not in _OPS or len(args.outputs) != 2 or args.epilogue:
            return f"operator {args.op_type} with {len(args.outputs)} outputs"
        x, index, value = args.operands[0], *args.outputs
        if any(o.layout is not Layout.ND or not o.nbytes for o in args.operands):
            return "takes ND tensors that are not empty"
        if index.dtype is not DType.INT32 or value.dtype is not x.dtype:
            return f"results in {index.dtype.value} and {value.dtype.value}"
        if x.dtype not in (DType.FLOAT16, DType.FLOAT32):
            return f"{args.op_type} of {x.dtype.value}"
        if prod(index.shape) != _job(args).rows or prod(value.shape) != _job(args).rows:
            return f"results {index.shape} of {x.shape}: other than the last axis"
        if not has_reduction(chip, _OPS[args.op_type][0], x.dtype.np):
            return f"the vector unit takes no extreme of a repeat of {x.dtype.value}"
        return unsupported_type(x.dtype, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """One: as many rows as fit."""
        job, room = _job(args), chip.core.ub.size - UB_LEFT
        one = _footprint(args, chip, 1)
        if one > room:
            return
        least = max(1, MIN_BLOCK_BYTES // (job.width * args.operands[0].dtype.size))
        blocks = job.blocks(max(1, min(chip.vector_cores(), job.rows // least)))
        most = 1 + (room - one) // (_footprint(args, chip, 2) - one)
        yield {"m": min(-(-job.rows // blocks), most), "blocks": blocks}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling: its tiles."""
        return float(_job(args).tiles(tiling, 0))

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Every byte once."""
        return row_plan(args, _job(args), tiling)

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """Load rows, reduce them twice, store both results."""
        job, stage, m = _job(args), Stage(k), tiling["m"]
        r0, r1 = job.share(tiling["blocks"], block)
        for t in k.loop(job.tiles(tiling, block)):
            start = r0 + t * m
            yield from _tile(k, args, stage, m, start, min(r1, start + m))


def _tile(k: Kernel, args: KernelArgs, stage: Stage, m: int, r0: int, r1: int) -> Iterator[Instr]:
    """Rows [r0, r1)."""
    job, dtype = _job(args), args.operands[0].dtype.np
    op, pick = _OPS[args.op_type]
    per, n = _pieces(args, k.chip)
    rows, width = r1 - r0, job.width
    gm = Region.dense(GM, 0, 0, (job.rows, width), dtype)[r0:r1]
    x = yield from stage.load_inside(gm, m * n * per, (rows, n * per), lambda t: t[:, :width])
    part = stage.temp("part", (rows, padded(n, 16)), dtype, m * padded(n, 16))[:, :n]
    whole = width // per
    if whole:
        yield k.reduce("c" + op, part[:, :whole], x[:, : whole * per].split(1, per))
    if whole < n:
        tail = x[:, whole * per : width]
        yield k.reduce("c" + op, part[:, whole:], tail.split(1, width - whole * per))
    value = yield from stage.out(2, (rows,), dtype, m)
    yield k.reduce("c" + op, value, part)
    index = yield from stage.out(1, (rows,), I32, m)
    yield k.vec_by("c" + op, lambda a: pick(a, -1), part, index, x[:, :width])
    yield stage.free(0)
    for i, result in ((2, value), (1, index)):
        out = Region.dense(GM, i, 0, (job.rows,), result.dtype)[r0:r1]
        yield from stage.store(out, result)
