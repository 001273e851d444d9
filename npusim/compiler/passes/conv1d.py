"""Convolutions over one dimension for the cube: of images of one row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npusim.compiler.options import CompileContext
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.compiler.writing import NodeWriter, names_read
from npusim.ir import Graph, Node
from npusim.ops import attributes


@graph_pass("ExpandConv1DPass", Kind.NEEDED)
def expand_conv1d(graph: Graph, ctx: CompileContext) -> Graph:
    """Conv of [N, C, L] → Conv of [N, C, 1, L], between reshapes."""
    if not any(_is_line(graph, n) for n in graph.nodes):
        return graph
    out, read = graph.copy(), names_read(graph)
    out.nodes = []
    for node in graph.nodes:
        if not _is_line(graph, node):
            out.nodes.append(node)
            continue
        writer = NodeWriter(out, node.name, ctx)
        writer.finish({_expanded(writer, node): node.outputs[0]}, read)
    return out


def _is_line(graph: Graph, node: Node) -> bool:
    return node.op_type == "Conv" and len(graph.type_of(node.inputs[0]).shape) == 3


def _expanded(w: NodeWriter, node: Node) -> str:
    image, weights = (as_row(w, i) for i in node.inputs[:2])
    y = w.op("Conv", image, weights, *node.inputs[2:], attrs=row_attrs(attributes(node)))
    n, c, _, length = w.type(y).shape
    return w.reshape(y, n, c, length)


def row_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a convolution over one dimension, as of one of images of one row."""
    wide = dict(attrs)
    for key in ("kernel_shape", "strides", "dilations", "spread"):
        if wide.get(key):
            wide[key] = [1, *wide[key]]
    if wide["pads"]:
        begin, end = wide["pads"]
        wide["pads"] = [0, begin, 0, end]
    return wide


def as_row(w: NodeWriter, x: str) -> str:
    """[A, B, L] as [A, B, 1, L]."""
    a, b, length = w.type(x).shape
    return w.reshape(x, a, b, 1, length)
