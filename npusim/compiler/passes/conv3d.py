"""Convolutions over three dimensions for the cube, which convolves images.

[N, C, D, H, W] becomes N·Do images whose channels are those of all kd slices that an output slice
reads: the kernel's depth is folded into the sum over channels, as in the formats NDC1HWC0 and
FRACTAL_Z_3D. A product of the cube sums all of it in fp32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.stand_in import FLOATS, StandIn, stand_in
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Constant, Graph, Node, TensorType
from npusim.ops.window import Window


@graph_pass("ExpandConv3DPass", Kind.NEEDED)
def expand_conv3d(graph: Graph, ctx: CompileContext) -> Graph:
    """Conv of [N, C, D, H, W] → Conv of [N·Do, kd·C, H, W]."""
    if not any(_is_volume(graph, n) for n in graph.nodes):
        return graph
    return stand_in(graph, ctx, {"Conv": _expand})


def _is_volume(graph: Graph, node: Node) -> bool:
    return node.op_type == "Conv" and len(graph.type_of(node.inputs[0]).shape) == 5


def _expand(s: StandIn, node: Node, attrs: dict[str, Any]) -> bool:
    x, y = (s.graph.type_of(t) for t in (node.inputs[0], node.outputs[0]))
    weights = s.graph.constants.get(node.inputs[1])  # constants are laid out for the cube
    if weights is None or not _is_volume(s.graph, node) or attrs["spread"]:
        return False
    if x.dtype not in FLOATS or not x.size or not y.size:
        return False
    kernel = weights.type.shape[2:]
    window, group = Window.of(x.shape[2:], kernel, attrs), int(attrs["group"])
    images = _images(s, node.inputs[0], window, group)
    flat = _flat(s, weights)
    begin, end = window.begin[1:], window.end[1:]
    out = s.op(
        "Conv", images, flat, *node.inputs[2:], group=group, kernel_shape=list(kernel[1:]),
        strides=list(window.strides[1:]), dilations=list(window.dilations[1:]),
        pads=[*begin, *end],
    )  # fmt: skip
    n, co, do, *size = y.shape
    slices = s.op("Transpose", s.reshape(out, n, do, co, *size), perm=[0, 2, 1, 3, 4])
    s.reshape(slices, *y.shape, into=node.outputs[0])
    return True


def _images(s: StandIn, x: str, window: Window, group: int) -> str:
    """For each output slice, the channels of the slices that it reads, group by group."""
    n, c, _, *size = s.shape(x)
    first, last, step = window.begin[0], window.end[0], window.strides[0]
    if first or last:
        x = s.op("Pad", x, s.ints(0, 0, first, 0, 0, 0, 0, last, 0, 0))
    depth, pixels, out = s.shape(x)[2], size[0] * size[1], window.out[0]
    x = s.op("Transpose", x, perm=[0, 2, 1, 3, 4])
    starts = [tap * window.dilations[0] for tap in range(window.kernel[0])]
    shape = (n * out, len(starts) * c, *size)
    if group == 1:  # the slices lie as the channels should
        slices = np.add.outer(np.arange(out) * step, starts).reshape(-1)
        if not np.array_equal(slices, np.arange(depth)):
            x = s.op("Gather", x, s.constant(slices), axis=1)
        return s.reshape(x, *shape)
    x, taps = s.reshape(x, n, depth, group, c // group * pixels), []
    for start in starts:
        bounds = (s.ints(start), s.ints(start + (out - 1) * step + 1))
        taps.append(s.op("Slice", x, *bounds, s.ints(1), s.ints(step)))
    return s.reshape(taps[0] if len(taps) == 1 else s.op("Concat", *taps, axis=3), *shape)


def _flat(s: StandIn, weights: Constant) -> str:
    """[Co, C, kd, kh, kw] as [Co, kd·C, kh, kw]."""
    co, c, kd, *kernel = weights.type.shape
    name = s.tensor((co, kd * c, *kernel), weights.type.dtype)
    kind = TensorType(s.shape(name), weights.type.dtype)
    s.graph.constants[name] = _turned(weights, kind)
    return name


def _turned(weights: Constant, kind: TensorType) -> Constant:
    return weights.map(lambda w: np.ascontiguousarray(w.swapaxes(1, 2)).reshape(kind.shape), kind)
