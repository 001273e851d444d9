"""What a node will take, by its kernel's estimate: what passes weigh rewrites by."""

from __future__ import annotations

from npusim.compiler.options import CompileContext
from npusim.compiler.select import kernel_args, moves_nothing, select_kernel
from npusim.ir import Graph, Node
from npusim.program.kernel import KernelArgs, best_estimate


class Costs:
    """Estimates for a chip; equal launches are estimated once in a compilation."""

    def __init__(self, ctx: CompileContext) -> None:
        self._chip, self._known = ctx.chip, ctx.cycles

    def node(self, graph: Graph, node: Node) -> float:
        """Cycles of a node in the layouts that it has now; 0 of a view."""
        return 0.0 if moves_nothing(graph, node) else self.launch(kernel_args(graph, node))

    def launch(self, args: KernelArgs) -> float:
        """Cycles of a launch by its best tiling, and of the gap before it; inf on the AI CPU."""
        if args not in self._known:
            self._known[args] = self._estimate(args)
        return self._known[args]

    def _estimate(self, args: KernelArgs) -> float:
        kernel, _ = select_kernel(args, self._chip)
        if not kernel:
            return float("inf")
        gap = self._chip.cycles(self._chip.scheduler.gap)
        return best_estimate(kernel, args, self._chip) + gap
