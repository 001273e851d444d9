"""Add and LayerNormalization become AddLayerNorm.

Where others want the sum too (a network that normalises first), the kernel writes it out.
"""

from __future__ import annotations

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.residual import fuse_residuals
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Graph, Node
from npusim.ops import attributes


@graph_pass("AddLayerNormFusionPass", Kind.GRAPH_FUSION)
def fuse_add_layernorm(graph: Graph, ctx: CompileContext) -> Graph:
    """Add, LayerNormalization → AddLayerNorm, where it pays."""

    def make(out: Graph, add: Node, norm: Node, wanted: bool) -> Node:
        attrs = {k: attributes(norm)[k] for k in ("axis", "epsilon")}
        inputs = (*add.inputs, *norm.inputs[1:])
        outputs = (*norm.outputs, *(add.outputs if wanted else ()))
        return Node(norm.name, "AddLayerNorm", inputs, outputs, attrs)

    name = "AddLayerNormFusionPass"
    return fuse_residuals(name, graph, ctx, "LayerNormalization", "Norm", make)
