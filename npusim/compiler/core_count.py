"""On how many cores a launch runs: handing a block out costs the scheduler time.

A kernel's tilings use as many cores as they can. A small launch is faster on fewer: work shrinks
with cores, `scheduler.per_block` grows, so time over the number of cores has one minimum.
"""

from __future__ import annotations

from npusim.chip.spec import ChipSpec
from npusim.compiler.costs import ranked
from npusim.compiler.options import CompileContext
from npusim.program.kernel import KernelArgs, Plan, best_tiling, choose_tiling, get_kernel

WEIGHED = 2  #: the lowest --opt-level that weighs it; below, all cores that the tiling can use
WORTH_A_LOOK = 0.3  #: of the time that blocks take to be handed out, below which all cores stay


def best_plan(kernel: str, args: KernelArgs, ctx: CompileContext) -> Plan:
    """The plan with the least estimated time, on all cores, half of them, a quarter …

    Found once in a compilation.

    Raises:
        UnsupportedError: see `choose_tiling`.
    """
    key = (kernel, args)
    if key not in ctx.plans:
        ctx.plans[key] = _search(kernel, args, ctx)
    return ctx.plans[key]


def _search(kernel: str, args: KernelArgs, ctx: CompileContext) -> Plan:
    chip, definition = ctx.chip, get_kernel(kernel)
    found = ranked(ctx, kernel, args)
    tiling = choose_tiling(kernel, args, chip) if found is None else found.tiling
    best = definition.plan(args, chip, tiling)
    if ctx.options.level < WEIGHED:
        return best
    handed, time = _time(kernel, args, chip, best)
    count = chip.cores.count // 2
    while count and handed > WORTH_A_LOOK * time:
        fewer = chip.with_cores(count)
        found = best_tiling(kernel, args, fewer, ctx.reuse)
        if found is None:
            break
        plan = definition.plan(args, chip, found.tiling)
        handed, shorter = _time(kernel, args, fewer, plan)
        if shorter >= time:
            break
        best, time, count = plan, shorter, count // 2
    return best


def _time(kernel: str, args: KernelArgs, chip: ChipSpec, plan: Plan) -> tuple[float, float]:
    """Cycles to hand the blocks out, and of the whole launch by its estimate."""
    body = get_kernel(kernel).estimate(args, chip.without_hand_out(), plan.tiling)
    handed = chip.scheduler.per_block * chip.clock * plan.block_dim
    return handed, handed + body
