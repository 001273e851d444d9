"""Grouped convolutions for the cube: groups joined, their weights spread to a block diagonal.

The cube works on blocks of 16 filters and of 16 channels (32 of bytes). As many groups are joined
as fill whole blocks, and the kernel takes what is left as groups; all are where that cannot be.
A depthwise convolution of floats has a vector kernel too: there the estimates decide. (CANN's
DepthwiseConv2D is on the cube: its filters in C1HWNCoC0 are such diagonals.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from npusim.compiler.costs import Costs
from npusim.compiler.options import CompileContext
from npusim.compiler.passes.fuse import launch_of
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Constant, Graph, Layout, Node, Tensor, TensorType
from npusim.ir.layout import whole_groups
from npusim.ops import attributes

NAME = "GroupConv2DPass"


@graph_pass(NAME, Kind.NEEDED)
def expand_grouped_conv(graph: Graph, ctx: CompileContext) -> Graph:
    """Conv with 1 < group and constant weights → groups of whole blocks of channels."""
    out, costs = graph.copy(), Costs(ctx)
    out.nodes = [_expand(out, n, ctx, costs) for n in graph.nodes]
    return out


def _expand(graph: Graph, node: Node, ctx: CompileContext, costs: Costs) -> Node:
    if node.op_type != "Conv" or node.inputs[1] not in graph.constants:
        return node
    group = int(attributes(node)["group"])
    w = graph.constants[node.inputs[1]]
    co, per_group, *kernel = w.type.shape
    if group == 1:
        return node
    on_cube = w.type.dtype.value in ctx.chip.core.cube.k  # the vector unit's kernel takes no groups
    fewer = _groups(per_group * group, co, group, w.type) if on_cube else 1
    if fewer == group:
        return node
    joined = group // fewer
    depthwise = per_group == 1 and co == group and w.type.dtype.is_float
    if depthwise and (fewer == 1 or not _pays(graph, node, fewer, ctx, costs)):
        return node
    type_ = TensorType((co, per_group * joined, *kernel), w.type.dtype)
    name = ctx.fresh(node.inputs[1])
    graph.constants[name] = Constant(type_, _spread(w, joined, fewer, type_))
    graph.tensors[name] = Tensor(name, type_.shape, type_.dtype)
    ctx.note(f"{node.name}: {group} groups run as {fewer}, {joined} joined in each")
    inputs = (node.inputs[0], name, *node.inputs[2:])
    return node.with_(inputs=inputs, attrs={**node.attrs, "group": fewer})


def _pays(graph: Graph, node: Node, fewer: int, ctx: CompileContext, costs: Costs) -> bool:
    """Whether a depthwise convolution is faster on the cube, in `fewer` groups."""
    apart = launch_of(graph, node)
    w = apart.operands[1]
    shape = (w.shape[0], w.shape[0] // fewer, *w.shape[2:])
    spread = replace(w, shape=shape, layout=Layout.FRACTAL_Z)
    attrs = tuple(sorted({**dict(apart.attrs), "group": fewer}.items()))
    inputs = (apart.inputs[0], spread, *apart.inputs[2:])
    cube, vector = costs.launch(replace(apart, inputs=inputs, attrs=attrs)), costs.launch(apart)
    reason = f"on the cube it would take {cube:.0f} cycles, on the vector unit {vector:.0f}"
    ctx.decide(NAME, (node.name,), cube < vector, reason)
    return cube < vector


def _groups(channels: int, filters: int, group: int, w: TensorType) -> int:
    """The most groups, each some of the given ones, that are whole blocks of channels."""
    return next(
        g
        for g in range(group, 0, -1)
        if group % g == 0 and whole_groups(channels, filters, g, w.dtype)
    )


def _spread(w: Constant, joined: int, groups: int, type_: TensorType) -> Callable[[], np.ndarray]:
    """Weights of `groups` groups of which each joins `joined`: a block diagonal in each."""

    def make() -> np.ndarray:
        narrow = w.value()
        wide = np.zeros(type_.shape, type_.dtype.np)
        co, ci = narrow.shape[0] // (joined * groups), narrow.shape[1]
        for g in range(joined * groups):
            rows, first = slice(g * co, (g + 1) * co), g % joined * ci
            wide[rows, first : first + ci] = narrow[rows]
        return wide

    return make
