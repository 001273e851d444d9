"""`Graph`: what to compute. The first waist: plain data, printable, checked by its verifier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from npusim.errors import GraphError
from npusim.ir.dtype import DType
from npusim.ir.layout import Layout, storage_bytes, storage_shape


@dataclass(frozen=True)
class TensorType:
    """Shape and element type of a tensor."""

    shape: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        """Number of elements."""
        n = 1
        for d in self.shape:
            n *= d
        return n


@dataclass(frozen=True)
class Constant:
    """A weight or constant: known type, bytes made only when asked for (`value()`).

    `make` is called at most when the numbers are needed, so timing-only runs never
    allocate weights. `fill` marks a tensor whose elements are all the same.
    """

    type: TensorType
    make: Callable[[], np.ndarray] = field(repr=False, compare=False)
    fill: float | None = None

    def value(self) -> np.ndarray:
        """The elements, as an array of exactly `type`."""
        return self.make()

    @staticmethod
    def of(array: np.ndarray) -> Constant:
        """A constant from an array."""
        return Constant(TensorType(tuple(array.shape), DType.of(array.dtype)), lambda: array)

    @staticmethod
    def full(shape: tuple[int, ...], value: float, dtype: DType) -> Constant:
        """A constant whose elements are all `value`; occupies no host memory."""
        scalar = np.asarray(value).astype(dtype.np)
        make = lambda: np.broadcast_to(scalar, shape)  # noqa: E731
        return Constant(TensorType(shape, dtype), make, float(value))

    def map(self, fn: Callable[[np.ndarray], np.ndarray], type: TensorType) -> Constant:
        """The constant `fn(self)`, still lazy; `type` is the result's type."""
        return Constant(type, lambda: fn(self.value()))


@dataclass(frozen=True)
class Tensor:
    """A value of the graph: name, logical shape, element type, device layout."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    layout: Layout = Layout.ND

    @property
    def type(self) -> TensorType:
        """Its shape and element type."""
        return TensorType(self.shape, self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes in device memory, layout padding included."""
        return storage_bytes(self.shape, self.layout, self.dtype)

    @property
    def storage_shape(self) -> tuple[int, ...]:
        """Shape of the device array."""
        return storage_shape(self.shape, self.layout, self.dtype)


@dataclass(frozen=True)
class EpilogueStep:
    """An elementwise operator fused behind a node, on data still on chip.

    `operand` is the index, in the node's inputs, of the other operand (a bias or a residual),
    None for unary operators. The running value is the first operand.
    """

    op_type: str
    operand: int | None = None
    attrs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Node:
    """One operator. `inputs` may hold '' for an absent optional input, as in ONNX."""

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    epilogue: tuple[EpilogueStep, ...] = ()

    def with_(self, **changes: Any) -> Node:
        """A copy with some fields replaced."""
        return replace(self, **changes)


@dataclass
class Graph:
    """Nodes in execution (topological) order over named tensors.

    `tensors` describes every tensor named by inputs, outputs, constants or nodes. `assumed` holds
    the elements of inputs that shapes follow from: the graph is right for these only.
    """

    name: str
    nodes: list[Node]
    tensors: dict[str, Tensor]
    inputs: list[str]
    outputs: list[str]
    constants: dict[str, Constant] = field(default_factory=dict)
    assumed: dict[str, np.ndarray] = field(default_factory=dict, compare=False)

    def type_of(self, name: str) -> TensorType:
        """Type of a tensor of the graph."""
        return self.tensors[name].type

    def producers(self) -> dict[str, Node]:
        """Tensor name → the node that makes it."""
        return {o: n for n in self.nodes for o in n.outputs if o}

    def consumers(self) -> dict[str, list[Node]]:
        """Tensor name → the nodes that read it, in order."""
        uses: dict[str, list[Node]] = {}
        for n in self.nodes:
            for i in dict.fromkeys(n.inputs):
                if i:
                    uses.setdefault(i, []).append(n)
        return uses

    def copy(self) -> Graph:
        """A copy that shares nodes, tensors and constants (all immutable)."""
        return Graph(
            self.name,
            list(self.nodes),
            dict(self.tensors),
            list(self.inputs),
            list(self.outputs),
            dict(self.constants),
            dict(self.assumed),
        )

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __repr__(self) -> str:
        return (
            f"Graph({self.name!r}, {len(self.nodes)} nodes, {len(self.constants)} constants, "
            f"inputs={self.inputs}, outputs={self.outputs})"
        )


def verify(graph: Graph) -> Graph:
    """Check the graph's own rules and return it.

    Raises:
        GraphError: a tensor used before it is made, made twice, or not described; a constant of
            another type than its tensor; a layout that the shape does not have; an epilogue
            step without its operand.
    """
    known = set(graph.inputs) | set(graph.constants)
    for name in known | set(graph.outputs):
        _described(graph, name, "the graph")
    names: set[str] = set()
    for node in graph.nodes:
        if node.name in names:
            raise GraphError(
                f"two nodes named {node.name!r}", "unique node names", "rename one of them"
            )
        names.add(node.name)
        _check_epilogue(node)
        for i in node.inputs:
            if i and i not in known:
                raise GraphError(
                    f"node {node.name!r} ({node.op_type}) reads {i!r}, which nothing made before",
                    "inputs, constants and outputs of earlier nodes",
                    "sort the nodes topologically or add the missing producer",
                )
        for o in node.outputs:
            if not o:
                continue
            if o in known:
                raise GraphError(
                    f"node {node.name!r} makes {o!r}, which exists already",
                    "one producer per tensor",
                    "rename the output",
                )
            _described(graph, o, f"node {node.name!r}")
            known.add(o)
    for o in graph.outputs:
        if o not in known:
            raise GraphError(f"graph output {o!r} is never made", "a produced tensor", "fix it")
    _check_tensors(graph)
    return graph


def _check_epilogue(node: Node) -> None:
    for step in node.epilogue:
        at = step.operand
        if at is not None and not (0 <= at < len(node.inputs) and node.inputs[at]):
            raise GraphError(
                f"epilogue {step.op_type} of node {node.name!r} reads input {at}",
                f"one of its {len(node.inputs)} inputs, present",
                "correct the pass that fused it",
            )


def _check_tensors(graph: Graph) -> None:
    for name, t in graph.tensors.items():
        if t.name != name:
            raise GraphError(
                f"tensor {name!r} calls itself {t.name!r}", "one name", "correct the pass"
            )
        if t.layout is not Layout.ND:
            storage_shape(t.shape, t.layout, t.dtype)
    for name, c in graph.constants.items():
        t = graph.tensors[name]
        if c.type.dtype is not t.dtype or c.type.size != t.type.size:
            raise GraphError(
                f"constant {name!r} is {c.type.dtype.value} {c.type.shape}",
                f"{t.dtype.value} {t.shape}, as its tensor says",
                "correct the pass that made it",
            )


def _described(graph: Graph, name: str, where: str) -> None:
    if name not in graph.tensors:
        raise GraphError(
            f"{where} names tensor {name!r}, which has no type",
            "every tensor in Graph.tensors",
            "run shape inference",
        )
