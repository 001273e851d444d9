"""Attention: (Q·Kᵀ) [· scale] [+ mask] → Softmax → ·V becomes FlashAttentionScore.

Heads that a Transpose has split off are taken as they lie before it (BSND); then the Transpose of
the result goes too. A mask that is added becomes the operator's bias, whose semantics are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.cleanup import remove_dead
from npusim.compiler.passes.patterns import Pattern, Times, refusal
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Constant, DType, Graph, Node, Tensor
from npusim.ops import attributes
from npusim.ops.training_attention import STATS

NAME = "FlashAttentionFusionPass"
KERNEL = "FlashAttentionScore"
#: How the axes of a matmul operand stand in a tensor of each layout.
ROWS = {"BSND": (0, 2, 1, 3), "BNSD": (0, 1, 2, 3)}  #: of queries and values (B, N, S, D)
TURNED = {"BSND": (0, 2, 3, 1), "BNSD": (0, 1, 3, 2)}  #: of keys (B, N, D, S)


@graph_pass(NAME, Kind.GRAPH_FUSION)
def fuse_attention(graph: Graph, ctx: CompileContext) -> Graph:
    """Replace attention step by step by the fused operator where it is legal and pays."""
    return _Fusion(graph, ctx).run()


@dataclass(frozen=True)
class _Source:
    """A tensor behind an operand: axis i of the operand is its axis `perm[i]`, times `factor`."""

    name: str
    perm: tuple[int, ...]
    factor: float


@dataclass(frozen=True)
class _Match:
    """Attention in nodes.

    Attributes:
        steps: from the scores to the context, all but these two and the softmax optional.
        scale: of the scores; bias: added to them, "" without.
    """

    scores: Node
    context: Node
    steps: tuple[Node, ...]
    scale: float
    bias: str


class _Fusion:
    def __init__(self, graph: Graph, ctx: CompileContext) -> None:
        self.graph, self.ctx = graph, ctx
        self.out = graph.copy()
        self.find = Pattern(graph)
        self.times = Times(ctx)
        self.new: dict[str, list[Node]] = {}  #: name of the node that makes the result → instead

    def run(self) -> Graph:
        for node in self.graph.nodes:
            if node.op_type == "Softmax" and not node.epilogue:
                self._try(node)
        if not self.new:
            return self.graph
        self.out.nodes = [m for n in self.graph.nodes for m in self.new.get(n.name, [n])]
        return remove_dead(self.out, self.ctx)

    def _try(self, softmax: Node) -> None:
        context = self.find.reader(softmax.outputs[0], "MatMul")
        if context is None or context.inputs[0] != softmax.outputs[0]:
            return
        match, reason = self._match(softmax, context)
        first = match.scores if match is not None else softmax
        if match is not None:
            reason = self._fuse(match)
        names = (first.name, context.name)
        self.ctx.decide(NAME, names, not reason, reason or f"{KERNEL} takes it")

    # -- the pattern -------------------------------------------------------------------------

    def _match(self, softmax: Node, context: Node) -> tuple[_Match | None, str]:
        """What is found around a softmax, or what it lacks."""
        shape = self._shape(softmax.inputs[0])
        if len(shape) != 4 or int(attributes(softmax)["axis"]) % len(shape) != len(shape) - 1:
            return None, f"a softmax over axis {attributes(softmax)['axis']} of {shape}"
        add = self.find.inner(softmax.inputs[0], "Add")
        ways = [(softmax.inputs[0], "")]
        if add is not None:
            ways = list(self.find.sides(add))
        for name, bias in ways:
            scaled = self._scaled(name, shape)
            if scaled is not None:
                scores, scale, between = scaled
                steps = (scores, *between, *([add] if add is not None else []), softmax, context)
                return _Match(scores, context, steps, scale, bias), ""
        return None, "what the softmax reads is no product, scaled and biased"

    def _scaled(
        self, name: str, shape: tuple[int, ...]
    ) -> tuple[Node, float, tuple[Node, ...]] | None:
        """(product, its scale, the nodes that scale) behind a tensor of that shape."""
        scale, between = 1.0, list[Node]()
        while self._shape(name) == shape:
            product = self.find.inner(name, "MatMul")
            if product is not None:
                return (product, scale, tuple(between)) if len(product.inputs) == 2 else None
            node = self.find.inner(name, "Mul", "Div")
            step = self._factor(node) if node is not None else None
            if node is None or step is None:
                return None
            name, factor = step
            scale *= factor
            between.insert(0, node)
        return None

    def _factor(self, node: Node) -> tuple[str, float] | None:
        """(tensor, factor) of a product with, or quotient by, a constant of one element."""
        for name, other in self.find.sides(node):
            value = self.find.scalar(other)
            if value is None or self._shape(node.outputs[0]) != self._shape(name):
                continue
            if node.op_type == "Mul":
                return name, value
            if other == node.inputs[1] and value:
                return name, 1.0 / value
        return None

    def _sources(self, name: str) -> list[_Source]:
        """The operand itself, and what transposes and scalings have made it of."""
        found = [_Source(name, (0, 1, 2, 3), 1.0)]
        while True:
            last = found[-1]
            node = self.find.maker(last.name, "Transpose", "Mul", "Div")
            if node is None:
                return found
            if node.op_type == "Transpose":
                order = tuple(int(i) for i in attributes(node)["perm"] or (3, 2, 1, 0))
                perm = tuple(order[i] for i in last.perm)
                found.append(_Source(node.inputs[0], perm, last.factor))
                continue
            step = self._factor(node)
            if step is None:
                return found
            found.append(_Source(step[0], last.perm, last.factor * step[1]))

    def _operands(self, m: _Match, layout: str) -> list[_Source] | None:
        """Q, K, V as they lie in a layout, from the earliest tensors that have it."""
        wanted = (ROWS[layout], TURNED[layout], ROWS[layout])
        chosen = []
        for name, perm in zip((*m.scores.inputs, m.context.inputs[1]), wanted, strict=True):
            fits = [s for s in self._sources(name) if s.perm == perm]
            # Only queries and keys may have been scaled: that is the scores' scale.
            if name == m.context.inputs[1]:
                fits = [s for s in fits if s.factor == 1.0]
            if not fits:
                return None
            chosen.append(fits[-1])
        return chosen

    # -- the rewrite -------------------------------------------------------------------------

    def _fuse(self, m: _Match) -> str:
        """Put the operator in place of a match; '' or why not."""
        back = self.find.reader(m.context.outputs[0], "Transpose")
        if back is not None and tuple(attributes(back)["perm"] or ()) != ROWS["BSND"]:
            back = None
        layout, operands = "BSND", self._operands(m, "BSND") if back is not None else None
        if operands is None:
            layout, back, operands = "BNSD", None, self._operands(m, "BNSD")
        if operands is None:
            return "queries, keys and values lie in no common layout"
        shapes = [self._shape(s.name) for s in operands]
        batch, heads = shapes[0][0], shapes[0][layout.index("N")]
        if any(s[0] != batch for s in shapes) or shapes[1] != shapes[2]:
            return f"queries {shapes[0]}, keys {shapes[1]}, values {shapes[2]}"
        last = back if back is not None else m.context
        extra, bias = self._bias(m)
        if bias is None:
            return f"a mask of shape {self._shape(m.bias)} on scores {self._scores_shape(m)}"
        node = self._node(m, operands, layout, heads, bias, last.outputs[0])
        reason = refusal(self.out, node, self.ctx, KERNEL) or self._loss(m, operands, node, back)
        if not reason:
            self.new[last.name] = [*extra, node]
        return reason

    def _scores_shape(self, m: _Match) -> tuple[int, ...]:
        return self._shape(m.scores.outputs[0])

    def _bias(self, m: _Match) -> tuple[list[Node], str | None]:
        """(nodes that give the mask four axes, its name); None when it broadcasts otherwise."""
        if not m.bias:
            return [], ""
        shape, whole = self._shape(m.bias), self._scores_shape(m)
        four = (1,) * (4 - len(shape)) + shape
        fits = four[-1] == whole[-1] and all(a in (1, b) for a, b in zip(four, whole, strict=True))
        if not fits:
            return [], None
        if len(shape) == 4:
            return [], m.bias
        name = self.ctx.fresh(m.bias)
        dtype = self.graph.tensors[m.bias].dtype
        self.out.tensors[name] = Tensor(name, four, dtype)
        if m.bias in self.graph.constants:
            constant = self.graph.constants[m.bias]
            kind = self.out.tensors[name].type
            self.out.constants[name] = constant.map(lambda a: a.reshape(four), kind)
            return [], name
        axes = self.ctx.fresh(f"{name}_axes")
        return [self._unsqueeze(name, axes, m.bias, 4 - len(shape))], name

    def _unsqueeze(self, name: str, axes: str, source: str, count: int) -> Node:
        constant = Constant.of(np.arange(count, dtype=np.int64))
        self.out.constants[axes] = constant
        self.out.tensors[axes] = Tensor(axes, constant.type.shape, constant.type.dtype)
        return Node(name, "Unsqueeze", (source, axes), (name,))

    def _node(
        self,
        m: _Match,
        operands: list[_Source],
        layout: str,
        heads: int,
        bias: str,
        result: str,
    ) -> Node:
        batch, _, rows, _ = self._scores_shape(m)
        stats = [self.ctx.fresh(f"{m.context.name}_{s}") for s in ("max", "sum")]
        for name in stats:
            self.out.tensors[name] = Tensor(name, (batch, heads, rows, STATS), DType.FLOAT32)
        attrs = {
            "head_num": heads,
            "input_layout": layout,
            "scale_value": m.scale * operands[0].factor * operands[1].factor,
        }
        inputs = (*(s.name for s in operands), *(("", bias) if bias else ()))
        return Node(m.context.name, KERNEL, inputs, (*stats, result), attrs)

    def _loss(self, m: _Match, operands: list[_Source], node: Node, back: Node | None) -> str:
        """'' when the operator is faster than the nodes that it replaces."""
        gone = [s for s in m.steps if s.op_type not in ("Mul", "Div")]  # those fuse with the Add
        gone += [back] if back is not None else []
        for name, source in zip((*m.scores.inputs, m.context.inputs[1]), operands, strict=True):
            while name != source.name and self.find.private(name):
                gone.append(self.find.makers[name])
                name = self._before(gone[-1], source)
        together, apart = self.times.of(self.out, node), self.times.total(self.graph, gone)
        return f"it would cost {together:.0f} cycles, apart {apart:.0f}" * (together > apart)

    def _before(self, node: Node, source: _Source) -> str:
        """The operand through which a transpose or scaling continues to the source."""
        if node.op_type == "Transpose":
            return node.inputs[0]
        step = self._factor(node)
        return step[0] if step is not None else source.name

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.graph.type_of(name).shape
