"""A TransData that undoes another is gone: its readers read what the first one read."""

from __future__ import annotations

from npusim.compiler.options import CompileContext
from npusim.compiler.rewiring import take_out
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Graph, Layout, Tensor
from npusim.ir.layout import c0_of


@graph_pass("TransOpSymmetryEliminationPass", Kind.CLEAN_UP)
def eliminate_symmetric(graph: Graph, ctx: CompileContext) -> Graph:
    """TransData there and back → the tensor itself (the first, where nobody reads it, is pruned).

    Zeros that the second one would write into padding must not be missed: blocked tensors with
    padding count only where a TransData made them.
    """
    makers = graph.producers()
    same: dict[str, str] = {}
    for back in graph.nodes:
        there = makers.get(back.inputs[0]) if back.op_type == "TransData" else None
        if there is None or there.op_type != "TransData":
            continue
        source, result = graph.tensors[there.inputs[0]], graph.tensors[back.outputs[0]]
        if (source.type, source.layout) != (result.type, result.layout):
            continue
        narrowed = graph.tensors[there.outputs[0]].dtype is not source.dtype
        maker = makers.get(source.name)
        zeros = maker is not None and maker.op_type == "TransData"
        if not narrowed and (zeros or not _padded(source)):
            same[back.outputs[0]] = source.name
    return take_out(graph, same)


def _padded(t: Tensor) -> bool:
    """Whether the layout adds elements."""
    if t.layout is Layout.ND:
        return False
    if t.layout is Layout.NC1HWC0:
        return t.shape[1] % c0_of(t.dtype) != 0
    return t.nbytes != t.type.size * t.dtype.size
