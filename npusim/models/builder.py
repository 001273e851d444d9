"""`GraphBuilder`: how the built-in models write a Graph, with shapes inferred node by node."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from npusim.errors import GraphError
from npusim.ir import Constant, DType, Graph, Node, Tensor, TensorType, verify
from npusim.ops import infer_node


def generator(seed: int, name: str) -> np.random.Generator:
    """A fast random generator that depends on `seed` and `name` only."""
    key = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return np.random.Generator(np.random.SFC64(int.from_bytes(key, "little")))


def _normal(name: str, type: TensorType, seed: int, std: float, mean: float) -> np.ndarray:
    """Normal numbers that depend on `seed` and `name` only, rounded to the type."""
    values = generator(seed, name).standard_normal(type.shape, np.float32)
    values *= np.float32(std)
    values += np.float32(mean)
    return values.astype(type.dtype.np, copy=False)


class GraphBuilder:
    """Builds a Graph; tensors are handled by name.

    Args:
        name: name of the graph.
        dtype: element type of weights and float inputs.
        seed: seed of the weights.
    """

    def __init__(self, name: str, dtype: DType = DType.FLOAT32, seed: int = 0) -> None:
        self.dtype = dtype
        self.seed = seed
        self._graph = Graph(name, [], {}, [], [])
        self._known: dict[str, np.ndarray] = {}

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor made so far."""
        return self._graph.tensors[name].shape

    def input(self, name: str, shape: Sequence[int], dtype: DType | None = None) -> str:
        """A graph input."""
        self._declare(name, TensorType(tuple(shape), dtype or self.dtype))
        self._graph.inputs.append(name)
        return name

    def weight(self, name: str, shape: Sequence[int], std: float, mean: float = 0.0) -> str:
        """A normally distributed weight; its numbers are made only when asked for."""
        type, seed = TensorType(tuple(shape), self.dtype), self.seed
        constant = Constant(type, lambda: _normal(name, type, seed, std, mean))
        return self._constant(name, constant)

    def constant(self, name: str, value: ArrayLike, dtype: DType | None = None) -> str:
        """A small constant whose value shape rules may read (a Reshape's shape, a scale)."""
        array = np.asarray(value, (dtype or self.dtype).np)
        self._known[name] = array
        return self._constant(name, Constant.of(array))

    def ints(self, name: str, value: ArrayLike) -> str:
        """An int64 constant: shapes, axes, indices."""
        return self.constant(name, value, DType.INT64)

    def node(self, op_type: str, name: str, *inputs: str, out: str = "", **attrs: Any) -> str:
        """Add a node of one output, called `out` or else as the node; returns that name."""
        return self.add(op_type, name, inputs, attrs, out)

    def add(
        self,
        op_type: str,
        name: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Any],
        out: str = "",
    ) -> str:
        """As `node`, with inputs and attributes that are made elsewhere."""
        (result,) = self._place(Node(name, op_type, tuple(inputs), (out or name,), dict(attrs)))
        return result

    def split(self, name: str, x: str, parts: Sequence[int], axis: int) -> tuple[str, ...]:
        """Add a Split into parts of these sizes, called `name.0`, `name.1`, …"""
        outputs = tuple(f"{name}.{i}" for i in range(len(parts)))
        inputs = (x, self.ints(f"{name}.sizes", parts))
        return self._place(Node(name, "Split", inputs, outputs, {"axis": axis}))

    def output(self, *names: str) -> None:
        """Make tensors graph outputs."""
        self._graph.outputs.extend(names)

    def finish(self) -> Graph:
        """The verified graph."""
        return verify(self._graph)

    def _place(self, node: Node) -> tuple[str, ...]:
        types = [self._graph.tensors[i].type if i else None for i in node.inputs]
        results = infer_node(node, types, [self._known.get(i) for i in node.inputs])
        for name, type in zip(node.outputs, results, strict=True):
            self._declare(name, type)
        self._graph.nodes.append(node)
        return node.outputs

    def _constant(self, name: str, constant: Constant) -> str:
        self._declare(name, constant.type)
        self._graph.constants[name] = constant
        return name

    def _declare(self, name: str, type: TensorType) -> None:
        if name in self._graph.tensors:
            raise GraphError(f"tensor {name!r} made twice", "unique tensor names", "rename one")
        self._graph.tensors[name] = Tensor(name, type.shape, type.dtype)
