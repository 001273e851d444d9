"""Clean-up: what inference does not need (Identity, Dropout, no-op Cast) and what nobody reads."""

from __future__ import annotations

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.rewiring import take_out
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.compiler.select import kernel_args, select_kernel
from npusim.ir import DType, Graph, Node

#: Operators that are the identity in inference, whatever their attributes.
IDENTITIES = ("Identity", "Dropout")


@graph_pass("CastRemovePass", Kind.CLEAN_UP)
def remove_identities(graph: Graph, ctx: CompileContext) -> Graph:
    """Readers of identity results read the source; a Cast reads past Casts that lose nothing."""
    out = graph.copy()
    makers: dict[str, Node] = {}
    same: dict[str, str] = {}
    for at, node in enumerate(graph.nodes):
        node = out.nodes[at] = _past_casts(graph, node, makers, same, ctx)
        makers.update({o: node for o in node.outputs if o})
        if _is_identity(graph, node):
            same[node.outputs[0]] = same.get(node.inputs[0], node.inputs[0])
    return take_out(out, same)


def _is_identity(graph: Graph, node: Node) -> bool:
    if node.epilogue or graph.type_of(node.inputs[0]) != graph.type_of(node.outputs[0]):
        return False
    if node.op_type in IDENTITIES:
        extra = [o for o in node.outputs[1:] if o]
        return not extra
    return node.op_type == "Cast"


def _past_casts(
    graph: Graph, node: Node, makers: dict[str, Node], same: dict[str, str], ctx: CompileContext
) -> Node:
    """Cast(Cast(x)) → Cast(x), where the type between holds every value of x's."""
    while node.op_type == "Cast":
        source = same.get(node.inputs[0], node.inputs[0])
        before = makers.get(source)
        if before is None or before.op_type != "Cast" or before.epilogue:
            return node
        x = before.inputs[0]
        if not _holds(graph.type_of(x).dtype, graph.type_of(source).dtype):
            return node
        direct = node.with_(inputs=(x,))
        on_core = select_kernel(kernel_args(graph, direct), ctx.chip)[0]
        if not on_core and select_kernel(kernel_args(graph, node), ctx.chip)[0]:
            return node
        node = direct
    return node


def _holds(narrow: DType, wide: DType) -> bool:
    """Whether `wide` has every value of `narrow`, so that a Cast to it loses nothing."""
    if narrow is wide or narrow is DType.BOOL:
        return True
    if narrow is DType.BFLOAT16:
        return wide in (DType.FLOAT32, DType.FLOAT64)
    if wide is DType.BFLOAT16 or (narrow in (DType.INT64, DType.UINT64) and wide.is_float):
        return False
    return bool(np.can_cast(narrow.np, wide.np, "safe"))


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
