"""A Cast next to a TransData joins it: one kernel reads, converts, transposes and writes.

So the model's interface in fp32 costs nothing where the graph inside is fp16 in NC1HWC0.
"""

from __future__ import annotations

from npusim.compiler.costs import Costs
from npusim.compiler.options import CompileContext
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.compiler.select import kernel_args, moves_nothing, select_kernel
from npusim.ir import Graph, Node


@graph_pass("TransDataCastFusionPass", Kind.UB_FUSION)
def fuse_trans_cast(graph: Graph, ctx: CompileContext) -> Graph:
    """Cast → TransData, and TransData → Cast, become a TransData that converts."""
    uses, makers = graph.consumers(), graph.producers()
    out = graph.copy()
    joined: set[str] = set()  # nodes that are gone, or have taken one in
    replaced: dict[str, Node | None] = {}
    costs = Costs(ctx)
    for second in graph.nodes:
        first = makers.get(second.inputs[0]) if second.inputs else None
        if first is None or {first.op_type, second.op_type} != {"Cast", "TransData"}:
            continue
        if first.epilogue or second.epilogue or {first.name, second.name} & joined:
            continue
        reason, node = _join(graph, ctx, costs, (first, second), len(uses[second.inputs[0]]))
        names = (first.name, second.name)
        ctx.decide("TransDataCastFusionPass", names, not reason, reason or "TransData converts")
        if not reason:
            joined.update(names)
            replaced.update({first.name: None, second.name: node})
    new = [replaced.get(n.name, n) for n in graph.nodes]
    out.nodes = [n for n in new if n is not None]
    return out


def _join(
    graph: Graph, ctx: CompileContext, costs: Costs, pair: tuple[Node, Node], readers: int
) -> tuple[str, Node]:
    """(Why the two stay apart, or '', the TransData that does both)."""
    first, second = pair
    trans = first if first.op_type == "TransData" else second
    dtype = graph.type_of(second.outputs[0]).dtype
    both = Node(trans.name, "TransData", first.inputs, second.outputs, {"to": dtype.value})
    if readers > 1 or second.inputs[0] in graph.outputs:
        return "what is between them is wanted by others", both
    if moves_nothing(graph, trans):
        return "the TransData moves nothing", both
    kernel, why = select_kernel(kernel_args(graph, both), ctx.chip)
    if not kernel:
        return why, both
    together, apart = (sum(costs.node(graph, n) for n in nodes) for nodes in ((both,), pair))
    if together > apart:
        return f"it would cost {together:.0f} cycles, apart {apart:.0f}", both
    return "", both
