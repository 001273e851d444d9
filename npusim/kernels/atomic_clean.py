"""AtomicAddrClean as CANN's TIK kernel does it: a block zeroes 48 KB of UB, then stores it again.

The clearing of the buffer takes the same time whatever is to be cleaned; a block's share is a
whole number of buffers, the last block's what is left.
"""

from __future__ import annotations

from collections.abc import Iterator

from npusim.chip.spec import ChipSpec
from npusim.ir import Layout
from npusim.kernels.lang import Kernel, TileKernel
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

BUFFER = 48 * 1024  #: bytes of zeros (atomic_addr_clean.py)
UB_SHARE = 0.75  #: of UB that the zeros may take, on a core with little of it


def _share(args: KernelArgs, tiling: Tiling, block: int) -> tuple[int, int]:
    """Bytes [b0, b1) that a block cleans."""
    total, share = args.operands[0].nbytes, tiling["share"]
    return min(total, block * share), min(total, (block + 1) * share)


@kernel("AtomicClean")
class AtomicClean(TileKernel):
    """Zeros over one tensor, of any type."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """It takes an output and nothing else."""
        if args.op_type != "MemSet" or args.inputs or args.get("value"):
            return f"operator {args.op_type} with inputs or a value"
        spec = args.operands[0]
        if spec.layout is not Layout.ND:
            return "a blocked layout"
        return "" if spec.nbytes else "an empty tensor"

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """One: whole buffers a block."""
        room = int(chip.core.ub.size * UB_SHARE)
        buffer = min(BUFFER, room) // 256 * 256
        if not buffer:
            return
        total = args.operands[0].nbytes
        share = -(-total // (chip.vector_cores() * buffer)) * buffer
        yield {"buffer": buffer, "share": share, "blocks": -(-total // share)}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling: bytes a block."""
        return float(tiling["share"])

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Every byte once."""
        total, n = args.operands[0].nbytes, tiling["blocks"]
        shares = [_share(args, tiling, b) for b in range(n)]
        classes = group_blocks([b1 - b0 for b0, b1 in shares])
        return Plan(tiling, n, {0: Traffic(total, total)}, classes)

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """Zero the buffer, store it over the share."""
        spec, buffer = args.operands[0], tiling["buffer"]
        size = spec.dtype.size
        queue = k.queue("UB", buffer, 1, Pipe.V, Pipe.MTE3)
        place = yield from queue.alloc()
        zeros = place.region((buffer // size,), spec.dtype.np)
        yield k.vec("dup", zeros, scalar=spec.dtype.np.type(0))
        yield queue.enque()
        yield queue.deque()
        out = Region.dense(GM, 0, 0, (spec.nbytes // size,), spec.dtype.np)
        b0, b1 = _share(args, tiling, block)
        for i in k.loop(-(-(b1 - b0) // buffer)):
            first = (b0 + i * buffer) // size
            last = min(b1, b0 + (i + 1) * buffer) // size
            yield k.store(out[first:last], zeros[: last - first])
