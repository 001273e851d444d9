"""Pools of other than two dimensions as pools of images, which the kernels take."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.stand_in import Rewrite, StandIn, stand_in
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import DType, Graph, Node
from npusim.ops.pool import pool_window
from npusim.ops.window import Window

TYPES = (DType.FLOAT16, DType.FLOAT32)  #: of the kernels


@graph_pass("PoolRankPass", Kind.NEEDED)
def pool_images(graph: Graph, ctx: CompileContext) -> Graph:
    """[N, C, L] becomes an image of one row; for a global pool so does [N, C, D, H, W].

    A window over [N, C, D, H, W] becomes one over images, then one over what they leave in depth:
    maxima and means of boxes are those of columns of maxima and means, padding counted or not.
    """
    return stand_in(graph, ctx, _REWRITES)


def _window(s: StandIn, node: Node, attrs: dict[str, Any]) -> bool:
    """A window of one dimension is one of two with a height of 1."""
    rank = len(s.graph.type_of(node.inputs[0]).shape)
    if rank == 5:
        return _volume(s, node, attrs)
    if rank != 3 or len(node.outputs) > 1:
        return False
    wide = dict(node.attrs)
    for key in ("kernel_shape", "strides", "dilations"):
        if attrs[key]:
            wide[key] = [1, *attrs[key]]
    if attrs["pads"]:
        begin, end = attrs["pads"]
        wide["pads"] = [0, begin, 0, end]
    return _as_image(s, node, wide)


def _volume(s: StandIn, node: Node, attrs: dict[str, Any]) -> bool:
    """A window of three dimensions: height and width, then depth."""
    x, y = (s.graph.type_of(t) for t in (node.inputs[0], node.outputs[0]))
    if len(node.outputs) > 1 or x.dtype not in TYPES or not x.size:
        return False
    n, c, depth, *_ = x.shape
    window = pool_window(x, attrs)
    image = s.reshape(node.inputs[0], n, c * depth, *x.shape[3:])
    flat = _along(s, node.op_type, image, window, (1, 2), attrs)
    column = s.reshape(flat, n, c, depth, prod(y.shape[3:]))
    pooled = _along(s, node.op_type, column, window, (0,), attrs)
    s.reshape(pooled, *y.shape, into=node.outputs[0])
    return True


def _along(
    s: StandIn, op_type: str, x: str, window: Window, dims: tuple[int, ...], attrs: dict[str, Any]
) -> str:
    """A pool of images over some dimensions of a window; a lone one is the height."""
    one = () if len(dims) == 2 else (1,)

    def of(values: tuple[int, ...], other: tuple[int, ...] = one) -> list[int]:
        return [*(values[d] for d in dims), *other]

    zero = (0,) * len(one)
    wide: dict[str, Any] = {
        "kernel_shape": of(window.kernel),
        "strides": of(window.strides),
        "dilations": of(window.dilations),
        "pads": of(window.begin, zero) + of(window.end, zero),
        "ceil_mode": 0 if attrs["auto_pad"].startswith("SAME") else attrs["ceil_mode"],
    }
    if op_type == "AveragePool":
        wide["count_include_pad"] = attrs["count_include_pad"]
    return s.op(op_type, x, **wide)


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


_REWRITES: dict[str, Rewrite] = {
    **dict.fromkeys(("MaxPool", "AveragePool"), _window),
    **dict.fromkeys(("GlobalMaxPool", "GlobalAveragePool"), _global),
}
