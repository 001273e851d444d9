"""Instructions between cores and buffers that few kernels need: flags of other cores, UB → L1."""

from __future__ import annotations

from npusim.errors import KernelError
from npusim.kernels.lang import Kernel
from npusim.program import effects, isa
from npusim.program.isa import Instr, Kind, Pipe
from npusim.program.region import Region

#: Ids of flags from other cores begin here, above those that a core's own queues take.
CROSS = 1 << 16


def signal(k: Kernel, member: int, src: Pipe, dst: Pipe, event: int) -> Instr:
    """CrossCoreSetFlag: own pipe `src` tells pipe `dst` of core `member` of the block.

    Two cores that signal the same core use different events.
    """
    flag = k.chip.core.scalar.flag
    return k.memo(
        ("signal", member, src, dst, event),
        lambda: isa.set_flag(src, dst, CROSS + event, k.chip.core.scalar.issue, flag, member),
    )


def await_signal(k: Kernel, src: Pipe, dst: Pipe, event: int) -> Instr:
    """CrossCoreWaitFlag: own pipe `dst` waits for pipe `src` of another core."""
    return k.wait_flag(src, dst, CROSS + event)


def ub_to_l1(k: Kernel, dst: Region, src: Region) -> Instr:
    """MTE3: UB → L1 within the core.

    Raises:
        KernelError: the chip has no such path.
    """
    mte3 = k.chip.core.mte3
    if mte3.l1_rate is None:
        raise KernelError(
            f"UB → L1 on {k.chip.name}", "chips with core.mte3.l1_rate", "go through GM"
        )
    cycles = mte3.head + -(-dst.nbytes // int(mte3.l1_rate))
    effect = effects.Copy(((dst, src),)) if k.functional else None
    issue = k.chip.core.scalar.issue
    return Instr(Kind.LOCAL, Pipe.MTE3, "copy_ub_l1", issue, cycles, 0, effect)
