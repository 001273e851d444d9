"""A residual's Add joins the normalisation behind it: the sum need not come back from GM."""

from __future__ import annotations

from collections.abc import Callable

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.patterns import Pattern, Times, refusal
from npusim.ir import Graph, Node
from npusim.ops import attributes

#: (graph, add, normalisation, whether somebody else wants the sum) → the fused node, whose new
#: tensors it puts into the graph.
Make = Callable[[Graph, Node, Node, bool], Node]


def fuse_residuals(
    name: str, graph: Graph, ctx: CompileContext, op_type: str, kernel: str, make: Make
) -> Graph:
    """Add and every normalisation of a type, as one node where that kernel takes it and it pays.

    Args:
        name: of the pass, for its decisions.
    """
    out, find, times = graph.copy(), Pattern(graph), Times(ctx)
    position = {n.name: i for i, n in enumerate(graph.nodes)}
    instead: dict[str, Node | None] = {}
    for norm in graph.nodes:
        add = find.maker(norm.inputs[0], "Add") if norm.op_type == op_type else None
        if add is None or norm.epilogue or len(norm.outputs) != 1 or "" in norm.inputs:
            continue
        readers = find.uses[add.outputs[0]]
        early = [r.name for r in readers if position[r.name] < position[norm.name]]
        reason = _mismatch(graph, add, norm)
        if not reason and early:
            reason = f"the sum is wanted by {early[0]} before"
        if not reason and add.name in instead:
            reason = "the sum goes with another normalisation"
        if not reason:
            node = make(out, add, norm, not find.private(add.outputs[0]))
            reason = refusal(out, node, ctx, kernel)
            together, apart = times.of(out, node), times.total(graph, (add, norm))
            if not reason and together > apart:
                reason = f"it would cost {together:.0f} cycles, apart {apart:.0f}"
        ctx.decide(name, (add.name, norm.name), not reason, reason or f"{kernel} takes it")
        if not reason:
            instead |= {add.name: None, norm.name: node}
    if not instead:
        return graph
    new = [instead.get(n.name, n) for n in graph.nodes]
    out.nodes = [n for n in new if n is not None]
    return out


def _mismatch(graph: Graph, add: Node, norm: Node) -> str:
    """Why the operands are not those of one kernel; '' when they are."""
    types = [graph.type_of(i) for i in add.inputs]
    if add.inputs[0] == add.inputs[1] or types[0] != types[1]:
        return f"addends {types[0].shape} and {types[1].shape}, not two of one type"
    inner = types[0].shape[int(attributes(norm)["axis"]) % len(types[0].shape) :]
    if any(graph.type_of(i).shape != inner for i in norm.inputs[1:]):
        return f"a scale or bias that broadcasts to {inner}"
    return ""
