"""Transposed convolutions for the cube: a convolution of the input with zeros between its pixels.

The weights [Ci, Co, kh, kw] become [Co, Ci, kh, kw], turned by half; load3d fetches the zeros, as
in the gradient of a convolution by its input.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Constant, Graph, Node, Tensor, TensorType
from npusim.ops import attributes
from npusim.ops.conv import transposed_extent


@graph_pass("DeconvWeightTransFusionPass", Kind.NEEDED, {"ConvTranspose": "Conv"})
def turn_transposed_conv(graph: Graph, ctx: CompileContext) -> Graph:
    """ConvTranspose of two dimensions, ungrouped, constant weights → Conv with `spread`."""
    out = graph.copy()
    out.nodes = [_turn(out, n, ctx) if n.op_type == "ConvTranspose" else n for n in graph.nodes]
    return out


def _turn(graph: Graph, node: Node, ctx: CompileContext) -> Node:
    attrs, w = attributes(node), graph.constants.get(node.inputs[1])
    if w is None or len(w.type.shape) != 4 or int(attrs["group"]) != 1:
        return node
    size, kernel = graph.type_of(node.inputs[0]).shape[2:], w.type.shape[2:]
    strides, dilations = attrs["strides"] or (1, 1), attrs["dilations"] or (1, 1)
    crop, result = transposed_extent(size, kernel, attrs)
    pads = _pads(size, kernel, strides, dilations, crop, result)
    if min(pads) < 0:  # more is cropped than the kernel adds
        return node
    type_ = TensorType((w.type.shape[1], w.type.shape[0], *kernel), w.type.dtype)
    name = ctx.fresh(node.inputs[1])
    graph.constants[name] = _turned(w, type_)
    graph.tensors[name] = Tensor(name, type_.shape, type_.dtype)
    window = {"pads": pads, "dilations": [*dilations], "kernel_shape": [*kernel]}
    return node.with_(
        op_type="Conv",
        inputs=(node.inputs[0], name, *node.inputs[2:]),
        attrs={**window, "spread": [*strides]},
    )


def _pads(
    size: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    crop: Sequence[int],
    result: Sequence[int],
) -> list[int]:
    """The convolution's padding, all that is before first."""
    reach = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    spread = [(n - 1) * s + 1 for n, s in zip(size, strides, strict=True)]
    before = [r - c for r, c in zip(reach, crop, strict=True)]
    after = [o - s - b + r for o, s, b, r in zip(result, spread, before, reach, strict=True)]
    return before + after


def _turned(w: Constant, type_: TensorType) -> Constant:
    return w.map(lambda a: np.ascontiguousarray(a.swapaxes(0, 1)[:, :, ::-1, ::-1]), type_)
