"""Chains of shape operators: each becomes the one operator that it amounts to, or none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.cleanup import remove_dead
from npusim.compiler.rewiring import take_out
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.compiler.select import VIEWS
from npusim.ir import Constant, DType, Graph, Node, Tensor
from npusim.ops import attributes


@graph_pass("ReshapeRemovePass", Kind.CLEAN_UP)
def remove_reshapes(graph: Graph, ctx: CompileContext) -> Graph:
    """Make shape operators read past the ones before them.

    * A view (Reshape, Flatten, Squeeze, Unsqueeze) of a view is one Reshape.
    * A Transpose of a Transpose is one Transpose.
    * A Transpose that moves nothing but axes of extent 1 is a Reshape.
    * What gives its operand back, shape and order, is gone.
    """
    return _Shapes(graph, ctx).run()


class _Shapes:
    def __init__(self, graph: Graph, ctx: CompileContext) -> None:
        self._old, self._ctx = graph, ctx
        self._out = graph.copy()
        self._out.nodes = []
        self._makers: dict[str, Node] = {}
        self._same: dict[str, str] = {}
        self._shapes: dict[tuple[int, ...], str] = {}

    def run(self) -> Graph:
        for node in self._old.nodes:
            node = self._simplified(node)
            self._out.nodes.append(node)
            self._makers.update({o: node for o in node.outputs if o})
        if self._out.nodes == self._old.nodes and not self._same:
            return self._old
        return remove_dead(take_out(self._out, self._same), self._ctx)

    def _simplified(self, node: Node) -> Node:
        """The node reading as early a tensor as it can; notes where it gives that back."""
        if node.epilogue or node.op_type not in (*VIEWS, "Transpose"):
            return node
        if node.op_type == "Transpose":
            node = self._transpose(node)
        if node.op_type in VIEWS:
            node = self._view(node)
        source, result = node.inputs[0], node.outputs[0]
        if self._shape(source) == self._shape(result) and self._keeps_order(node):
            self._same[result] = source
        return node

    def _keeps_order(self, node: Node) -> bool:
        return node.op_type in VIEWS or _in_order(self._perm(node))

    def _transpose(self, node: Node) -> Node:
        perm, source = self._perm(node), self._source(node)
        maker = self._makers.get(source)
        if maker is not None and maker.op_type == "Transpose" and not maker.epilogue:
            first = self._perm(maker)
            perm, source = [first[p] for p in perm], self._source(maker)
        shape = self._shape(source)
        if _in_order([p for p in perm if shape[p] != 1]):
            return self._reshape(node, source)
        changed = perm != self._perm(node) or source != node.inputs[0]
        return node.with_(inputs=(source,), attrs={"perm": perm}) if changed else node

    def _view(self, node: Node) -> Node:
        source = self._source(node)
        maker = self._makers.get(source)
        if maker is not None and maker.op_type in VIEWS and not maker.epilogue:
            return self._reshape(node, self._source(maker))
        return node if source == node.inputs[0] else self._reshape(node, source)

    def _reshape(self, node: Node, source: str) -> Node:
        """Reshape of `source` to the shape of the node's result."""
        shape = self._shape(node.outputs[0])
        if shape not in self._shapes:
            name = self._shapes[shape] = self._ctx.fresh(f"{node.name}_shape")
            self._out.constants[name] = Constant.of(np.asarray(shape, np.int64))
            self._out.tensors[name] = Tensor(name, (len(shape),), DType.INT64)
        attrs = {"allowzero": 1} if 0 in shape else {}
        return node.with_(op_type="Reshape", inputs=(source, self._shapes[shape]), attrs=attrs)

    def _source(self, node: Node) -> str:
        """What the node reads, past what is going to be gone."""
        return self._same.get(node.inputs[0], node.inputs[0])

    def _perm(self, node: Node) -> list[int]:
        rank = len(self._shape(node.outputs[0]))
        perm = attributes(node).get("perm")
        if perm is None:
            return list(range(rank))[::-1]
        return [int(p) % rank for p in perm]

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._out.tensors[name].shape


def _in_order(axes: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(axes))
