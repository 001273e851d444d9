"""TransData: ND ↔ NC1HWC0 (16×N transposes in UB) and ND ↔ FRACTAL_NZ (32 B blocks moved)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels import fractals
from npusim.kernels.lang import Kernel
from npusim.kernels.strided import Job, job
from npusim.kernels.strided_kernel import StridedKernel
from npusim.kernels.ub_pass import busy_blocks
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, Plan, Tiling, kernel
from npusim.program.region import GM, Region

#: Types between which TransData converts on the way, where the graph's border is fp32.
CONVERTS = {DType.FLOAT16, DType.FLOAT32}


def _region(args: KernelArgs, index: int) -> Region:
    spec = args.operands[index]
    return Region.dense(GM, index, 0, spec.storage_shape, spec.dtype.np)


def _blocked(x: Region, axis: int, block: int) -> list[tuple[int, int, Region]]:
    """An ND axis of n elements as (blocks, block): the whole blocks, then the ragged one.

    Returns (first block, elements of the last axis that exist, region) of each part.
    """
    n = x.shape[axis]
    full = n // block
    before = (slice(None),) * axis
    out = []
    if full:
        whole = x[(*before, slice(0, full * block))].split(axis, block)
        out.append((0, block, whole))
    if n % block:
        tail = x[(*before, slice(full * block, n))].expand(axis)
        out.append((full, n % block, tail))
    return out


def _swap_channels(nd: Region, blocked: Region, to_blocked: bool) -> list[Job]:
    """(N, C, HW) against (N, C1, HW, C0)."""
    n, c1, h, w, c0 = blocked.shape
    flat = Region.dense(GM, nd.operand, 0, (*nd.shape[:2], h * w), nd.dtype)
    packed = Region.dense(GM, blocked.operand, 0, (n, c1, h * w, c0), blocked.dtype)
    jobs = []
    for first, channels, part in _blocked(flat, 1, c0):  # part: (N, blocks, c, HW)
        at = packed[:, first : first + part.shape[1]]
        if to_blocked:
            jobs += job(at, part.permute(0, 1, 3, 2))
        else:
            jobs += job(part, at[:, :, :, :channels].permute(0, 1, 3, 2))
    return jobs


def _move_fractals(nd: Region, nz: Region, to_blocked: bool) -> list[Job]:
    """(B, M, N) against (B, N1, M1·16, N0)."""
    *_, n1, m1, m0, n0 = nz.shape
    m, n = nd.shape[-2:]
    batch = nd.size // (m * n) if m * n else 0
    flat = Region.dense(GM, nd.operand, 0, (batch, m, n), nd.dtype)
    columns = Region.dense(GM, nz.operand, 0, (batch, n1, m1 * m0, n0), nz.dtype)
    jobs = []
    for first, width, part in _blocked(flat, 2, n0):  # part: (B, M, blocks, n)
        at = columns[:, first : first + part.shape[2]].permute(0, 2, 1, 3)
        if to_blocked:
            jobs += job(at, part)
        else:
            jobs += job(part, at[:, :m, :, :width])
    return jobs


@lru_cache(maxsize=256)
def _jobs(args: KernelArgs) -> tuple[Job, ...]:
    to_blocked = args.operands[0].layout is Layout.ND
    nd, other = (0, 1) if to_blocked else (1, 0)
    layout = args.operands[other].layout
    build = _swap_channels if layout is Layout.NC1HWC0 else _move_fractals
    return tuple(build(_region(args, nd), _region(args, other), to_blocked))


@kernel("TransData")
class TransData(StridedKernel):
    """Change of layout; padding of the blocked layouts is written as zeros."""

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Only between ND and one blocked layout."""
        source, target = args.operands
        layouts = {source.layout, target.layout}
        if source.shape != target.shape:
            return "TransData changes no shape"
        types = {source.dtype, target.dtype}
        if len(types) > 1 and (types != CONVERTS or Layout.NC1HWC0 not in layouts):
            return "TransData converts between fp16 and fp32 only, and only to and from NC1HWC0"
        if layouts not in ({Layout.ND, Layout.NC1HWC0}, {Layout.ND, Layout.FRACTAL_NZ}):
            return f"TransData from {source.layout.value} to {target.layout.value}"
        if source.dtype.size > 4:
            return f"TransData of {source.dtype.value}"
        return ""

    @staticmethod
    def jobs(args: KernelArgs) -> Sequence[Job]:
        """The copies that the launch consists of."""
        return _jobs(args)

    @classmethod
    def tilings(cls, args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Tile sizes; one where the TIK program does it."""
        if fractals.takes(args, chip):
            return iter([fractals.tiling_of(args, chip)])
        busy = busy_blocks(args, chip.vector_cores())
        return iter([t | {"blocks": busy} for t in super().tilings(args, chip)])

    @classmethod
    def estimate(cls, args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """Cycles of the busiest block."""
        if "axis" in tiling:
            return fractals.estimate_of(args, chip, tiling)
        return super().estimate(args, chip, tiling)

    @classmethod
    def plan(cls, args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Tiles dealt to blocks."""
        if "axis" in tiling:
            return fractals.plan_of(args, chip, tiling)
        return super().plan(args, chip, tiling)

    @classmethod
    def body(cls, k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """The block's tiles."""
        if "axis" in tiling:
            return fractals.body_of(k, args, tiling, block)
        return super().body(k, args, tiling, block)
