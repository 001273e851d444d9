"""Reductions and softmax with what is elementwise before and behind them, as one kernel in UB.

Grown (see `growth`) from every reduction over the last axes and every softmax, as long as UB holds
whole rows.
"""

from __future__ import annotations

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.growth import Growth
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Graph
from npusim.kernels.reduce_elemwise import is_row_op

NAME = "TbeReduceElemwiseFusionPass"


@graph_pass(NAME, Kind.UB_FUSION)
def fuse_reductions(graph: Graph, ctx: CompileContext) -> Graph:
    """Fuse rows of elementwise operators and reductions."""
    growth = Growth(graph, ctx, NAME, "ReduceElemwise")
    return growth.run(lambda node: is_row_op(node.op_type))
