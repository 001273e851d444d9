"""What a node will take, by its kernel's estimate: what passes weigh rewrites by."""

from __future__ import annotations

from npusim.compiler.options import CompileContext
from npusim.compiler.select import kernel_args, moves_nothing, select_kernel
from npusim.ir import Graph, Node
from npusim.program.kernel import KernelArgs, Ranked, best_tiling


def ranked(ctx: CompileContext, kernel: str, args: KernelArgs) -> Ranked | None:
    """The best tiling of a launch on the whole chip, found once in a compilation."""
    key = (kernel, args)
    if key not in ctx.best:
        ctx.best[key] = best_tiling(kernel, args, ctx.chip, ctx.reuse)
    return ctx.best[key]


class Costs:
    """Estimates for a chip.

    Attributes:
        overhead: cycles of a launch and of the gap before it, beside its kernel's.
    """

    def __init__(self, ctx: CompileContext) -> None:
        self._ctx = ctx
        scheduler = ctx.chip.scheduler
        self.overhead = ctx.chip.cycles(scheduler.launch) + ctx.chip.cycles(scheduler.gap)

    def node(self, graph: Graph, node: Node) -> float:
        """Cycles of a node in the layouts that it has now; 0 of a view."""
        return 0.0 if moves_nothing(graph, node) else self.launch(kernel_args(graph, node))

    def launch(self, args: KernelArgs) -> float:
        """Cycles of a launch by its best tiling, and of the gap before it; inf on the AI CPU."""
        kernel, _ = select_kernel(args, self._ctx.chip)
        best = ranked(self._ctx, kernel, args) if kernel else None
        return float("inf") if best is None else best.cycles + self.overhead
