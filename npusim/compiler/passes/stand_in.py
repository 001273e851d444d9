"""Operators for which several nodes stand in: what no kernel takes as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.select import kernel_args, select_kernel
from npusim.compiler.writing import SMALL
from npusim.ir import Constant, DType, Graph, Node, Tensor
from npusim.ops import attributes, infer_node

#: Element types of the kernels that multiply and add floats.
FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
#: Adds the nodes that stand for one; False: it stays.
Rewrite = Callable[["StandIn", Node, dict[str, Any]], bool]


class StandIn:
    """Nodes in place of one, on a copy of the graph.

    Attributes:
        graph: the copy, which the nodes are added to.
    """

    def __init__(self, graph: Graph, ctx: CompileContext, node: Node) -> None:
        self.graph, self._ctx, self._name = graph, ctx, node.name

    def tensor(self, shape: tuple[int, ...], dtype: DType) -> str:
        """A new one."""
        name = self._ctx.fresh(self._name)
        self.graph.tensors[name] = Tensor(name, shape, dtype)
        return name

    def constant(self, value: np.ndarray) -> str:
        """A new one."""
        name = self.tensor(value.shape, DType.of(value.dtype))
        self.graph.constants[name] = Constant.of(value)
        return name

    def add(self, op_type: str, inputs: tuple[str, ...], outputs: tuple[str, ...],
            hint: str = "", **attrs: Any) -> Node:  # fmt: skip
        """A node, named as the old one or after it."""
        name = self._ctx.fresh(f"{self._name}/{hint}") if hint else self._name
        self.graph.nodes.append(Node(name, op_type, inputs, outputs, attrs))
        return self.graph.nodes[-1]

    def op(self, op_type: str, *inputs: str, into: str = "", **attrs: Any) -> str:
        """A node of one result, whose type the operator's own rule gives: the tensor's name.

        `into` is a tensor that the graph has; then the node has the old one's name.
        """
        node = self.add(op_type, inputs, (into,), "" if into else op_type.lower(), **attrs)
        if into:
            return into
        constants = self.graph.constants
        values = [
            constants[i].value() if i in constants and constants[i].type.size <= SMALL else None
            for i in inputs
        ]
        types = [self.graph.type_of(i) if i else None for i in inputs]
        found = infer_node(node, types, values)[0]
        out = self.tensor(found.shape, found.dtype)
        self.graph.nodes[-1] = node.with_(outputs=(out,))
        return out

    def reshape(self, x: str, *shape: int, into: str = "") -> str:
        """`x` in another shape."""
        return self.op("Reshape", x, self.ints(*shape), into=into, allowzero=1)

    def ints(self, *values: int) -> str:
        """A constant vector of int64."""
        return self.constant(np.array(values, np.int64))

    def shape(self, x: str) -> tuple[int, ...]:
        """Of a tensor."""
        return self.graph.type_of(x).shape

    def known(self, x: str) -> np.ndarray | None:
        """The elements of a constant, else None."""
        constant = self.graph.constants.get(x)
        return None if constant is None else constant.value()

    def runs(self, node: Node) -> bool:
        """Whether an AI Core kernel takes the node."""
        return bool(select_kernel(kernel_args(self.graph, node), self._ctx.chip)[0])


def stand_in(graph: Graph, ctx: CompileContext, rewrites: Mapping[str, Rewrite]) -> Graph:
    """The graph with others in place of the operators that `rewrites` names."""
    if not any(n.op_type in rewrites for n in graph.nodes):
        return graph
    out = graph.copy()
    out.nodes = []
    for node in graph.nodes:
        rewrite = rewrites.get(node.op_type)
        if rewrite is not None and not node.epilogue:
            trial = StandIn(out.copy(), ctx, node)
            if rewrite(trial, node, attributes(node)):
                out = trial.graph
                continue
        out.nodes.append(node)
    return out
