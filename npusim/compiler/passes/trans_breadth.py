"""Several TransData of one tensor to one layout become one."""

from __future__ import annotations

from collections.abc import Hashable

from npusim.compiler.options import CompileContext
from npusim.compiler.rewiring import take_out
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Graph


@graph_pass("SameTransdataBreadthFusionPass", Kind.CLEAN_UP)
def merge_same_transdata(graph: Graph, ctx: CompileContext) -> Graph:
    """Readers of a TransData read the first one of the same tensor, layout and type."""
    first: dict[Hashable, str] = {}
    same: dict[str, str] = {}
    for node in graph.nodes:
        if node.op_type != "TransData":
            continue
        result = graph.tensors[node.outputs[0]]
        source = same.get(node.inputs[0], node.inputs[0])
        kept = first.setdefault((source, result.type, result.layout), result.name)
        if kept != result.name:
            same[result.name] = kept
    return take_out(graph, same)
