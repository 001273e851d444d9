"""Recurrent networks for AI Core kernels: LSTM, GRU and RNN unrolled, a matrix product a step.

CANN runs them as one kernel (DynamicRNN, DynamicGRUV2) for the steps that a sequence has; a Graph's
length is static, so its steps can stand side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Constant, Graph, Node, Tensor, TensorType
from npusim.ops import attributes, infer_node
from npusim.ops.recurrent_cells import GATES, unrolled


@graph_pass("DynamicRNNUnrollPass", Kind.NEEDED)
def unroll_recurrent(graph: Graph, ctx: CompileContext) -> Graph:
    """LSTM, GRU, RNN → the operators of their steps, those that something reads."""
    if not any(n.op_type in GATES for n in graph.nodes):
        return graph
    out = graph.copy()
    out.nodes = []
    read = {*graph.outputs, *(i for n in graph.nodes for i in n.inputs)}
    for node in graph.nodes:
        if node.op_type not in GATES:
            out.nodes.append(node)
            continue
        body = _Body(out, node, ctx)
        results = unrolled(body, node.op_type, [i or None for i in node.inputs], attributes(node))
        body.finish(dict(zip(results, node.outputs, strict=False)), read)
    return out


class _Body:
    """Writes nodes into a graph (an `Algebra` whose values are names of tensors)."""

    def __init__(self, graph: Graph, node: Node, ctx: CompileContext) -> None:
        self._graph, self._node, self._ctx = graph, node, ctx
        self._made: list[Node] = []
        self._constants: dict[tuple[Any, ...], str] = {}

    def op(self, op_type: str, *inputs: str, attrs: Mapping[str, Any] | None = None) -> str:
        """The tensor that a new node makes."""
        return self._emit(op_type, inputs, dict(attrs or {}), 1)[0]

    def split(self, x: str, axis: int, parts: int) -> list[str]:
        """Equal parts, by one node."""
        if parts == 1:
            return [x]
        return self._emit("Split", (x,), {"axis": axis, "num_outputs": parts}, parts)

    def constant(self, value: np.ndarray) -> str:
        """A constant of the graph, each once."""
        key = (value.dtype, value.shape, value.tobytes())
        if key not in self._constants:
            name = self._ctx.fresh(f"{self._node.name}/constant")
            constant = Constant.of(value)
            self._graph.constants[name] = constant
            self._graph.tensors[name] = Tensor(name, constant.type.shape, constant.type.dtype)
            self._constants[key] = name
        return self._constants[key]

    def type(self, x: str) -> TensorType:
        """Type of a tensor."""
        return self._graph.type_of(x)

    def _emit(
        self, op_type: str, inputs: Sequence[str], attrs: dict[str, Any], parts: int
    ) -> list[str]:
        base = f"{self._node.name}/{op_type.lower()}"
        outputs = tuple(self._ctx.fresh(base) for _ in range(parts))
        node = Node(self._ctx.fresh(base), op_type, tuple(inputs), outputs, attrs)
        constants = self._graph.constants
        values = [constants[i].value() if i in constants and self.type(i).size < 64 else None
                  for i in inputs]  # fmt: skip
        types = infer_node(node, [self.type(i) for i in inputs], values)
        for name, t in zip(outputs, types, strict=True):
            self._graph.tensors[name] = Tensor(name, t.shape, t.dtype)
        self._made.append(node)
        return list(outputs)

    def finish(self, results: Mapping[str, str], read: set[str]) -> None:
        """Give the results their names, and keep the nodes that lead to one that is read."""
        wanted = {made for made, name in results.items() if name in read}
        kept: list[Node] = []
        for node in reversed(self._made):
            if wanted & set(node.outputs):
                wanted.update(node.inputs)
                kept.append(node)
        for node in reversed(kept):
            outputs = tuple(results.get(o, o) for o in node.outputs)
            self._graph.nodes.append(node.with_(outputs=outputs))
