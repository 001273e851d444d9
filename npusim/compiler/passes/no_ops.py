"""Operators that give their operand back: x + 0, x · 1, a Concat of one, an Expand to the same."""

from __future__ import annotations

from npusim.compiler.options import CompileContext
from npusim.compiler.rewiring import take_out
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Graph, Node

#: Operator → (the constant that changes nothing, the operands that it may be).
NEUTRAL = {
    "Add": (0.0, (0, 1)),
    "Sub": (0.0, (1,)),
    "Mul": (1.0, (0, 1)),
    "Div": (1.0, (1,)),
    "Pow": (1.0, (1,)),
}
#: Operators of any number of operands that give a single one back.
OF_SEVERAL = ("Concat", "Sum", "Mean", "Max", "Min")
#: Operators that only repeat elements: nothing to do where the shape stays.
REPEATING = ("Expand", "Tile")


@graph_pass("ArithmeticNoOpPass", Kind.CLEAN_UP)
def remove_no_ops(graph: Graph, ctx: CompileContext) -> Graph:
    """Readers of such a result read the operand."""
    same = {}
    for node in graph.nodes:
        source = None if node.epilogue or len(node.outputs) != 1 else _unchanged(graph, node)
        if source and graph.type_of(source) == graph.type_of(node.outputs[0]):
            same[node.outputs[0]] = source
    return take_out(graph, same)


def _unchanged(graph: Graph, node: Node) -> str | None:
    """The operand that the node's result equals, types aside."""
    data = [i for i in node.inputs if i]
    if node.op_type in OF_SEVERAL:
        return data[0] if len(data) == 1 else None
    if node.op_type in REPEATING:
        return data[0]
    if node.op_type == "Clip":
        return data[0] if len(data) == 1 else None
    if node.op_type in NEUTRAL and len(data) == 2:
        value, positions = NEUTRAL[node.op_type]
        for at in positions:
            if _known(graph, data[at]) == value:
                return data[1 - at]
    return None


def _known(graph: Graph, name: str) -> float | None:
    """The value of all elements of a constant, where finding it costs nothing."""
    constant = graph.constants.get(name)
    if constant is None or not constant.type.dtype.is_float:
        return None
    if constant.fill is not None:
        return constant.fill
    return float(constant.value().item()) if constant.type.size == 1 else None
