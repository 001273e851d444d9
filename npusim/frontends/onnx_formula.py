"""Formulas as nodes, for operators that stand for several others."""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.frontends.onnx_opset import Builder
from npusim.ir import DType, Node


class Formula:
    """Nodes that compute a formula, in the element type of `like`.

    Args:
        node: whose place they take; its name is in front of theirs.
        like: a tensor.
    """

    def __init__(self, node: Node, builder: Builder, like: str) -> None:
        self._name, self._builder = node.name, builder
        self._dtype = builder.type(like).dtype
        self.nodes: list[Node] = []

    def number(self, value: float) -> str:
        """A constant scalar."""
        array = np.array(value, np.float64).astype(self._dtype.np)
        return self._builder.constant(f"{self._name}/number", array)

    def integers(self, values: Any) -> str:
        """A constant of int64."""
        return self._builder.constant(f"{self._name}/integers", np.array(values, np.int64))

    def __call__(self, op_type: str, *inputs: str | float, into: str = "", **attrs: Any) -> str:
        """The result of an operator on tensors and numbers, under the name `into` if given."""
        name = self._builder.fresh(f"{self._name}/{op_type}")
        names = tuple(i if isinstance(i, str) else self.number(i) for i in inputs)
        self.nodes.append(Node(name, op_type, names, (into or name,), attrs))
        return into or name

    def array(self, value: np.ndarray) -> str:
        """A constant."""
        return self._builder.constant(f"{self._name}/constant", value)

    def cast(self, x: str, dtype: DType) -> str:
        """`x` in that type."""
        return self("Cast", x, to=dtype.value)
