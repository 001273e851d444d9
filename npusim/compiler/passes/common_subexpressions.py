"""Nodes that compute the same from the same are computed once."""

from __future__ import annotations

from collections.abc import Hashable

from npusim.compiler.options import CompileContext
from npusim.compiler.rewiring import take_out
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.compiler.select import VIEWS, plain
from npusim.ir import Graph, Node
from npusim.ops import attributes

#: Operators whose operands may change places.
COMMUTATIVE = ("Add", "Mul", "Max", "Min", "And", "Or", "Xor", "Equal")


@graph_pass("CommonSubexpressionEliminationPass", Kind.CLEAN_UP)
def eliminate_common(graph: Graph, ctx: CompileContext) -> Graph:
    """Readers of a node's results read those of the first node that computes the same."""
    same = _equal_constants(graph)
    replaced: dict[str, str] = {}
    seen: dict[Hashable, Node] = {}
    for node in graph.nodes:
        if not _repeatable(node):
            continue
        first = seen.setdefault(_key(graph, node, {**same, **replaced}), node)
        if first is not node:
            replaced.update({b: a for a, b in zip(first.outputs, node.outputs, strict=True) if b})
    return take_out(graph, replaced)


def _repeatable(node: Node) -> bool:
    """Whether it gives the same each time, and nothing but its results."""
    drawn = node.op_type == "Dropout" or node.op_type.startswith("Random")
    return bool(node.outputs) and not drawn


def _key(graph: Graph, node: Node, same: dict[str, str]) -> Hashable:
    inputs = tuple(same.get(i, i) for i in node.inputs)
    types = tuple(graph.tensors[o].type if o else None for o in node.outputs)
    layouts = tuple(graph.tensors[o].layout if o else None for o in node.outputs)
    if node.op_type in VIEWS:  # the result's shape says what shape and axes are for
        return ("view", inputs[0], types, layouts)
    if node.op_type in COMMUTATIVE and not node.epilogue:
        inputs = tuple(sorted(inputs))
    attrs = tuple(sorted((k, plain(v)) for k, v in attributes(node).items() if v is not None))
    return (node.op_type, inputs, attrs, node.epilogue, types, layouts)


def _equal_constants(graph: Graph) -> dict[str, str]:
    """Constants of one value → the first that is the same; others are never compared."""
    first: dict[Hashable, str] = {}
    same = {}
    for name, constant in graph.constants.items():
        fill = constant.fill
        if fill is None and constant.type.size == 1:
            fill = constant.value().item()
        if fill is not None:
            layout = graph.tensors[name].layout
            kept = first.setdefault((constant.type, layout, repr(fill)), name)
            if kept != name:
                same[name] = kept
    return same
