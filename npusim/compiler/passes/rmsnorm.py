"""RMSNormalization that an exporter has written as six nodes becomes one."""

from __future__ import annotations

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.decomposed import collapse
from npusim.compiler.passes.standardised import matches
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Graph


@graph_pass("RmsNormFusionPass", Kind.GRAPH_FUSION)
def fuse_rmsnorm(graph: Graph, ctx: CompileContext) -> Graph:
    """Pow, ReduceMean, Add, Sqrt, Div (or Reciprocal, Mul), Mul → RMSNormalization."""
    found = matches(graph, ctx, False, "RMSNormalization")
    return collapse("RmsNormFusionPass", graph, ctx, found)
