"""TransData hoisted and sunk over elementwise nodes, where that is cheaper.

`assign_layouts` goes forward and keeps an elementwise node in the layout of its operands. It may
be better off in the other one: its operand is read in that one too, or its result is read in
nothing else, or a Cast in it makes the TransData move wider elements. A matrix product before it
writes FRACTAL_NZ itself, so that a chain of products needs no TransData.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeGuard

from npusim.compiler.costs import Costs
from npusim.compiler.options import CompileContext
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.compiler.select import moves_nothing
from npusim.ir import Graph, Layout, Node, Tensor
from npusim.ir.layout import BLOCK, c0_of
from npusim.ops import get_operator

ROUNDS = 3  #: over the whole graph: chains are fused into one node, so few are needed


@graph_pass("TransDataMotionPass", Kind.GRAPH_FUSION)
def move_transdata(graph: Graph, ctx: CompileContext) -> Graph:
    """Turn elementwise nodes to the other layout where the TransData around them cost less then."""
    costs = Costs(ctx)
    for _ in range(ROUNDS):
        turned = _turned(graph, ctx, costs)
        if turned is None:
            break
        graph = turned
    return graph


def _turned(graph: Graph, ctx: CompileContext, costs: Costs) -> Graph | None:
    """The graph with every node turned that gains by it; None where none does."""
    changed = False
    at = 0
    uses, makers = graph.consumers(), graph.producers()
    while at < len(graph.nodes):
        node = graph.nodes[at]
        at += 1
        for to in _targets(graph, node, uses, makers):
            turn = Turn(graph, ctx, node, to, uses, makers)
            if not turn.legal():
                continue
            found = turn.run()
            before, after = turn.cost(graph, costs), turn.cost(found, costs)
            taken = after < before
            reason = f"in {to.value} {after:.0f} cycles with the TransData, else {before:.0f}"
            ctx.decide("TransDataMotionPass", (node.name, turn.around()), taken, reason)
            if taken:
                graph, changed = found, True
                uses, makers = graph.consumers(), graph.producers()
                at = next(i for i, n in enumerate(graph.nodes) if n.name == node.name) + 1
                break
    return graph if changed else None


def _targets(
    graph: Graph, node: Node, uses: dict[str, list[Node]], makers: dict[str, Node]
) -> list[Layout]:
    """Layouts that an elementwise node of one result meets beyond the TransData next to it."""
    if len(node.outputs) != 1 or node.op_type == "TransData":
        return []
    if not get_operator(node.op_type, node.name).elementwise:
        return []
    sources = [makers[i].inputs[0] for i in node.inputs if _moved_by(graph, makers.get(i))]
    readers = uses.get(node.outputs[0], [])
    results = [n.outputs[0] for n in readers if _moved_by(graph, n)]
    found = dict.fromkeys(graph.tensors[i].layout for i in (*results, *sources))
    return [layout for layout in found if layout is not graph.tensors[node.outputs[0]].layout]


def _moved_by(graph: Graph, node: Node | None) -> bool:
    return node is not None and node.op_type == "TransData" and not moves_nothing(graph, node)


class Turn:
    """One node, turned to another layout."""

    def __init__(
        self,
        graph: Graph,
        ctx: CompileContext,
        node: Node,
        to: Layout,
        uses: dict[str, list[Node]],
        makers: dict[str, Node],
    ) -> None:
        self._graph, self._ctx, self.node, self.to = graph, ctx, node, to
        self._uses, self._makers = uses, makers
        self.result = graph.tensors[node.outputs[0]]
        self._made: dict[str, str] = {}
        self._hoisted: set[str] = set()  # TransData that come before the node now
        self._products: set[str] = set()  # matrix products that write the layout themselves

    def legal(self) -> bool:
        """Whether every operand can be had in the layout, without padding to take care of."""
        graph, shape = self._graph, self.result.shape
        tensors = [graph.tensors[i] for i in self.node.inputs if i]
        if any(t.layout is not self.result.layout and t.type.size > 1 for t in tensors):
            return False
        there = {n.outputs[0] for n in self._uses.get(self.result.name, []) if self._leads_there(n)}
        if len(there & set(graph.outputs)) > 1:
            return False
        if self.to is Layout.ND:
            return True
        c0 = c0_of(self.result.dtype)
        if self.to is Layout.FRACTAL_NZ:
            whole = len(shape) >= 2 and not shape[-1] % c0 and not shape[-2] % BLOCK
            return whole and all(
                t.type.size == 1 or (t.shape == shape and c0_of(t.dtype) == c0) for t in tensors
            )
        if (
            self.to is not Layout.NC1HWC0
            or len(shape) != 4
            or shape[1] % c0
            or any(c0_of(t.dtype) != c0 for t in tensors)
        ):
            return False
        return all(self._joins(t, shape) for t in tensors)

    def _joins(self, t: Tensor, shape: tuple[int, ...]) -> bool:
        if t.shape == shape or t.type.size == 1:
            return True
        per_channel = t.shape in ((1, shape[1], 1, 1), (shape[1], 1, 1))
        return per_channel and t.name in self._graph.constants

    def run(self) -> Graph:
        """The graph with the node in the other layout and the TransData that this needs."""
        out = self._graph.copy()
        before: list[Node] = []
        inputs = tuple(self._operand(out, i, before) for i in self.node.inputs)
        name, readers = self.result.name, self._uses.get(self.result.name, [])
        gone = {n.outputs[0] for n in readers if self._leads_there(n)}
        inner = next((o for o in out.outputs if o in gone), "") or self._ctx.fresh(name)
        out.tensors[inner] = replace(self.result, name=inner, layout=self.to)
        after: list[Node] = []
        if any(not self._leads_there(n) for n in readers) or name in out.outputs:
            after.append(self._transdata(inner, name))
        swap = dict.fromkeys(gone, inner)
        out.nodes = list(self._nodes(inputs, inner, before, after, gone, swap))
        _drop_unread(out)
        return out

    def _nodes(
        self,
        inputs: tuple[str, ...],
        inner: str,
        before: list[Node],
        after: list[Node],
        gone: set[str],
        swap: dict[str, str],
    ) -> Iterator[Node]:
        for n in self._graph.nodes:
            if n is self.node:
                yield from before
                yield n.with_(inputs=inputs, outputs=(inner,))
                yield from after
            elif n.name not in self._hoisted and not set(n.outputs) & gone:
                names = tuple(swap.get(i, i) for i in n.inputs)
                yield n if names == n.inputs else n.with_(inputs=names)

    def _leads_there(self, reader: Node) -> bool:
        """A TransData of the result to the layout that the node turns to."""
        if reader.op_type != "TransData" or len(reader.outputs) != 1:
            return False
        t = self._graph.tensors[reader.outputs[0]]
        return t.layout is self.to and t.type == self.result.type

    def _operand(self, out: Graph, name: str, before: list[Node]) -> str:
        """An operand in the other layout: from where it was converted, or converted now."""
        if not name or out.tensors[name].type.size == 1:
            return name
        t, maker = out.tensors[name], self._makers.get(name)
        if maker is not None and maker.op_type == "TransData":
            source = out.tensors[maker.inputs[0]]
            if source.layout is self.to and source.type == t.type:
                return source.name
        if self._writes_fractals(maker):
            self._products.add(maker.name)
            out.tensors[name] = replace(t, layout=self.to)
            return name
        if name not in self._made:
            self._made[name] = self._converted(out, t, before)
        return self._made[name]

    def _writes_fractals(self, maker: Node | None) -> TypeGuard[Node]:
        """A matrix product that nobody else reads: whether its kernel can is in the cost."""
        if maker is None or maker.op_type not in ("MatMul", "Gemm"):
            return False
        (result,) = maker.outputs
        alone = self._uses[result] == [self.node] and result not in self._graph.outputs
        return alone and self.to is Layout.FRACTAL_NZ

    def _converted(self, out: Graph, t: Tensor, before: list[Node]) -> str:
        existing, late = self._existing(t.name)
        if existing is not None:
            if late:
                self._hoisted.add(existing.name)
                before.append(existing)
            return existing.outputs[0]
        new, shape = self._ctx.fresh(t.name), t.shape
        if t.name in out.constants:
            if self.to is Layout.NC1HWC0 and len(shape) == 3:
                shape = (1, *shape)
            constant = out.constants[t.name]
            kind = replace(constant.type, shape=shape)
            out.constants[new] = constant.map(lambda a: a.reshape(shape), kind)
        else:
            before.append(self._transdata(t.name, new))
        out.tensors[new] = replace(t, name=new, shape=shape, layout=self.to)
        return new

    def _existing(self, name: str) -> tuple[Node | None, bool]:
        """A TransData of a tensor to the other layout, and whether it comes after the node."""
        late = False
        for n in self._graph.nodes:
            late |= n is self.node
            if n.op_type == "TransData" and n.inputs[0] == name:
                t = self._graph.tensors[n.outputs[0]]
                if t.layout is self.to and t.type == self._graph.tensors[name].type:
                    return n, late
        return None, False

    def _transdata(self, source: str, result: str) -> Node:
        return Node(self._ctx.fresh(f"{source}_trans"), "TransData", (source,), (result,))

    def around(self) -> str:
        """The first TransData next to the node."""
        near = [self._makers[i] for i in self.node.inputs if i in self._makers]
        near += self._uses.get(self.result.name, [])
        return next(n.name for n in near if n.op_type == "TransData")

    def cost(self, graph: Graph, costs: Costs) -> float:
        """Cycles of the node, the products that it changes, and all TransData of a graph."""
        own = {self.node.name, *self._products}
        counted = (n for n in graph.nodes if n.op_type == "TransData" or n.name in own)
        return sum(costs.node(graph, n) for n in counted)


def _drop_unread(graph: Graph) -> None:
    """Drop TransData that nobody reads, from the last to the first."""
    read = {i for n in graph.nodes if n.op_type != "TransData" for i in n.inputs}
    read |= set(graph.outputs)
    kept = []
    for n in reversed(graph.nodes):
        if n.op_type == "TransData" and n.outputs[0] not in read:
            graph.tensors.pop(n.outputs[0], None)
            continue
        read |= set(n.inputs)
        kept.append(n)
    graph.nodes = kept[::-1]
