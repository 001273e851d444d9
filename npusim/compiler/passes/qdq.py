"""Products of dequantised tensors (QDQ models) as products of int8 on the cube, then scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.compiler.writing import NodeWriter, names_read
from npusim.ir import Graph, Node
from npusim.ops import attributes
from npusim.ops.common import axis_of
from npusim.ops.conv import BYTES

PRODUCTS = ("Conv", "MatMul", "Gemm")


@dataclass(frozen=True)
class _Real:
    """A dequantised operand: its bytes, scale and zero point ('' for 0)."""

    x: str
    scale: str
    zero: str
    axis: int


@graph_pass("QDQFusionPass", Kind.GRAPH_FUSION)
def fuse_qdq(graph: Graph, ctx: CompileContext) -> Graph:
    """Conv, MatMul, Gemm of DequantizeLinear → ConvInteger, MatMulInteger, AscendDequant.

    One scale of the left operand; of the right one, or one per column or output channel.
    """
    if "int8" not in ctx.chip.core.cube.k:
        return graph
    made, read = graph.producers(), names_read(graph)
    out = graph.copy()
    out.nodes = []
    for node in graph.nodes:
        writer = NodeWriter(out, node.name, ctx)
        result = _integer(writer, graph, made, node) if node.op_type in PRODUCTS else ""
        if result:
            writer.finish({result: node.outputs[0]}, read)
        else:
            out.nodes.append(node)
    return out if len(out.nodes) != len(graph.nodes) else graph


def _real(graph: Graph, made: Mapping[str, Node], name: str) -> _Real | None:
    """The operand as DequantizeLinear made it of bytes, without blocks."""
    node = made.get(name)
    if node is None or node.op_type != "DequantizeLinear" or attributes(node)["block_size"]:
        return None
    t = graph.type_of(node.inputs[0])
    if t.dtype not in BYTES:
        return None
    zero = node.inputs[2] if len(node.inputs) > 2 else ""
    axis = axis_of(attributes(node)["axis"], len(t.shape)) if t.shape else 0
    return _Real(node.inputs[0], node.inputs[1], zero, axis)


def _suits(node: Node, ranks: tuple[int, int]) -> bool:
    """Whether the cube makes the product of bytes, from operands of these ranks."""
    attrs = attributes(node)
    if node.op_type == "Conv":
        return ranks in ((3, 3), (4, 4)) and not attrs["spread"]
    plain = node.op_type != "Gemm" or (attrs["alpha"] == attrs["beta"] == 1 and not attrs["transA"])
    return plain and min(ranks) >= 2


def _integer(w: NodeWriter, graph: Graph, made: Mapping[str, Node], node: Node) -> str:
    """The product in integers, made real; '' where it cannot be."""
    left, right = (_real(graph, made, i) for i in node.inputs[:2])
    if left is None or right is None or w.type(left.scale).size != 1:
        return ""
    attrs, rank = attributes(node), len(w.type(right.x).shape)
    conv = node.op_type == "Conv"
    turned = node.op_type == "Gemm" and bool(attrs["transB"])
    columns = 0 if conv or turned else rank - 1
    several = w.type(right.scale).size != 1
    ranks = len(w.type(left.x).shape), rank
    if not _suits(node, ranks) or (several and right.axis != columns):
        return ""
    x, weights = left.x, right.x
    if turned:
        weights = w.op("Transpose", weights, attrs={"perm": [1, 0]})
    zeros = [_zero(w, left), _zero(w, right)]
    if conv:
        kept = {k: v for k, v in attrs.items() if k not in ("spread", "offset_x")}
        sums = w.op("ConvInteger", x, weights, *zeros, attrs=kept)
    else:
        sums = w.op("MatMulInteger", x, weights, *zeros)
    scales = [w.reshape(left.scale), right.scale if several else w.reshape(right.scale)]
    if conv and several:
        scales[1] = _channels(w, right.scale, rank)
    dtype = w.type(node.outputs[0]).dtype.value
    y = w.op("AscendDequant", sums, *scales, attrs={"to": dtype})
    if len(node.inputs) > 2 and node.inputs[2]:
        bias = node.inputs[2]
        y = w.op("Add", y, _channels(w, bias, rank) if conv else bias)
    return y


def _channels(w: NodeWriter, x: str, rank: int) -> str:
    """One value per channel, as it broadcasts to an image."""
    return w.reshape(x, -1, *(1,) * (rank - 2))


def _zero(w: NodeWriter, operand: _Real) -> str:
    """The zero point, one of all where all are alike."""
    t = w.type(operand.x)
    if not operand.zero:
        return w.constant(np.zeros((), t.dtype.np))
    value = w.value(operand.zero)
    if value is not None and np.unique(value).size == 1:
        return w.constant(value.reshape(-1)[0].reshape(()))
    return operand.zero
