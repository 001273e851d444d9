"""Reference execution of a Graph: plain numpy on whole logical tensors, no chip, no layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from npusim.errors import ModelError
from npusim.ir import Graph
from npusim.ops import compute_node


def evaluate(
    graph: Graph, inputs: Mapping[str, np.ndarray], keep: bool = False
) -> dict[str, np.ndarray]:
    """Run `graph` and return its outputs, by name.

    Args:
        graph: any verified graph.
        inputs: an array of exactly the declared type for every graph input.
        keep: return every tensor but the constants; else tensors are freed after their last use.

    Raises:
        ModelError: inputs that do not match the graph's.
    """
    _check_inputs(graph, inputs)
    live = {name: np.asarray(inputs[name]) for name in graph.inputs}
    uses = Counter(i for n in graph.nodes for i in n.inputs)
    uses.update(graph.outputs)

    def read(name: str) -> np.ndarray | None:
        if not name:
            return None
        return live[name] if name in live else graph.constants[name].value()

    for node in graph.nodes:
        out = [graph.type_of(o) for o in node.outputs]
        results = compute_node(node, [read(i) for i in node.inputs], out)
        live.update(zip(node.outputs, results, strict=True))
        uses.subtract(node.inputs)
        if not keep:
            for name in (*node.inputs, *node.outputs):
                if not uses[name]:
                    live.pop(name, None)
    live.update((o, graph.constants[o].value()) for o in graph.outputs if o not in live)
    return live if keep else {o: live[o] for o in graph.outputs}


def _check_inputs(graph: Graph, inputs: Mapping[str, np.ndarray]) -> None:
    for name in inputs:
        if name not in graph.inputs:
            raise ModelError(
                f"the model has no input {name!r}", ", ".join(graph.inputs), "rename the array"
            )
    for name in graph.inputs:
        t = graph.type_of(name)
        if name not in inputs:
            raise ModelError(
                f"no array for input {name!r}",
                f"{t.dtype.value} of shape {t.shape}",
                "give an array for every input",
            )
        given = np.asarray(inputs[name])
        if given.shape != t.shape or given.dtype != t.dtype.np:
            raise ModelError(
                f"input {name!r} is {given.dtype} of shape {given.shape}",
                f"{t.dtype.value} of shape {t.shape}",
                "convert the array, or load the model with other shapes",
            )
