"""Writing new nodes into a graph: types inferred, names fresh, constants shared."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.ir import Constant, Graph, Node, Tensor, TensorType
from npusim.ops import infer_node

SMALL = 64  #: elements of a constant whose value a shape rule may ask for


class NodeWriter:
    """Writes the nodes that stand for one; values are names of tensors.

    Args:
        graph: gets the tensors and constants at once, the nodes when `finish` is called.
        base: what new names begin with.
    """

    def __init__(self, graph: Graph, base: str, ctx: CompileContext) -> None:
        self._graph, self._base, self._ctx = graph, base, ctx
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
            name = self._ctx.fresh(f"{self._base}/constant")
            constant = Constant.of(value)
            self._graph.constants[name] = constant
            self._graph.tensors[name] = Tensor(name, constant.type.shape, constant.type.dtype)
            self._constants[key] = name
        return self._constants[key]

    def value(self, x: str) -> np.ndarray | None:
        """The elements of a small constant, else None."""
        constant = self._graph.constants.get(x)
        return None if constant is None or constant.type.size > SMALL else constant.value()

    def type(self, x: str) -> TensorType:
        """Type of a tensor."""
        return self._graph.type_of(x)

    def reshape(self, x: str, *shape: int) -> str:
        """x in another shape."""
        return self.op("Reshape", x, self.constant(np.array(shape, np.int64)))

    def _emit(
        self, op_type: str, inputs: Sequence[str], attrs: dict[str, Any], parts: int
    ) -> list[str]:
        base = f"{self._base}/{op_type.lower()}"
        outputs = tuple(self._ctx.fresh(base) for _ in range(parts))
        node = Node(self._ctx.fresh(base), op_type, tuple(inputs), outputs, attrs)
        types = infer_node(node, [self.type(i) for i in inputs], [self.value(i) for i in inputs])
        for name, t in zip(outputs, types, strict=True):
            self._graph.tensors[name] = Tensor(name, t.shape, t.dtype)
        self._made.append(node)
        return list(outputs)

    def finish(self, results: Mapping[str, str], read: Collection[str]) -> None:
        """Add the nodes that lead to a result that is read; results get the names given."""
        wanted = {made for made, name in results.items() if name in read}
        kept: list[Node] = []
        for node in reversed(self._made):
            if wanted & set(node.outputs):
                wanted.update(node.inputs)
                kept.append(node)
        for node in reversed(kept):
            outputs = tuple(results.get(o, o) for o in node.outputs)
            self._graph.nodes.append(node.with_(outputs=outputs))


def names_read(graph: Graph) -> set[str]:
    """Tensors that a node or the caller reads."""
    return {*graph.outputs, *(i for n in graph.nodes for i in n.inputs)}
