"""Clean-up: what inference does not need (Identity, Dropout, no-op Cast) and what nobody reads."""

from __future__ import annotations

from npusim.compiler.options import CompileContext
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Graph, Node

#: Operators that are the identity in inference, whatever their attributes.
IDENTITIES = ("Identity", "Dropout")


@graph_pass("CastRemovePass", Kind.CLEAN_UP)
def remove_identities(graph: Graph, ctx: CompileContext) -> Graph:
    """Rename readers of identity results to the source; a graph output keeps its node."""
    alias: dict[str, str] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(alias.get(i, i) for i in node.inputs)
        node = node.with_(inputs=inputs) if inputs != node.inputs else node
        used = [o for o in node.outputs if o]
        if _is_identity(graph, node) and not set(used) & set(graph.outputs):
            alias[node.outputs[0]] = node.inputs[0]
        else:
            kept.append(node)
    out = graph.copy()
    out.nodes = kept
    return out


def _is_identity(graph: Graph, node: Node) -> bool:
    if node.op_type in IDENTITIES:
        extra = [o for o in node.outputs[1:] if o]
        return not extra
    if node.op_type == "Cast":
        return graph.type_of(node.inputs[0]) == graph.type_of(node.outputs[0])
    return False


@graph_pass("PrunePass", Kind.NEEDED)
def remove_dead(graph: Graph, ctx: CompileContext) -> Graph:
    """Drop nodes and constants that no output depends on."""
    live = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if live & set(node.outputs):
            kept.append(node)
            live.update(i for i in node.inputs if i)
    out = graph.copy()
    out.nodes = kept[::-1]
    out.constants = {k: v for k, v in graph.constants.items() if k in live}
    named = live | set(graph.inputs) | {o for n in out.nodes for o in n.outputs}
    out.tensors = {k: v for k, v in graph.tensors.items() if k in named}
    return out
