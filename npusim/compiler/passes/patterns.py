"""What passes that look for a pattern of nodes share: who makes and reads a tensor, its cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from npusim.compiler.costs import Costs
from npusim.compiler.options import CompileContext
from npusim.compiler.select import VIEWS, kernel_args, select_kernel
from npusim.ir import Graph, Layout, Node
from npusim.ops import attributes
from npusim.program.kernel import KernelArgs


class Pattern:
    """Questions about a graph, answered from tables built once."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.makers = graph.producers()
        self.uses = graph.consumers()
        self._outputs = set(graph.outputs)

    def maker(self, name: str, *op_types: str) -> Node | None:
        """The node that makes a tensor, where it is of one of the types and has no epilogue."""
        node = self.makers.get(name)
        if node is None or node.epilogue or (op_types and node.op_type not in op_types):
            return None
        return node

    def inner(self, name: str, *op_types: str) -> Node | None:
        """As `maker`, of a tensor that one node reads and nobody else wants."""
        return self.maker(name, *op_types) if self.private(name) else None

    def private(self, name: str) -> bool:
        """True for a tensor that exactly one node reads, and that is no output."""
        return len(self.uses.get(name, ())) == 1 and name not in self._outputs

    def reader(self, name: str, *op_types: str) -> Node | None:
        """The only reader of a tensor, where it is of one of the types and has no epilogue."""
        if not self.private(name):
            return None
        node = self.uses[name][0]
        return node if node.op_type in op_types and not node.epilogue else None

    def scalar(self, name: str) -> float | None:
        """The value of a constant of one element."""
        constant = self.graph.constants.get(name)
        if constant is None or constant.type.size != 1:
            return None
        return float(constant.value().item())

    def is_scalar(self, name: str, value: float, tolerance: float = 1e-3) -> bool:
        """True for a constant of about that value."""
        found = self.scalar(name)
        return found is not None and abs(found - value) <= tolerance * max(abs(value), 1e-30)

    def sides(self, node: Node) -> Iterator[tuple[str, str]]:
        """The operands of a node of two, both ways around."""
        if len(node.inputs) == 2:
            yield node.inputs[0], node.inputs[1]
            yield node.inputs[1], node.inputs[0]

    def axes(self, node: Node) -> list[int] | None:
        """Axes of a reduction that keeps its dimensions, in order; None when they are not known."""
        rank = len(self.graph.type_of(node.inputs[0]).shape)
        constant = self.graph.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
        if constant is None or not attributes(node)["keepdims"]:
            return None
        return sorted(int(a) % rank for a in constant.value().reshape(-1))


class Times:
    """Estimated cycles of nodes by their best tilings, gaps between tasks included."""

    def __init__(self, ctx: CompileContext) -> None:
        self._chip, self._costs = ctx.chip, Costs(ctx)

    def of(self, graph: Graph, node: Node) -> float:
        """Cycles of one node; 0 of a view, infinite on the AI CPU."""
        return 0.0 if node.op_type in VIEWS else self._costs.launch(self._args(graph, node))

    def _args(self, graph: Graph, node: Node) -> KernelArgs:
        """The launch, with constant weights of a product packed as `assign_layouts` packs them."""
        args = kernel_args(graph, node)
        if node.op_type not in ("MatMul", "Gemm") or node.inputs[1] not in graph.constants:
            return args
        weights = args.inputs[1]
        if weights is None or len(weights.shape) != 2:
            return args
        if weights.dtype.value not in self._chip.core.cube.k:
            return args
        packed = replace(weights, layout=Layout.FRACTAL_NZ)
        return replace(args, inputs=(args.inputs[0], packed, *args.inputs[2:]))

    def total(self, graph: Graph, nodes: Iterable[Node]) -> float:
        """Cycles of nodes one after the other."""
        return sum(self.of(graph, n) for n in nodes)


def refusal(graph: Graph, node: Node, ctx: CompileContext, kernel: str) -> str:
    """'' when that kernel takes the node, else why not."""
    found, why = select_kernel(kernel_args(graph, node), ctx.chip)
    return "" if found == kernel else why or f"it would need {found}"
