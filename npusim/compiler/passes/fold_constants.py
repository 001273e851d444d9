"""Constant folding: nodes that read only constants become constants, still lazy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Constant, Graph, Node, TensorType
from npusim.ops import compute_node

#: A fold may make this many bytes, or as many as it reads: an Expand is no reason for much memory.
GROWTH = 64 << 20
#: Elements that one fold may read: the host computes them, while the model is loaded.
MOST_ELEMENTS = 1 << 31


@graph_pass("ConstantFoldingPass", Kind.NEEDED)
def fold_constants(graph: Graph, ctx: CompileContext) -> Graph:
    """Fold nodes all of whose inputs are constants (weights are computed when loaded)."""
    out = graph.copy()
    out.nodes = []
    folded: dict[str, Node] = {}
    for node in graph.nodes:
        if not _foldable(out, node):
            out.nodes.append(node)
            continue
        name = node.outputs[0]
        folded[name] = node
        out.constants[name] = Constant(graph.type_of(name), _evaluator(name, folded, out))
    return out


def _foldable(graph: Graph, node: Node) -> bool:
    inputs = {i for i in node.inputs if i}
    if not inputs or len(node.outputs) != 1 or not inputs <= graph.constants.keys():
        return False
    read = [graph.type_of(i) for i in inputs]
    made = _bytes(graph.type_of(node.outputs[0]))
    few = sum(t.size for t in read) <= MOST_ELEMENTS
    return few and made <= max(GROWTH, sum(map(_bytes, read)))


def _bytes(t: TensorType) -> int:
    return t.size * t.dtype.size


def _evaluator(name: str, folded: Mapping[str, Node], graph: Graph) -> Callable[[], np.ndarray]:
    """Computes a folded tensor; what it follows from is computed once, and freed when used."""

    def make() -> np.ndarray:
        order = _needed(name, folded)
        uses = Counter(i for n in order for i in n.inputs if i)
        live: dict[str, np.ndarray] = {}
        for node in order:
            for i in node.inputs:
                if i and i not in live:
                    live[i] = graph.constants[i].value()
            x = [live[i] if i else None for i in node.inputs]
            out = node.outputs[0]
            live[out] = compute_node(node, x, [graph.type_of(out)])[0]
            uses.subtract(i for i in node.inputs if i)
            for i in {i for i in node.inputs if i and not uses[i]}:
                del live[i]
        return live[name]

    return make


def _needed(name: str, folded: Mapping[str, Node]) -> list[Node]:
    """The folded nodes that a tensor follows from, in order."""
    order: dict[str, Node] = {}
    stack = [(name, False)]
    while stack:
        at, ready = stack.pop()
        if ready:
            order[at] = folded[at]
        elif at in folded and at not in order:
            stack.append((at, True))
            stack.extend((i, False) for i in folded[at].inputs if i)
    return list(order.values())
