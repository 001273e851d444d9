"""Constant folding: nodes that read only constants become constants, still lazy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Constant, Graph, Node, TensorType
from npusim.ops import compute_node


@graph_pass("ConstantFoldingPass", Kind.NEEDED)
def fold_constants(graph: Graph, ctx: CompileContext) -> Graph:
    """Fold nodes all of whose inputs are constants (weights are computed when loaded)."""
    out = graph.copy()
    out.nodes = []
    for node in graph.nodes:
        inputs = [i for i in node.inputs if i]
        foldable = inputs and all(i in out.constants for i in inputs) and len(node.outputs) == 1
        if not foldable:
            out.nodes.append(node)
            continue
        name = node.outputs[0]
        type_ = graph.type_of(name)
        given = {i: out.constants[i] for i in inputs}
        out.constants[name] = Constant(type_, _evaluator(node, given, type_))
    return out


def _evaluator(
    node: Node, constants: dict[str, Constant], type_: TensorType
) -> Callable[[], np.ndarray]:
    def make() -> np.ndarray:
        x = [constants[i].value() if i else None for i in node.inputs]
        return compute_node(node, x, [type_])[0]

    return make
