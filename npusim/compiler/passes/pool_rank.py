"""Pools of other than two dimensions as pools of images, which the kernels take."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.stand_in import StandIn, stand_in
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import DType, Graph, Node

TYPES = (DType.FLOAT16, DType.FLOAT32)  #: of the kernels


@graph_pass("PoolRankPass", Kind.NEEDED)
def pool_images(graph: Graph, ctx: CompileContext) -> Graph:
    """[N, C, L] becomes an image of one row; for a global pool so does [N, C, D, H, W]."""
    windows = dict.fromkeys(("MaxPool", "AveragePool"), _window)
    everything = dict.fromkeys(("GlobalMaxPool", "GlobalAveragePool"), _global)
    return stand_in(graph, ctx, {**windows, **everything})


def _window(s: StandIn, node: Node, attrs: dict[str, Any]) -> bool:
    """A window of one dimension is one of two with a height of 1."""
    if len(s.graph.type_of(node.inputs[0]).shape) != 3 or len(node.outputs) > 1:
        return False
    wide = dict(node.attrs)
    for key in ("kernel_shape", "strides", "dilations"):
        if attrs[key]:
            wide[key] = [1, *attrs[key]]
    if attrs["pads"]:
        begin, end = attrs["pads"]
        wide["pads"] = [0, begin, 0, end]
    return _as_image(s, node, wide)


def _global(s: StandIn, node: Node, attrs: dict[str, Any]) -> bool:
    """All spatial dimensions in one row."""
    rank = len(s.graph.type_of(node.inputs[0]).shape)
    return rank not in (2, 4) and _as_image(s, node, {})


def _as_image(s: StandIn, node: Node, attrs: dict[str, Any]) -> bool:
    x, y = (s.graph.type_of(t) for t in (node.inputs[0], node.outputs[0]))
    if x.dtype not in TYPES or not x.size:
        return False
    names = []
    for t in (x, y):
        names.append(s.tensor((*t.shape[:2], 1, prod(t.shape[2:])), t.dtype))
    shapes = [s.graph.type_of(names[0]).shape, y.shape]
    before, after = (s.constant(np.array(shape, np.int64)) for shape in shapes)
    s.add("Reshape", (node.inputs[0], before), (names[0],), "image")
    s.add(node.op_type, (names[0],), (names[1],), "pool", **attrs)
    s.add("Reshape", (names[1], after), node.outputs)
    return True
