"""Two convolutions become one kernel where the second is 1×1: the image between stays in L1.

CANN's lists name no such pass. It runs when types, layouts and epilogues are settled.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.chip.spec import ChipSpec
from npusim.compiler.core_count import best_plan
from npusim.compiler.costs import Costs
from npusim.compiler.options import CompileContext
from npusim.compiler.passes.patterns import Pattern
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.compiler.select import kernel_args, select_kernel
from npusim.ir import Graph, Node
from npusim.ops import attributes, get_operator
from npusim.program.kernel import get_kernel

NAME = "ConvDepthFusionPass"
#: Share of the time apart below which one launch is taken: closer ones the estimates cannot tell.
WORTH = 0.95


@graph_pass(NAME, Kind.UB_FUSION)
def fuse_conv_depth(graph: Graph, ctx: CompileContext) -> Graph:
    """Conv, 1×1 Conv → ConvConv, where both weights fit L1 and one launch is faster than two."""
    find, times = Pattern(graph), _Times(ctx)
    instead: dict[str, Node | None] = {}
    for second in graph.nodes:
        first = find.makers.get(second.inputs[0]) if second.op_type == "Conv" else None
        if first is None or first.op_type != "Conv" or not _pointwise(graph, second):
            continue
        taken, reason = False, _mismatch(find, first, second)
        if not reason and first.name in instead:
            reason = f"{first.name} is the second of another pair"
        if not reason:
            node = joined(first, second)
            taken, reason = times.weigh(graph, (first, second), node)
            if taken:
                instead |= {first.name: None, second.name: node}
        ctx.decide(NAME, (first.name, second.name), taken, reason)
    if not instead:
        return graph
    out = graph.copy()
    new = [instead.get(n.name, n) for n in graph.nodes]
    out.nodes = [n for n in new if n is not None]
    return out


def _pointwise(graph: Graph, node: Node) -> bool:
    """A convolution of which every position sees one pixel, of all channels, each in its place."""
    attrs, shape = attributes(node), graph.type_of(node.inputs[1]).shape
    image, result = (graph.type_of(n).shape for n in (node.inputs[0], node.outputs[0]))
    same = image[2:] == result[2:] and set(attrs["strides"] or (1,)) == {1}
    return set(shape[2:]) == {1} and same and not any(attrs["pads"] or ())


def _mismatch(find: Pattern, first: Node, second: Node) -> str:
    """Why the operands are not those of one kernel; '' when they are."""
    between = first.outputs[0]
    if not find.private(between) or between in second.inputs[1:]:
        return f"{between} is wanted by others"
    for node in (first, second):
        attrs = attributes(node)
        if attrs["group"] != 1 or attrs["offset_x"]:
            return f"{node.name} has groups, or pads with a value"
        if any(s.operand == 2 for s in node.epilogue):
            return f"{node.name} has a step in place of its bias"
    if [s.op_type for s in first.epilogue] not in ([], ["Relu"]):
        return f"{first.name} has {first.epilogue[-1].op_type} in its epilogue"
    types = {find.graph.tensors[n].dtype for n in (between, *first.inputs[:2], *second.outputs)}
    return "" if len(types) == 1 else f"types {', '.join(sorted(t.value for t in types))}"


def joined(first: Node, second: Node) -> Node:
    """The node of both, with the second's name."""
    known = get_operator("ConvConv").attrs
    attrs = {k: v for k, v in attributes(first).items() if k in known}
    steps = tuple(
        s if s.operand is None else replace(s, operand=s.operand + 2) for s in second.epilogue
    )
    one, two = ((*n.inputs, "")[:3] for n in (first, second))
    inputs = (*one, *two[1:], *second.inputs[3:])
    attrs["relu"] = bool(first.epilogue)
    return Node(second.name, "ConvConv", inputs, second.outputs, attrs, steps)


class _Times:
    """Estimated cycles of launches as they are planned, what they load being in L2.

    So the two launches are not said to bring the image between from HBM where L2 has it. What
    they share with the one launch is weighed alike.
    """

    def __init__(self, ctx: CompileContext) -> None:
        self._ctx = ctx
        self._hot: ChipSpec = ctx.chip.with_all_in_l2()
        self._overhead = Costs(ctx).overhead

    def of(self, graph: Graph, node: Node) -> float:
        """Cycles of a node, launch and gap included; inf on the AI CPU."""
        args = kernel_args(graph, node)
        kernel, _ = select_kernel(args, self._ctx.chip)
        if not kernel:
            return float("inf")
        tiling = best_plan(kernel, args, self._ctx).tiling
        return get_kernel(kernel).estimate(args, self._hot, tiling) + self._overhead

    def weigh(self, graph: Graph, pair: tuple[Node, Node], node: Node) -> tuple[bool, str]:
        """Whether the node can run and pays, and why."""
        kernel, why = select_kernel(kernel_args(graph, node), self._ctx.chip)
        if not kernel:
            return False, why
        together, apart = self.of(graph, node), sum(self.of(graph, n) for n in pair)
        if together <= WORTH * apart:
            return True, f"{kernel} takes them: {together:.0f} cycles, apart {apart:.0f}"
        return False, f"it would take {together:.0f} cycles, apart {apart:.0f}"
