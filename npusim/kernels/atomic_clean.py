"""AtomicClean: zeros for what a later kernel adds to atomically, as CANN's AtomicAddrClean writes.

Every block fills 48 KB of UB with zeros, however little it cleans, and stores it piece by piece;
shares are whole pieces. (Source: TBE's atomic_addr_clean.)
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.kernels.lang import Kernel, TileKernel
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import Region

PIECE = 48 * 1024  #: bytes of zeros in UB, and of a store
HALF = np.dtype(np.float16)


def shares(nbytes: int, cores: int) -> tuple[int, int]:
    """(bytes of a block's share, blocks): equal shares rounded up to whole pieces."""
    share = -(-nbytes // cores // PIECE) * PIECE
    return share, -(-nbytes // share)


@kernel("AtomicClean")
class AtomicClean(TileKernel):
    """Zeros over one output. Tiling: bytes of a block's share, blocks."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """MemSet to zero of whole 16-bit words."""
        out = args.outputs[0]
        if args.op_type != "MemSet" or args.inputs or args.get("value"):
            return f"{args.op_type}: zeros only"
        if out.nbytes % HALF.itemsize or not out.nbytes:
            return f"{out.nbytes} bytes: an even number, at least two"
        return "" if chip.core.ub.size >= PIECE else "UB holds no piece of zeros"

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """One: CANN's."""
        share, blocks = shares(args.outputs[0].nbytes, chip.vector_cores())
        yield {"share": share, "blocks": blocks}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """The stores of a share."""
        return tiling["share"] / chip.core.mte3.rate

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Every byte once."""
        nbytes, share, blocks = args.outputs[0].nbytes, tiling["share"], tiling["blocks"]
        sizes = [min(share, nbytes - b * share) for b in range(blocks)]
        return Plan(tiling, blocks, {0: Traffic(nbytes, nbytes)}, group_blocks(sizes))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """Fill once, store piece by piece: no store waits for another."""
        nbytes, share = args.outputs[0].nbytes, tiling["share"]
        start, stop = block * share, min(nbytes, (block + 1) * share)
        queue = k.queue("UB", PIECE, 1, Pipe.V, Pipe.MTE3)
        zeros = (yield from queue.alloc()).region((PIECE // HALF.itemsize,), HALF)
        yield k.vec("dup", zeros, scalar=0.0)
        yield queue.enque()
        yield queue.deque()
        whole, rest = divmod(stop - start, PIECE)
        for i in k.loop(whole):
            yield k.store(_words(start + i * PIECE, PIECE), zeros)
        if rest:
            yield k.store(_words(stop - rest, rest), zeros[: rest // HALF.itemsize])


def _words(offset: int, nbytes: int) -> Region:
    """Bytes of the output, as fp16."""
    return Region.dense("GM", 0, offset, (nbytes // HALF.itemsize,), HALF)
