"""Kernels over rows of ND and FRACTAL_NZ tensors: a tile holds whole rows, in fp32.

Storage is seen as (batch, N1, M, L): L = 16 in FRACTAL_NZ, where a row is N1 blocks of 16; N1 = 1
and L = the row in ND. The programs of a tile are in `row_programs`; ND rows are taken one by one,
as CANN's kernels do when they need a value per row, NZ rows as many as fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import Layout
from npusim.kernels.elementwise import unsupported_type
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.row_programs import GROUP, PROGRAMS, Rows
from npusim.kernels.rows import largest
from npusim.program.isa import Instr
from npusim.program.kernel import (
    KernelArgs,
    Plan,
    Tiling,
    Traffic,
    group_blocks,
    kernel,
)

UB_SHARE = 0.95  #: of UB that tiles take: more rows share the per-row instructions


@dataclass(frozen=True)
class Job:
    """A launch: (batch, N1, rows, lanes), and which operands have that shape."""

    batch: int
    n1: int
    rows: int
    lanes: int
    whole: tuple[int, ...]

    def share(self, tiling: Tiling, block: int) -> tuple[int, int]:
        """Tiles [t0, t1) of a block, over all batches."""
        total = self.batch * -(-self.rows // tiling["m"])
        t0, t1 = (total * (block + j) // tiling["blocks"] for j in (0, 1))
        return t0, t1


def _job(args: KernelArgs) -> Job:
    spec = args.operands[0]
    whole = tuple(
        i for i, o in enumerate(args.operands) if o.shape == spec.shape and o.layout is spec.layout
    )
    s = spec.storage_shape
    if spec.layout is Layout.FRACTAL_NZ:
        return Job(prod(s[:-4]), s[-4], s[-3] * s[-2], s[-1], whole)
    return Job(1, 1, prod(s[:-1]), s[-1], whole)


def _bytes_per_element(args: KernelArgs, job: Job) -> int:
    """UB bytes per element: two slots of each whole operand, the program's fp32 temporaries."""
    size = sum(2 * args.operands[i].dtype.size for i in job.whole)
    return size + 4 * PROGRAMS[args.op_type].temporaries + 2


@kernel("RowTiles")
class RowTiles(TileKernel):
    """Row programs: LayerNorm in NZ, LayerNormXBackpropV2, softmax in NZ, softmax gradients."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        spec = args.inputs[0]
        if args.op_type not in PROGRAMS or spec is None or args.epilogue:
            return f"no row program for {args.op_type}"
        if spec.layout not in (Layout.ND, Layout.FRACTAL_NZ) or not spec.nbytes:
            return f"takes ND or FRACTAL_NZ, not {spec.layout.value}"
        if spec.layout is Layout.FRACTAL_NZ and (spec.shape[-1] % 16 or spec.shape[-2] % 16):
            return f"FRACTAL_NZ of {spec.shape}: whole blocks of 16 only"
        stored = PROGRAMS[args.op_type].stored
        if any(o.dtype not in stored for o in args.operands):
            return f"types other than {', '.join(t.value for t in stored)}"
        return unsupported_type(spec.dtype, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        job = _job(args)
        room = chip.core.ub.size * UB_SHARE
        per = job.n1 * job.lanes * _bytes_per_element(args, job) + 512
        fixed = _vector_bytes(args, job)
        if per + fixed > room:
            return
        m = 1
        if job.n1 > 1:
            if GROUP * per + fixed > room:
                return
            most = largest(job.rows // GROUP, 1, lambda n: n * GROUP * per + fixed <= room)
            even = -(-job.batch * job.rows // GROUP // chip.vector_cores())
            m = max(1, min(most, even)) * GROUP
        tiles = job.batch * -(-job.rows // m)
        yield {"m": m, "blocks": min(tiles, chip.vector_cores())}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling: its tiles per block."""
        job = _job(args)
        return float(-(-job.batch * job.rows // tiling["blocks"]))

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        job, n = _job(args), tiling["blocks"]
        traffic = {}
        for i, o in enumerate(args.operands):
            loads = n * (GROUP if job.n1 > 1 else 1) if i in _vectors(args, job) else 1
            traffic[i] = Traffic(o.nbytes, o.nbytes * loads)
        keys = [_tile_rows(job, tiling, b) for b in range(n)]
        return Plan(tiling, n, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        job, m = _job(args), tiling["m"]
        rows = Rows(k, args, (job.batch, job.n1, job.rows, job.lanes), m)
        program = PROGRAMS[args.op_type](rows)
        t0, t1 = job.share(tiling, block)
        per = -(-job.rows // m)
        yield from program.prologue()
        for i in k.loop(t1 - t0) if job.rows % m == 0 else range(t1 - t0):
            b, t = divmod(t0 + i, per)
            rows.at(b, t * m, min(job.rows, (t + 1) * m))
            yield from program.tile()


def _vectors(args: KernelArgs, job: Job) -> list[int]:
    """Inputs with a value per column (scale, offset): every block loads them."""
    return [i for i in PROGRAMS[args.op_type].vectors if i not in job.whole]


def _vector_bytes(args: KernelArgs, job: Job) -> int:
    """UB of the values per column: two slots as stored, one copy in fp32."""
    per = job.n1 * job.lanes * (GROUP if job.n1 > 1 else 1)
    return sum(per * (4 + 2 * args.operands[i].dtype.size) for i in _vectors(args, job))


def _tile_rows(job: Job, tiling: Tiling, block: int) -> tuple[int, ...]:
    """Row counts of a block's tiles."""
    m = tiling["m"]
    t0, t1 = job.share(tiling, block)
    if job.rows % m == 0:
        return (t1 - t0,)
    per = -(-job.rows // m)
    return tuple(int(np.minimum(m, job.rows - t % per * m)) for t in range(t0, t1))
