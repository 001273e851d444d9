"""Grouped convolutions for the cube: weights spread to a dense, block-diagonal filter.

Fractals hold 16 × 16 channels; groups that do not fill them would leave the cube idle anyway.
Depthwise convolutions stay: they have a vector kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Constant, Graph, Node, Tensor, TensorType
from npusim.ops import attributes


@graph_pass("GroupConv2DPass", Kind.NEEDED)
def expand_grouped_conv(graph: Graph, ctx: CompileContext) -> Graph:
    """Conv with 1 < group, not depthwise, constant weights → dense Conv."""
    out = graph.copy()
    out.nodes = [_expand(out, n, ctx) for n in graph.nodes]
    return out


def _expand(graph: Graph, node: Node, ctx: CompileContext) -> Node:
    if node.op_type != "Conv" or node.inputs[1] not in graph.constants:
        return node
    group = int(attributes(node)["group"])
    w = graph.constants[node.inputs[1]]
    co, per_group, *kernel = w.type.shape
    if group == 1 or (per_group == 1 and co == group):
        return node
    type_ = TensorType((co, per_group * group, *kernel), w.type.dtype)
    name = ctx.fresh(node.inputs[1])
    graph.constants[name] = Constant(type_, _dense(w, group, type_))
    graph.tensors[name] = Tensor(name, type_.shape, type_.dtype)
    ctx.note(f"{node.name}: {group} groups run as one dense convolution on the cube")
    inputs = (node.inputs[0], name, *node.inputs[2:])
    return node.with_(inputs=inputs, attrs={**node.attrs, "group": 1})


def _dense(w: Constant, group: int, type_: TensorType) -> Callable[[], np.ndarray]:
    def make() -> np.ndarray:
        narrow = w.value()
        wide = np.zeros(type_.shape, type_.dtype.np)
        co, ci = narrow.shape[0] // group, narrow.shape[1]
        for g in range(group):
            rows, cols = slice(g * co, (g + 1) * co), slice(g * ci, (g + 1) * ci)
            wide[rows, cols] = narrow[rows]
        return wide

    return make
