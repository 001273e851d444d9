"""x · sigmoid(x) becomes Swish; with another factor behind it (SwiGLU) that joins its kernel."""

from __future__ import annotations

from collections.abc import Iterator

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.decomposed import Found, collapse
from npusim.compiler.passes.patterns import Pattern
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Graph, Node

NAME = "SwishFusionPass"


@graph_pass(NAME, Kind.GRAPH_FUSION)
def fuse_swish(graph: Graph, ctx: CompileContext) -> Graph:
    """Sigmoid, Mul → Swish."""
    return collapse(NAME, graph, ctx, _matches(graph))


def _matches(graph: Graph) -> Iterator[Found]:
    find = Pattern(graph)
    for root in graph.nodes:
        if root.op_type != "Mul" or root.epilogue:
            continue
        for x, gate in find.sides(root):
            sigmoid = find.inner(gate, "Sigmoid")
            if sigmoid is not None and sigmoid.inputs == (x,):
                node = Node(root.name, "Swish", (x,), root.outputs, {"alpha": 1.0})
                yield Found(root, (sigmoid, root), node)
                break
