"""Values of tensors that are known while a model is imported.

Constants are. Where the elements of inputs are given, so is all that follows from them, by the
operators' numpy semantics; it is computed when a shape rule asks for it, and only then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from npusim.errors import UnsupportedError
from npusim.ir import Graph, Node
from npusim.ops import attributes, compute_node, get_operator

#: Constants of at most this many elements are folded.
SMALL = 4096
#: Bytes of values that one import may compute.
LIMIT = 1 << 30
#: Multiplications, additions and vector operations that it may take.
MOST_FLOPS = 10**12


class Values:
    """What is known of a growing graph's tensors.

    Args:
        graph: the graph, to which the importer adds.
        given: elements of inputs, by name.

    Attributes:
        used: inputs whose elements were asked for, directly or not.
    """

    def __init__(self, graph: Graph, given: Mapping[str, np.ndarray]) -> None:
        self._graph, self._given = graph, given
        self._known: dict[str, np.ndarray] = {}
        self._makers: dict[str, Node] = {}
        self._unknown: set[str] = set()
        self._bytes = self._flops = 0
        self.used: set[str] = set()

    def made_by(self, node: Node) -> None:
        """Note the maker of tensors."""
        self._makers.update((o, node) for o in node.outputs)

    def constant(self, name: str) -> np.ndarray | None:
        """Value of a small constant, else None."""
        found = self._graph.constants.get(name)
        if found is None or found.type.size > SMALL:
            return None
        if name not in self._known:
            self._known[name] = found.value()
        return self._known[name]

    def of(self, name: str) -> np.ndarray | None:
        """Value of a tensor when it is known, else None.

        Raises:
            UnsupportedError: it would take more than `LIMIT` bytes or `MOST_FLOPS` to compute.
        """
        if name in self._unknown:
            return None
        order = self._needed(name)
        if order is None:
            self._unknown.add(name)
            return None
        for node in order:
            self._compute(node)
        return self._known[name]

    def _needed(self, name: str) -> list[Node] | None:
        """Nodes to compute for a tensor, in order; None when an input that it needs is not given.

        Notes leaves (constants and inputs) as it meets them.
        """
        order: list[Node] = []
        seen: set[str] = set()
        stack: list[tuple[str, Node | None]] = [(name, None)]
        while stack:
            at, ready = stack.pop()
            if ready is not None:
                order.append(ready)
                continue
            if at in self._known:
                continue
            node = self._makers.get(at)
            if node is None:
                if not self._leaf(at):
                    return None
            elif node.name not in seen:
                seen.add(node.name)
                stack.append((at, node))
                stack.extend((i, None) for i in node.inputs if i)
        return order

    def _leaf(self, name: str) -> bool:
        """Note the value of a constant or of an input given."""
        if name in self._graph.constants:
            self._known[name] = self._graph.constants[name].value()
            return True
        if name not in self._given:
            return False
        self._known[name] = self._given[name]
        self.used.add(name)
        return True

    def _compute(self, node: Node) -> None:
        out = [self._graph.type_of(o) for o in node.outputs]
        types = [self._graph.type_of(i) if i else None for i in node.inputs]
        self._bytes += sum(t.size * t.dtype.size for t in out)
        self._flops += get_operator(node.op_type).work(types, out, attributes(node)).flops
        if self._bytes > LIMIT or self._flops > MOST_FLOPS:
            raise UnsupportedError(
                f"shapes that follow from {self._bytes} bytes of values, computed in "
                f"{self._flops} operations, at node {node.name!r}",
                f"at most {LIMIT} bytes and {MOST_FLOPS} operations",
                "make the shapes static, or smaller",
            )
        results = compute_node(node, [self._known[i] if i else None for i in node.inputs], out)
        self._known.update(zip(node.outputs, results, strict=True))


class Asked(Sequence[np.ndarray | None]):
    """Values of a node's inputs, each found when it is asked for.

    Attributes:
        positions: of the inputs asked for.
    """

    def __init__(self, values: Values, names: Sequence[str]) -> None:
        self._values, self._names = values, names
        self.positions: set[int] = set()

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, i: int) -> np.ndarray | None:  # type: ignore[override]
        if not self._names[i]:
            return None
        self.positions.add(i)
        return self._values.of(self._names[i])
