"""How many cores of which kind a kernel holds while it runs."""

from __future__ import annotations

from npusim.chip.spec import ChipSpec
from npusim.program.kernel import Plan, get_kernel

Cores = dict[str, int]  #: kind of core ("AI_CORE"; "AIC" and "AIV" where they are apart) → number


def core_pools(chip: ChipSpec) -> Cores:
    """The cores that a chip has, AI CPUs among them."""
    if chip.cores.split:
        kinds = {"AIC": chip.cores.count, "AIV": chip.cores.vector_count}
    else:
        kinds = {"AI_CORE": chip.cores.count}
    return {**kinds, "AI_CPU": chip.aicpu.count}


def cores_held(kernel: str, plan: Plan, chip: ChipSpec) -> Cores:
    """One core per block; a block of a MIX kernel has a cube core and its vector cores.

    More blocks than cores run in turns on all of them.
    """
    have = core_pools(chip)
    kind = get_kernel(kernel).core_type
    if not chip.cores.split:
        need = {"AI_CORE": plan.block_dim}
    elif kind == "MIX":
        need = {"AIC": plan.block_dim, "AIV": plan.block_dim * have["AIV"] // have["AIC"]}
    else:
        need = {kind: plan.block_dim}
    return {name: min(n, have[name]) for name, n in need.items()}
