"""What the padded channels of NC1HWC0 tensors may hold.

TransData and convolutions write zeros there, and an elementwise operator makes f(0) of them, at
will or not at all. A convolution multiplies them by zero weights: that is harmless as long as
they are finite, and 0 · inf = NaN in a real channel when they are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np

from npusim.ir import DType, Graph, Node, TensorType
from npusim.ops import compute_node, get_operator

ZERO = (0.0,)
MOST = 16  #: combinations of values that are tried before the padding counts as unknown

Values = tuple[float, ...]


class Padding:
    """Tensor name → values that its padding may hold (None: any); unnamed tensors hold zeros."""

    def __init__(self) -> None:
        self._values: dict[str, Values | None] = {}

    def record(self, graph: Graph, node: Node) -> None:
        """Note what the padding of the node's result may hold."""
        found = self.result(graph, node)
        if found != ZERO:
            self._values[node.outputs[0]] = found

    def stays_finite(self, graph: Graph, node: Node) -> bool:
        """Whether the padding of the node's result is known to be finite."""
        found = self.result(graph, node)
        return found is not None and bool(np.isfinite(found).all())

    def result(self, graph: Graph, node: Node) -> Values | None:
        """Values of the result's padding, zero always among them; None: any."""
        if node.op_type == "AveragePool" and node.inputs[0] in self._values:
            return None  # any mean of them
        elementwise = get_operator(node.op_type).elementwise
        fused = {s.operand for s in node.epilogue}
        choices: list[tuple[float | None, ...]] = []
        for i, name in enumerate(node.inputs):
            if not name or not (elementwise or i == 0 or i in fused):
                choices.append((None,))  # absent, or weights
            elif node.op_type == "Conv" and i == 0:
                choices.append(ZERO)
            else:
                values = self._operand(graph, name)
                if values is None:
                    return None
                choices.append(values)
        if prod(len(c) for c in choices) > MOST:
            return None
        if not elementwise:
            node = node.with_(op_type="Identity", attrs={})
        out = graph.tensors[node.outputs[0]].dtype
        found = {_evaluate(graph, node, picks, out) for picks in product(*choices)}
        return tuple(sorted({0.0, *found}))

    def _operand(self, graph: Graph, name: str) -> Values | None:
        """Padding of an operand; a scalar is the same everywhere."""
        if graph.tensors[name].type.size > 1:
            return self._values.get(name, ZERO)
        constant = graph.constants.get(name)
        return None if constant is None else (float(constant.value().item()),)


def _evaluate(graph: Graph, node: Node, picks: Sequence[float | None], out: DType) -> float:
    """The node on one element."""
    shape = (1, 1, 1, 1)
    operands = [
        None if value is None else np.full(shape, value, graph.tensors[name].dtype.np)
        for name, value in zip(node.inputs, picks, strict=True)
    ]
    node = node.with_(outputs=node.outputs[:1])
    return float(compute_node(node, operands, [TensorType(shape, out)])[0].item())
