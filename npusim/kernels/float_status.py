"""FloatStatus: reading and clearing the overflow status of every core.

Before it touches the status, CANN's kernel fills a piece of UB seven times, 150 repeats each,
whose eight 32 B blocks stand eight blocks apart, so that they meet in few bank groups. (Source:
TBE's n_p_u_get_float_status.)
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType
from npusim.kernels import vector_ops
from npusim.kernels.lang import Kernel, TileKernel
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import Region

WORDS = 8  #: fp32 numbers of the status
FILLS, FILL = 7, 150 * 128  #: fills of as many fp16 elements
APART = 8  #: blocks from one block of a repeat to the next
STATUS = ("NPUGetFloatStatus", "NPUClearFloatStatus")
F32, HALF = np.dtype(np.float32), np.dtype(np.float16)


def _fill_cycles(chip: ChipSpec) -> float:
    """Cycles of a repeat: its blocks queue where they share a bank group."""
    groups = max(1, chip.core.ub.bank_groups // APART)
    return chip.core.vector.repeat_bytes / 32 / groups


@kernel("FloatStatus")
class FloatStatus(TileKernel):
    """NPUAllocFloatStatus on one block, NPUGetFloatStatus and NPUClearFloatStatus on every core."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Eight fp32 numbers out."""
        if args.op_type not in (*STATUS, "NPUAllocFloatStatus"):
            return f"operator {args.op_type}"
        out = args.outputs[0]
        if out.dtype is not DType.FLOAT32 or out.nbytes != WORDS * 4:
            return f"a status of {out.shape}, not of {WORDS} fp32 numbers"
        return "" if chip.core.ub.size >= FILL * HALF.itemsize + 64 else "UB holds no fill"

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Every core has a status."""
        yield {"blocks": chip.vector_cores() if args.op_type in STATUS else 1}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """The fills."""
        return FILLS * FILL * HALF.itemsize / chip.core.vector.repeat_bytes * _fill_cycles(chip)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Every block stores the status; nothing is loaded."""
        blocks, index = tiling["blocks"], len(args.inputs)
        traffic = {index: Traffic(WORDS * 4, WORDS * 4 * blocks)}
        return Plan(tiling, blocks, traffic, group_blocks([0] * blocks))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """Fill, then store the status."""
        queue = k.queue("UB", WORDS * 4, 1, Pipe.V, Pipe.MTE3)
        status = (yield from queue.alloc()).region((WORDS,), F32)
        if args.op_type in STATUS:
            place = k.alloc("UB", FILL * HALF.itemsize).region((FILL,), HALF)
            rate = _fill_cycles(k.chip)
            for i in range(FILLS):
                fn = vector_ops.bind(vector_ops.get("dup"), float(i), place)
                yield k.vec_by("dup", fn, place, place, per_repeat=rate)
        yield k.vec("dup", status, scalar=0.0)
        yield queue.enque()
        yield queue.deque()
        yield k.store(Region.dense("GM", len(args.inputs), 0, (WORDS,), F32), status)
