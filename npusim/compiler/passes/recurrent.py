"""Recurrent networks for AI Core kernels: LSTM, GRU and RNN unrolled, a matrix product a step.

CANN runs them as one kernel (DynamicRNN, DynamicGRUV2) for the steps that a sequence has; a Graph's
length is static, so its steps can stand side by side.
"""

from __future__ import annotations

from npusim.compiler.options import CompileContext
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.compiler.writing import NodeWriter, names_read
from npusim.ir import Graph
from npusim.ops import attributes
from npusim.ops.recurrent_cells import GATES, unrolled


@graph_pass("DynamicRNNUnrollPass", Kind.NEEDED, dict.fromkeys(GATES, "Gemm"))
def unroll_recurrent(graph: Graph, ctx: CompileContext) -> Graph:
    """LSTM, GRU, RNN → the operators of their steps, those that something reads."""
    if not any(n.op_type in GATES for n in graph.nodes):
        return graph
    out, read = graph.copy(), names_read(graph)
    out.nodes = []
    for node in graph.nodes:
        if node.op_type not in GATES:
            out.nodes.append(node)
            continue
        writer = NodeWriter(out, node.name, ctx)
        inputs = [i or None for i in node.inputs]
        results = unrolled(writer, node.op_type, inputs, attributes(node))
        writer.finish(dict(zip(results, node.outputs, strict=False)), read)
    return out
