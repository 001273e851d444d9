"""Taking nodes out of a graph: whoever reads their results reads something equal instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from npusim.ir import Graph, Node


def take_out(graph: Graph, same: Mapping[str, str]) -> Graph:
    """Remove the nodes that make the keys of `same`; readers get the value, an equal tensor.

    A graph output keeps its name: the node that makes the equal tensor makes the output then.
    Where that cannot be (a graph input, a constant, another output) the node stays.

    Args:
        same: result of a node → a tensor of its type and layout, made before. All results of a
            node, or none.
    """
    return _TakeOut(graph, same).run()


class _TakeOut:
    def __init__(self, graph: Graph, same: Mapping[str, str]) -> None:
        self._graph, self._same = graph, same
        self._alias: dict[str, str] = {}  # what is gone → what it was made of, itself not gone
        self._renamed: dict[str, str] = {}  # tensor → the graph output that it has become
        makers = graph.producers()
        self._fixed = {*graph.inputs, *graph.constants, *graph.outputs}
        self._single = {o for o, n in makers.items() if len(n.outputs) == 1}

    def run(self) -> Graph:
        kept = [n for n in self._graph.nodes if not self._goes(n)]
        out = self._graph.copy()
        out.nodes = [self._rewired(n) for n in kept]
        for old, new in self._renamed.items():
            out.tensors[new] = replace(out.tensors.pop(old), name=new)
        for name in self._alias:
            if name not in self._graph.outputs:
                out.tensors.pop(name, None)
        return out

    def _goes(self, node: Node) -> bool:
        results = [o for o in node.outputs if o]
        if not results or not all(o in self._same for o in results):
            return False
        outputs = [o for o in results if o in self._graph.outputs]
        sources = {o: self._alias.get(self._same[o], self._same[o]) for o in results}
        roots = [sources[o] for o in outputs]
        if len(set(roots)) < len(roots) or not all(self._may_become(r) for r in roots):
            return False
        self._renamed.update(zip(roots, outputs, strict=True))
        self._alias.update(sources)
        return True

    def _may_become(self, root: str) -> bool:
        return root in self._single and root not in self._fixed and root not in self._renamed

    def _name(self, name: str) -> str:
        name = self._alias.get(name, name)
        return self._renamed.get(name, name)

    def _rewired(self, node: Node) -> Node:
        inputs = tuple(self._name(i) for i in node.inputs)
        outputs = tuple(self._renamed.get(o, o) for o in node.outputs)
        if inputs == node.inputs and outputs == node.outputs:
            return node
        return node.with_(inputs=inputs, outputs=outputs)
