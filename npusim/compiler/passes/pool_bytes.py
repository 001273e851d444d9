"""Maxima of bytes in fp16, which holds them all: the vector unit compares no bytes."""

from __future__ import annotations

from typing import Any

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.stand_in import StandIn, stand_in
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import DType, Graph, Node
from npusim.ops.conv import BYTES


@graph_pass("PoolBytesPass", Kind.NEEDED)
def pool_bytes(graph: Graph, ctx: CompileContext) -> Graph:
    """MaxPool and GlobalMaxPool of int8 or uint8 → Cast, the pool in fp16, Cast."""
    return stand_in(graph, ctx, dict.fromkeys(("MaxPool", "GlobalMaxPool"), _in_half))


def _in_half(s: StandIn, node: Node, attrs: dict[str, Any]) -> bool:
    x, y = (s.graph.type_of(t) for t in (node.inputs[0], node.outputs[0]))
    if x.dtype not in BYTES or len(node.outputs) > 1 or not x.size:
        return False
    before, after = (s.tensor(t.shape, DType.FLOAT16) for t in (x, y))
    s.add("Cast", node.inputs, (before,), "half", to=DType.FLOAT16.value)
    s.add(node.op_type, (before,), (after,), "pool", **node.attrs)
    s.add("Cast", (after,), node.outputs, to=x.dtype.value)
    return True
