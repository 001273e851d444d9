"""A residual's Add joins the LayerNormalization behind it: the sum need not go through GM.

Where others want the sum too (a network that normalises first), the kernel writes it out.
"""

from __future__ import annotations

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.patterns import Pattern, Times, refusal
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Graph, Node
from npusim.ops import attributes

NAME = "AddLayerNormFusionPass"


@graph_pass(NAME, Kind.GRAPH_FUSION)
def fuse_add_layernorm(graph: Graph, ctx: CompileContext) -> Graph:
    """Add, LayerNormalization → AddLayerNorm, where it pays."""
    out, find, times = graph.copy(), Pattern(graph), Times(ctx)
    position = {n.name: i for i, n in enumerate(graph.nodes)}
    instead: dict[str, Node | None] = {}
    for norm in graph.nodes:
        add = find.maker(norm.inputs[0], "Add") if norm.op_type == "LayerNormalization" else None
        if add is None or norm.epilogue or len(norm.inputs) != 3 or len(norm.outputs) != 1:
            continue
        node = _node(find, add, norm)
        readers = find.uses[add.outputs[0]]
        early = [r.name for r in readers if position[r.name] < position[norm.name]]
        types = [graph.type_of(i) for i in add.inputs]
        axis = int(attributes(norm)["axis"])
        inner = types[0].shape[axis % len(types[0].shape) :]
        if add.inputs[0] == add.inputs[1] or types[0] != types[1]:
            reason = f"addends {types[0].shape} and {types[1].shape}, not two of one type"
        elif any(graph.type_of(i).shape != inner for i in norm.inputs[1:]):
            reason = f"scale or bias that broadcast to {inner}"
        elif early:
            reason = f"the sum is wanted by {early[0]} before"
        elif add.name in instead:
            reason = "the sum goes with another normalisation"
        else:
            reason = refusal(out, node, ctx, "Norm")
            together, apart = times.of(out, node), times.total(graph, (add, norm))
            if not reason and together > apart:
                reason = f"it would cost {together:.0f} cycles, apart {apart:.0f}"
        ctx.decide(NAME, (add.name, norm.name), not reason, reason or "Norm takes it")
        if not reason:
            instead |= {add.name: None, norm.name: node}
    if not instead:
        return graph
    new = [instead.get(n.name, n) for n in graph.nodes]
    out.nodes = [n for n in new if n is not None]
    return out


def _node(find: Pattern, add: Node, norm: Node) -> Node:
    """The fused node, with the sum as an output where somebody else reads it."""
    total = () if find.private(add.outputs[0]) else add.outputs
    attrs = {k: attributes(norm)[k] for k in ("axis", "epsilon")}
    inputs = (*add.inputs, *norm.inputs[1:])
    return Node(norm.name, "AddLayerNorm", inputs, (*norm.outputs, *total), attrs)
