"""A matrix product whose result is only read in FRACTAL_NZ writes it so."""

from __future__ import annotations

from npusim.compiler.costs import Costs
from npusim.compiler.options import CompileContext
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Graph, Layout, Node


@graph_pass("MatmulTransdataFusionPass", Kind.UB_FUSION)
def fuse_matmul_transdata(graph: Graph, ctx: CompileContext) -> Graph:
    """MatMul or Gemm + TransData to FRACTAL_NZ → the product in FRACTAL_NZ: L0C holds it so."""
    uses, makers = graph.consumers(), graph.producers()
    out = graph.copy()
    replaced: dict[str, Node | None] = {}
    costs = Costs(ctx)
    for trans in graph.nodes:
        product = makers.get(trans.inputs[0]) if trans.op_type == "TransData" else None
        if product is None or product.op_type not in ("MatMul", "Gemm"):
            continue
        if graph.tensors[trans.outputs[0]].layout is not Layout.FRACTAL_NZ:
            continue
        reason = _objection(graph, costs, product, trans, len(uses[trans.inputs[0]]))
        names = (product.name, trans.name)
        ctx.decide("MatmulTransdataFusionPass", names, not reason, reason or "L0C is in fractals")
        if not reason:
            replaced.update({product.name: product.with_(outputs=trans.outputs), trans.name: None})
    new = [replaced.get(n.name, n) for n in graph.nodes]
    out.nodes = [n for n in new if n is not None]
    return out


def _objection(graph: Graph, costs: Costs, product: Node, trans: Node, readers: int) -> str:
    """Why the TransData stays; '' when it goes."""
    if readers > 1 or product.outputs[0] in graph.outputs:
        return "the product is wanted in ND too"
    together = costs.node(graph, product.with_(outputs=trans.outputs))
    apart = costs.node(graph, product) + costs.node(graph, trans)
    if together > apart:
        return f"it would cost {together:.0f} cycles, apart {apart:.0f}"
    return ""
