"""Attention: (Q·Kᵀ) [· scale] [+ mask] → Softmax → ·V becomes FlashAttentionScore.

Heads that a Transpose has split off are taken as they lie before it (BSND); then the Transpose of
the result goes too. Keys and values whose heads are repeated for groups of queries are taken as
they were before (grouped-query attention). A mask that is added becomes the operator's bias, whose
semantics are the same; where scores are replaced by, or get, a constant of -10000 or less, a
boolean tensor says where: it becomes the operator's mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.attention_operands import (
    Hidden,
    Masks,
    Source,
    factor_of,
    hidden_by,
    ints,
    sources,
)
from npusim.compiler.passes.cleanup import remove_dead
from npusim.compiler.passes.patterns import Pattern, Times, refusal
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import DType, Graph, Node, Tensor
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
class _Match:
    """Attention in nodes.

    Attributes:
        steps: from the scores to the context, all but these two and the softmax optional.
        scale: of the scores; bias: added to them, "" without; hidden: which are, if any.
    """

    scores: Node
    context: Node
    steps: tuple[Node, ...]
    scale: float
    bias: str = ""
    hidden: Hidden | None = None


@dataclass(frozen=True)
class _Masked:
    """How scores are masked: the nodes that do it, what is added, what is hidden."""

    steps: tuple[Node, ...] = ()
    bias: str = ""
    hidden: Hidden | None = None


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
        for name, found in self._masked(softmax.inputs[0]):
            scaled = self._scaled(name, shape)
            if scaled is not None:
                scores, scale, between = scaled
                steps = (scores, *between, *found.steps, softmax, context)
                return _Match(scores, context, steps, scale, found.bias, found.hidden), ""
        return None, "what the softmax reads is no product, scaled and masked"

    def _masked(self, name: str) -> Iterator[tuple[str, _Masked]]:
        """(scores before they are masked, how), in every way that the nodes can be read."""
        add = self.find.inner(name, "Add")
        where = self.find.inner(name, "Where")
        if add is not None:
            for scores, bias in self.find.sides(add):
                made = self.find.maker(bias, "Where")
                found = hidden_by(self.find, made, 0.0) if made is not None else None
                if made is None or found is None:
                    yield scores, _Masked((add,), bias)
                    continue
                steps = (made, add) if self.find.private(bias) else (add,)
                yield scores, _Masked(steps, "", found[0])
        elif where is not None:
            found = hidden_by(self.find, where)
            if found is not None:
                yield found[1], _Masked((where,), "", found[0])
        else:
            yield name, _Masked()

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
            step = factor_of(self.find, node) if node is not None else None
            if node is None or step is None:
                return None
            name, factor = step
            scale *= factor
            between.insert(0, node)
        return None

    def _operands(self, m: _Match, layout: str) -> list[Source] | None:
        """Q, K, V as they lie in a layout, from the earliest tensors that have it."""
        wanted = (ROWS[layout], TURNED[layout], ROWS[layout])
        chosen = []
        for name, perm in zip((*m.scores.inputs, m.context.inputs[1]), wanted, strict=True):
            fits = [s for s in sources(self.find, name) if s.perm == perm]
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
        shapes = [s.view or self._shape(s.name) for s in operands]
        batch, heads = shapes[0][0], shapes[0][layout.index("N")]
        groups = [s.group * n[layout.index("N")] for s, n in zip(operands, shapes, strict=True)]
        alike = shapes[1] == shapes[2] and set(groups) == {heads}
        if any(s[0] != batch for s in shapes) or not alike:
            return f"queries {shapes[0]}, keys {shapes[1]}, values {shapes[2]}"
        last = back if back is not None else m.context
        extra, (mask, bias) = self._mask(m)
        if mask is None or bias is None:
            shape = self._shape(m.hidden.name if m.hidden else m.bias)
            return f"a mask of shape {shape} on scores {self._scores_shape(m)}"
        names = [self._seen(s, extra) for s in operands]
        scale = m.scale * operands[0].factor * operands[1].factor
        attrs = {"head_num": heads, "input_layout": layout, "scale_value": scale}
        node = self._node(m, (*names, mask, bias), attrs, last.outputs[0])
        reason = refusal(self.out, node, self.ctx, KERNEL)
        reason = reason or self._loss(m, operands, [*extra, node], back)
        if not reason:
            self.new[last.name] = [*extra, node]
        return reason

    def _seen(self, source: Source, extra: list[Node]) -> str:
        """The source, or a view of it in the shape that it is to have."""
        if not source.view:
            return source.name
        name = self.ctx.fresh(source.name)
        self.out.tensors[name] = Tensor(name, source.view, self.graph.tensors[source.name].dtype)
        target = ints(self.out, self.ctx, f"{name}_shape", source.view)
        extra.append(Node(name, "Reshape", (source.name, target), (name,)))
        return name

    def _mask(self, m: _Match) -> tuple[list[Node], tuple[str | None, str | None]]:
        """(nodes, (mask, bias)): '' for the ones there are not, None for what does not fit."""
        if m.hidden is None:
            nodes, bias = self._bias(m)
            return nodes, ("", bias)
        nodes, mask = Masks(self.out, self.ctx)(m.hidden, self._scores_shape(m))
        return nodes, (mask, "")

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
        axes = ints(self.out, self.ctx, f"{name}_axes", tuple(range(4 - len(shape))))
        return [Node(name, "Unsqueeze", (m.bias, axes), (name,))], name

    def _node(self, m: _Match, inputs: tuple[str, ...], attrs: dict[str, Any], result: str) -> Node:
        batch, _, rows, _ = self._scores_shape(m)
        stats = [self.ctx.fresh(f"{m.context.name}_{s}") for s in ("max", "sum")]
        shape = (batch, attrs["head_num"], rows, STATS)
        for name in stats:
            self.out.tensors[name] = Tensor(name, shape, DType.FLOAT32)
        while not inputs[-1]:
            inputs = inputs[:-1]
        return Node(m.context.name, KERNEL, inputs, (*stats, result), attrs)

    def _loss(self, m: _Match, operands: list[Source], new: list[Node], back: Node | None) -> str:
        """'' when the new nodes are faster than the ones that they replace."""
        gone = [s for s in m.steps if s.op_type not in ("Mul", "Div")]  # those fuse with the Add
        gone += [back] if back is not None else []
        for source in operands:
            gone += takewhile(lambda n: self.find.private(n.outputs[0]), source.via)
        together, apart = self.times.total(self.out, new), self.times.total(self.graph, gone)
        return f"it would cost {together:.0f} cycles, apart {apart:.0f}" * (together > apart)

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.graph.type_of(name).shape
