"""LayerNormalization that an exporter has written as nine nodes becomes one."""

from __future__ import annotations

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.decomposed import collapse
from npusim.compiler.passes.standardised import matches
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Graph


@graph_pass("LayerNormONNXFusionPass", Kind.GRAPH_FUSION)
def fuse_layernorm(graph: Graph, ctx: CompileContext) -> Graph:
    """ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, Div, Mul, Add → LayerNormalization."""
    found = matches(graph, ctx, True, "LayerNormalization")
    return collapse("LayerNormONNXFusionPass", graph, ctx, found)
