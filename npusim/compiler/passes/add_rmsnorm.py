"""Add and RMSNormalization become AddRmsNorm, whose kernel always writes the sum."""

from __future__ import annotations

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.residual import fuse_residuals
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import DType, Graph, Node, Tensor
from npusim.ops import attributes


@graph_pass("AddRmsNormFusionGraphPass", Kind.GRAPH_FUSION)
def fuse_add_rmsnorm(graph: Graph, ctx: CompileContext) -> Graph:
    """Add, RMSNormalization → AddRmsNorm, where it pays: its kernel overlaps nothing."""

    def make(out: Graph, add: Node, norm: Node, wanted: bool) -> Node:
        shape = graph.type_of(norm.inputs[0]).shape
        axis = int(attributes(norm)["axis"]) % len(shape)
        kept = ctx.fresh(f"{norm.name}_rstd")
        rows = (*shape[:axis], *(1,) * (len(shape) - axis))
        out.tensors[kept] = Tensor(kept, rows, DType.FLOAT32)
        outputs = (*norm.outputs, kept, *add.outputs)
        attrs = {"epsilon": attributes(norm)["epsilon"]}
        return Node(norm.name, "AddRmsNorm", (*add.inputs, norm.inputs[1]), outputs, attrs)

    name = "AddRmsNormFusionGraphPass"
    return fuse_residuals(name, graph, ctx, "RMSNormalization", "RmsNorm", make)
