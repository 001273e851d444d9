"""Kernels over rows of ND and FRACTAL_NZ tensors: a tile holds whole rows, as many as fit.

Storage is seen as (batch, N1, M, L): L = 16 in FRACTAL_NZ, where a row is N1 blocks of 16; N1 = 1
and L = the row in ND. Blocks share all tiles; a program that works in strips (ND) gives each
block the same rows of every matrix of a batch, whose tiles then hold no more rows than that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from npusim.chip.spec import ChipSpec
from npusim.ir import Layout
from npusim.kernels.elementwise import unsupported_type
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.norm_rows import LayerNorm, LayerNormXBackprop
from npusim.kernels.row_programs import GROUP, Program, Rows
from npusim.kernels.rows import largest
from npusim.kernels.softmax_rows import (
    ConfusionSoftmaxGrad,
    LogSoftmaxGrad,
    Softmax,
    SoftmaxGrad,
    SoftmaxGradExt,
)
from npusim.program.isa import Instr
from npusim.program.kernel import (
    KernelArgs,
    Plan,
    Tiling,
    Traffic,
    group_blocks,
    kernel,
)

PROGRAMS: dict[str, type[Program]] = {
    "LayerNorm": LayerNorm,
    "LayerNormXBackpropV2": LayerNormXBackprop,
    "SoftmaxV2": Softmax,
    "SoftmaxGradExt": SoftmaxGradExt,
    "SoftmaxGrad": SoftmaxGrad,
    "ConfusionSoftmaxGrad": ConfusionSoftmaxGrad,
    "LogSoftmaxGrad": LogSoftmaxGrad,
}
FRACTAL_ROWS = 16  #: of a FRACTAL_NZ tensor: blocks share whole fractals
UB_SHARE = 0.95  #: of UB that tiles take: more rows share the per-row instructions


@dataclass(frozen=True)
class Job:
    """A launch: (batch, N1, rows, lanes), which operands have that shape, whether in strips."""

    batch: int
    n1: int
    rows: int
    lanes: int
    whole: tuple[int, ...]
    strips: bool

    def tiles(self, tiling: Tiling, block: int) -> list[tuple[int, int, int]]:
        """(batch, first row, end) of a block's tiles."""
        m, blocks = tiling["m"], tiling["blocks"]
        if self.strips:
            strip = -(-self.rows // blocks)
            first, end = block * strip, min(self.rows, (block + 1) * strip)
            cuts = [(r, min(end, r + m)) for r in range(first, end, m)]
            return [(b, *cut) for b in range(self.batch) for cut in cuts]
        unit = FRACTAL_ROWS if self.n1 > 1 else 1
        units = self.batch * self.rows // unit
        row, end = (units * (block + j) // blocks * unit for j in (0, 1))
        found = []
        while row < end:
            b, r0 = divmod(row, self.rows)
            r1 = min(self.rows, r0 + m, r0 + end - row)
            found.append((b, r0, r1))
            row += r1 - r0
        return found


def _job(args: KernelArgs) -> Job:
    spec = args.operands[0]
    whole = tuple(
        i for i, o in enumerate(args.operands) if o.shape == spec.shape and o.layout is spec.layout
    )
    s = spec.storage_shape
    if spec.layout is Layout.FRACTAL_NZ:
        return Job(prod(s[:-4]), s[-4], s[-3] * s[-2], s[-1], whole, False)
    if PROGRAMS[args.op_type].strips and len(s) > 2:
        return Job(prod(s[:-2]), 1, s[-2], s[-1], whole, True)
    return Job(1, 1, prod(s[:-1]), s[-1], whole, False)


def _bytes_per_element(args: KernelArgs, job: Job, slots: int) -> int:
    """UB bytes per element: slots of each whole operand, the program's fp32 temporaries."""
    size = sum(slots * args.operands[i].dtype.size for i in job.whole)
    program = PROGRAMS[args.op_type]
    size += program.halves * args.operands[0].dtype.size
    return size + 4 * (program.temporaries + (job.n1 == 1))


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
        """One: double-buffered where that fits."""
        job = _job(args)
        for slots in (2, 1):
            found = _tiling(args, job, chip, slots)
            if found is not None:
                yield found
                return

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
            loads = n if i in _vectors(args, job) else 1
            traffic[i] = Traffic(o.nbytes, o.nbytes * loads)
        keys = [tuple(r1 - r0 for _, r0, r1 in job.tiles(tiling, b)) for b in range(n)]
        return Plan(tiling, n, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        job, m = _job(args), tiling["m"]
        rows = Rows(k, args, (job.batch, job.n1, job.rows, job.lanes), m, tiling["slots"])
        program = PROGRAMS[args.op_type](rows)
        tiles = job.tiles(tiling, block)
        yield from program.prologue()
        alike = len({r1 - r0 for _, r0, r1 in tiles}) == 1
        for i in k.loop(len(tiles)) if alike else range(len(tiles)):
            rows.at(*tiles[i])
            yield from program.tile()


def _tiling(args: KernelArgs, job: Job, chip: ChipSpec, slots: int) -> Tiling | None:
    """As many rows of a tile as fit, in even tiles; None: not even the fewest."""
    room, cores = chip.core.ub.size * UB_SHARE, chip.vector_cores()
    per = job.n1 * job.lanes * _bytes_per_element(args, job, slots) + 512
    fixed = _vector_bytes(args, job)
    if per + fixed > room:
        return None
    if job.strips:
        strip = -(-job.rows // cores)
        m = largest(strip, 1, lambda n: n * per + fixed <= room)
        return {"m": m, "blocks": -(-job.rows // strip), "slots": slots}
    unit = FRACTAL_ROWS if job.n1 > 1 else 1
    units = job.batch * job.rows // unit
    if job.n1 > 1 and unit * per + fixed > room:
        unit = GROUP
    if unit * per + fixed > room:
        return None
    most = largest(-(-job.rows // unit), 1, lambda n: n * unit * per + fixed <= room)
    share = -(-job.batch * job.rows // unit // cores)
    longest = min(job.rows // unit, share)  # rows of a tile: of one matrix, of one block
    m = -(-longest // -(-longest // most)) * unit
    return {"m": m, "blocks": min(units, cores), "slots": slots}


def _vectors(args: KernelArgs, job: Job) -> list[int]:
    """Inputs with a value per column (scale, offset): every block loads them."""
    return [i for i in PROGRAMS[args.op_type].vectors if i not in job.whole]


def _vector_bytes(args: KernelArgs, job: Job) -> int:
    """UB of the values per column: two slots as stored, in fp32, NZ: a repeat's worth of rows."""
    row, copies = job.n1 * job.lanes, GROUP if job.n1 > 1 else 0
    vectors = _vectors(args, job)
    return sum(row * (2 * args.operands[i].dtype.size + 4 * (1 + copies)) for i in vectors)
