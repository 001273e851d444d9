"""Transpose, DepthToSpace, SpaceToDepth: dst = a permuted view of src (see `strided`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from npusim.chip.spec import ChipSpec
from npusim.ir import Layout
from npusim.kernels.lang import Kernel
from npusim.kernels.strided import Job, job
from npusim.kernels.strided_kernel import StridedKernel
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Tiling, kernel
from npusim.program.region import GM, Region


def _view(args: KernelArgs) -> Region:
    """The input, its axes split and permuted so that it reads in the output's order."""
    spec = args.operands[0]
    x = Region.dense(GM, 0, 0, spec.shape, spec.dtype.np)
    if args.op_type == "Transpose":
        perm = args.get("perm") or range(len(spec.shape) - 1, -1, -1)
        return x.permute(*perm)
    b = args.attr("blocksize")
    dcr = args.get("mode", "DCR") == "DCR"
    if args.op_type == "SpaceToDepth":  # (N, C, H, b, W, b) → (N, b, b, C, H, W)
        split = x.split(3, b).split(2, b)
        return split.permute(0, 3, 5, 1, 2, 4) if dcr else split.permute(0, 1, 3, 5, 2, 4)
    c = spec.shape[1] // (b * b)
    if dcr:  # (N, b, b, C, H, W) → (N, C, H, b, W, b)
        return x.split(1, c).split(1, b).permute(0, 3, 4, 1, 5, 2)
    return x.split(1, b).split(1, b).permute(0, 1, 4, 2, 5, 3)


#: Cycles for which the dynamic kernel of split cores reads tables before it moves anything
#: (910B2: 32 × 5 int64 take 14 µs beyond the launch, half of them MTE2's, half the scalar unit's).
TABLES = 24_000


@lru_cache(maxsize=256)
def _jobs(args: KernelArgs) -> tuple[Job, ...]:
    src = _view(args)
    index = len(args.inputs)
    return tuple(job(Region.dense(GM, index, 0, src.shape, src.dtype), src))


@kernel("Transpose")
class Transpose(StridedKernel):
    """Any permutation of axes, for elements of any type ("tables": as the dynamic kernel)."""

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Only plain row-major tensors; a blocked layout must be changed first."""
        if args.op_type not in ("Transpose", "DepthToSpace", "SpaceToDepth"):
            return f"operator {args.op_type}"
        spec, out = args.operands[0], args.outputs[0]
        if Layout.ND is not spec.layout or Layout.ND is not out.layout:
            return f"{args.op_type} of {spec.layout.value}"
        return ""

    @staticmethod
    def jobs(args: KernelArgs) -> Sequence[Job]:
        """The copies that the launch consists of."""
        return _jobs(args)

    @classmethod
    def body(cls, k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """The tables, then the block's tiles."""
        if args.get("tables") and k.chip.cores.split:
            yield k.stall(Pipe.MTE2, TABLES)
        yield from super().body(k, args, tiling, block)
