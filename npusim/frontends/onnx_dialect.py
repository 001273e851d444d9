"""A domain beside ONNX's own: which of its operators are rewritten in standard ones, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from npusim.errors import UnsupportedError
from npusim.frontends.onnx_opset import Builder
from npusim.ir import Node

Rewrite = Callable[[Node, Builder], list[Node]]


@dataclass(frozen=True)
class Dialect:
    """The operators of a domain that npusim knows.

    Attributes:
        fix: what helps who uses another operator of the domain.
    """

    domain: str
    rewrites: Mapping[str, Rewrite]
    fix: str

    def has_rewrite(self, op_type: str) -> bool:
        """Whether npusim knows that operator of the domain."""
        return op_type in self.rewrites

    def standardise(self, node: Node, builder: Builder) -> list[Node]:
        """Standard nodes for a node of the domain.

        Raises:
            UnsupportedError: the operator has no such form here.
        """
        rewrite = self.rewrites.get(node.op_type)
        if rewrite is None:
            raise UnsupportedError(
                f"operator {self.domain}.{node.op_type} at node {node.name!r}",
                "of that domain: " + ", ".join(self.rewrites),
                self.fix,
            )
        return rewrite(node, builder)
