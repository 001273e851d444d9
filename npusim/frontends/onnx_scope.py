"""Where a node of a file stands: names that it sees, its opset, the attributes it refers to."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from npusim.errors import UnsupportedError

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, NodeProto

DEEPEST = 32  #: bodies within bodies (branches, loops, functions)


@dataclass(frozen=True)
class Scope:
    """One body: the model's graph, a branch, one turn of a loop, or a function.

    Attributes:
        names: a name in the file → the tensor of the Graph; outer names are seen too.
        opsets: domain → version of its operators.
        prefix: of the names of nodes and tensors made here, '' for the model's graph.
        attrs: of the node that calls a function, by name.
        read: names that something in the body reads.
        depth: bodies around this one.
    """

    names: ChainMap[str, str]
    opsets: Mapping[str, int]
    prefix: str = ""
    attrs: Mapping[str, AttributeProto] = field(default_factory=dict)
    read: frozenset[str] = frozenset()
    depth: int = 0

    def inner(self, where: str, body: GraphProto) -> Scope:
        """The scope of a subgraph, which sees the names around it.

        Raises:
            UnsupportedError: more than `DEEPEST` bodies within each other.
        """
        return replace(
            self,
            names=self.names.new_child(),
            prefix=f"{self.prefix}{where}/",
            read=names_read(body.node) | {o.name for o in body.output},
            depth=self._deeper(where),
        )

    def turn(self, n: int) -> Scope:
        """The scope of a loop's turn; `self` is that of its body."""
        return replace(self, names=self.names.new_child(), prefix=f"{self.prefix}{n}/")

    def called(
        self,
        where: str,
        names: dict[str, str],
        opsets: Mapping[str, int],
        attrs: Mapping[str, AttributeProto],
        read: frozenset[str],
    ) -> Scope:
        """The scope of a function's body, which sees its own names only.

        Raises:
            UnsupportedError: more than `DEEPEST` bodies within each other.
        """
        prefix = f"{self.prefix}{where}/"
        return Scope(ChainMap(names), opsets, prefix, attrs, read, self._deeper(where))

    def _deeper(self, where: str) -> int:
        if self.depth >= DEEPEST:
            raise UnsupportedError(
                f"branches, loops or functions {self.depth + 1} deep at node {where!r}",
                f"at most {DEEPEST} within each other",
                "flatten the model",
            )
        return self.depth + 1


def names_read(nodes: Sequence[NodeProto]) -> frozenset[str]:
    """Names that nodes read, those in their subgraphs included."""
    return frozenset(_read(nodes))


def _read(nodes: Sequence[NodeProto]) -> Iterator[str]:
    for node in nodes:
        yield from node.input
        for a in node.attribute:
            for body in (a.g, *a.graphs) if a.type in (5, 10) else ():
                yield from _read(body.node)
                yield from (o.name for o in body.output)
