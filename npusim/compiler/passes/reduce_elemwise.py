"""Reductions and softmax with what is elementwise before and behind them, as one kernel in UB.

Starts from every reduction over the last axes and every softmax, the last first, and takes in one
neighbour after another: the readers of the result, then whoever makes what only nodes inside read.
A neighbour comes in where the kernel holds the rows in UB, and is not slower for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from npusim.compiler.costs import Costs
from npusim.compiler.options import CompileContext
from npusim.compiler.passes.patterns import Pattern
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.compiler.select import kernel_args, select_kernel
from npusim.ir import Graph, Node
from npusim.kernels.expressions import LOWER
from npusim.kernels.reduce import RECIPES
from npusim.kernels.reduce_elemwise import is_row_op
from npusim.ops import attributes, get_operator
from npusim.ops.cann_fused import FusedStep

NAME = "TbeReduceElemwiseFusionPass"
KERNEL = "ReduceElemwise"
MAX_STEPS = 16  #: of a kernel; more spill more UB than they save
CHANNELS = ("BatchNormalization",)  #: whose operands broadcast otherwise than by numpy's rule


@graph_pass(NAME, Kind.UB_FUSION)
def fuse_reductions(graph: Graph, ctx: CompileContext) -> Graph:
    """Fuse rows of elementwise operators and reductions."""
    return _Fusion(graph, ctx).run()


class _Fusion:
    def __init__(self, graph: Graph, ctx: CompileContext) -> None:
        self.graph, self.ctx, self.costs = graph, ctx, Costs(ctx)
        self.find = Pattern(graph)
        self.position = {n.name: i for i, n in enumerate(graph.nodes)}
        self.taken: set[str] = set()
        self.new: dict[str, Node] = {}  #: name of the node that makes the result → instead
        self.decided: dict[tuple[str, ...], str] = {}

    def run(self) -> Graph:
        for node in reversed(self.graph.nodes):
            if is_row_op(node.op_type) and node.name not in self.taken and self._fusible(node):
                self._grow(node)
        for names, reason in self.decided.items():
            self.ctx.decide(NAME, names, not reason, reason or f"{KERNEL} takes it")
        if not self.new:
            return self.graph
        out = self.graph.copy()
        gone = self.taken - set(self.new)
        out.nodes = [self.new.get(n.name, n) for n in self.graph.nodes if n.name not in gone]
        return out

    def _grow(self, seed: Node) -> None:
        """Take in neighbours until none comes in any more."""
        members: list[Node] | None = [seed]
        while members is not None:
            best, members = members, self._larger(seed, members)
        if len(best) > 1:
            self.taken |= {n.name for n in best}
            self.new[best[-1].name] = self._fused(best)

    def _larger(self, seed: Node, members: list[Node]) -> list[Node] | None:
        """With one more that pays, or two that do together; None where none does."""
        legal = []
        for node in self._neighbours(members):
            reason = self._illegal(grown := self._with(members, node))
            self.decided[seed.name, node.name] = reason or (loss := self._loss(members, grown))
            if not reason:
                legal.append(grown)
                if not loss:
                    return grown
        for grown in legal:
            for node in self._neighbours(grown):
                more = self._with(grown, node)
                if not self._illegal(more) and not self._loss(members, more):
                    for n in more:
                        if n not in members:
                            self.decided[seed.name, n.name] = ""
                    return more
        return None

    def _with(self, members: list[Node], node: Node) -> list[Node]:
        return sorted([*members, node], key=lambda n: self.position[n.name])

    def _neighbours(self, members: list[Node]) -> Iterator[Node]:
        """Readers of the result, then makers of the operands."""
        near = [*self.find.uses.get(members[-1].outputs[0], ())]
        near += [n for m in members for i in m.inputs if (n := self.find.makers.get(i))]
        inside = {m.name for m in members}
        for node in dict.fromkeys(n.name for n in near):
            if node not in inside | self.taken and self._fusible(self._node(node)):
                yield self._node(node)

    def _node(self, name: str) -> Node:
        return self.graph.nodes[self.position[name]]

    def _fusible(self, node: Node) -> bool:
        """Elementwise or along rows, not yet fused, of one result."""
        if node.epilogue or len(node.outputs) != 1 or node.op_type in CHANNELS or "" in node.inputs:
            return False
        if is_row_op(node.op_type):
            axes = node.inputs[1:] if node.op_type in RECIPES else ()
            return all(i in self.graph.constants for i in axes)
        return get_operator(node.op_type, node.name).elementwise and node.op_type in LOWER

    def _illegal(self, grown: list[Node]) -> str:
        """Why nodes cannot be one kernel; '' when they can."""
        inside = {n.name for n in grown}
        for name in (n.outputs[0] for n in grown[:-1]):
            outside = sum(n.name not in inside for n in self.find.uses.get(name, ()))
            others = [f"{outside} nodes outside"] * bool(outside)
            others += ["the caller"] * (name in self.graph.outputs)
            if others:
                return f"{name} is wanted by {' and '.join(others)}"
        if len(grown) > MAX_STEPS:
            return f"it would have more than {MAX_STEPS} steps"
        found, why = select_kernel(kernel_args(self.graph, self._fused(grown)), self.ctx.chip)
        return "" if found else why

    def _loss(self, members: list[Node], grown: list[Node]) -> str:
        """'' when the larger kernel is not slower than the smaller one and the other nodes."""
        new = [n for n in grown if n not in members]
        together = self._time(grown)
        apart = self._time(members) + sum(self.costs.node(self.graph, n) for n in new)
        return f"it would cost {together:.0f} cycles, apart {apart:.0f}" * (together > apart)

    def _time(self, members: list[Node]) -> float:
        node = members[0] if len(members) == 1 else self._fused(members)
        return self.costs.node(self.graph, node)

    def _fused(self, members: list[Node]) -> Node:
        """One node for several, in order; it makes the last one's result."""
        made = {n.outputs[0] for n in members}
        reads = [i for n in members for i in self._operands(n) if i not in made]
        inputs = tuple(dict.fromkeys(reads))
        at = {name: i for i, name in enumerate((*inputs, *(n.outputs[0] for n in members)))}
        steps = []
        for n in members:
            attrs = tuple(sorted((k, v) for k, v in attributes(n).items() if v is not None))
            operands = tuple(at[i] for i in self._operands(n))
            steps.append(FusedStep(n.op_type, operands, attrs, self._axes(n)))
        last = members[-1]
        return Node(last.name, KERNEL, inputs, last.outputs, {"steps": tuple(steps)})

    def _operands(self, node: Node) -> tuple[str, ...]:
        return node.inputs[:1] if node.op_type in RECIPES else node.inputs

    def _axes(self, node: Node) -> tuple[int, ...] | None:
        if node.op_type not in RECIPES or len(node.inputs) < 2:
            return None
        return tuple(int(a) for a in self.graph.constants[node.inputs[1]].value().reshape(-1))
