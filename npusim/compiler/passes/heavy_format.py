"""FRACTAL_NZ between matrix products, and one TransData for all products that read a tensor.

`assign_layouts` asks of each product alone whether a TransData of an operand pays. Here all
products that read a tensor are taken together, and whoever makes the tensor is asked: a product
writes FRACTAL_NZ itself, and an elementwise node behind one works in it, so that a chain of
products needs no TransData. (CANN's fusion engine propagates its "heavy formats" so.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from npusim.compiler.costs import Costs
from npusim.compiler.options import CompileContext
from npusim.compiler.passes.trans_motion import Turn
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Graph, Layout, Node
from npusim.ops import get_operator

PRODUCTS = ("MatMul", "Gemm")
NZ = Layout.FRACTAL_NZ
MARGIN = 0.01  #: part of the cycles that must be saved: less is within the estimates' error


@graph_pass("HeavyFormatPropagationPass", Kind.GRAPH_FUSION)
def propagate_fractals(graph: Graph, ctx: CompileContext) -> Graph:
    """Give products their operands in FRACTAL_NZ where that is cheaper, all nodes considered.

    Chips with FIXP read ND in whole rows (ND2NZ), so the question only arises on others.
    """
    if ctx.chip.core.fixp is not None:
        return graph
    costs = Costs(ctx)
    uses = graph.consumers()
    for name in [o for n in graph.nodes for o in n.outputs if o]:
        readers = _gaining(graph, costs, name, uses.get(name, []))
        if readers:
            better = _cheapest(graph, ctx, costs, name, readers)
            if better is not graph:
                graph, uses = better, better.consumers()
    return graph


def _gaining(graph: Graph, costs: Costs, name: str, readers: list[Node]) -> list[Node]:
    """Products that are faster with the tensor in FRACTAL_NZ."""
    found = [n for n in readers if n.op_type in PRODUCTS and name in n.inputs[:2]]
    t = graph.tensors[name]
    if not found or t.layout is not Layout.ND or len(t.shape) < 2:
        return []
    trial = replace(graph, tensors={**graph.tensors, name: replace(t, layout=NZ)})
    return [
        n
        for n in found
        if n.inputs.count(name) == 1 and costs.node(trial, n) < costs.node(graph, n)
    ]


def _cheapest(
    graph: Graph, ctx: CompileContext, costs: Costs, name: str, readers: list[Node]
) -> Graph:
    """The cheapest of the graph as it is and the ways to have the tensor in FRACTAL_NZ."""
    makers = graph.producers()
    maker = makers[name]
    near = {n.name for n in (*readers, maker)} | {
        makers[i].name for i in maker.inputs if i in makers
    }
    old = {n.name for n in graph.nodes if n.op_type == "TransData"}

    def cost(g: Graph) -> float:
        new = (n for n in g.nodes if n.op_type == "TransData" and n.name not in old)
        return sum(costs.node(g, n) for n in (*new, *(n for n in g.nodes if n.name in near)))

    best, least = graph, cost(graph)
    for way in _ways(graph, ctx, maker, name, readers):
        found = cost(way)
        names = (maker.name, readers[0].name)
        taken = found < least * (1 - MARGIN)
        reason = f"FRACTAL_NZ between them: {found:.0f} cycles, else {least:.0f}"
        reason += " (within the estimates' error)" if found < least and not taken else ""
        ctx.decide("HeavyFormatPropagationPass", names, taken, reason)
        if taken:
            best, least = way, found
    return best


def _ways(
    graph: Graph, ctx: CompileContext, maker: Node, name: str, readers: list[Node]
) -> Iterator[Graph]:
    """The tensor in FRACTAL_NZ by a TransData, by its maker, by its maker and the ones before."""
    new = ctx.fresh(name)
    out = graph.copy()
    out.tensors[new] = replace(graph.tensors[name], name=new, layout=NZ)
    trans = Node(ctx.fresh(f"{name}_trans"), "TransData", (name,), (new,))
    chosen = {n.name for n in readers}
    out.nodes = []
    for n in graph.nodes:
        if n.name in chosen:
            n = n.with_(inputs=tuple(new if i == name else i for i in n.inputs))
        out.nodes += [n, trans] if n is maker else [n]
    yield out
    uses = out.consumers()
    if maker.op_type in PRODUCTS and uses[name] == [trans] and name not in out.outputs:
        direct = out.copy()
        direct.nodes = [
            n.with_(outputs=(new,)) if n is maker else n for n in out.nodes if n is not trans
        ]
        yield direct
    elif len(maker.outputs) == 1 and get_operator(maker.op_type, maker.name).elementwise:
        turn = Turn(out, ctx, maker, NZ, uses, out.producers())
        if turn.legal():
            yield turn.run()
