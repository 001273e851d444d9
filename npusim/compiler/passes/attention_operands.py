"""What stands behind the operands of an attention: transposes, scalings, repeated heads, masks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.patterns import Pattern
from npusim.ir import Constant, DType, Graph, Node, Tensor, TensorType
from npusim.ops import attributes

Shape = tuple[int, ...]
HIDES = -1e4  #: what is at most this, in place of a score or added to it, leaves no probability


@dataclass(frozen=True)
class Source:
    """A tensor behind an operand (B, N, ·, ·) of a product.

    Attributes:
        name: the tensor; view: its shape where it is to be seen with another one, else ().
        perm: axis i of the operand is axis `perm[i]` of the tensor.
        factor: what the tensor is multiplied by.
        group: how often every head of the tensor stands in the operand.
        via: the nodes between, from the operand backwards.
    """

    name: str
    perm: Shape = (0, 1, 2, 3)
    factor: float = 1.0
    group: int = 1
    view: Shape = ()
    via: tuple[Node, ...] = ()


def factor_of(find: Pattern, node: Node) -> tuple[str, float] | None:
    """(tensor, factor) of a product with, or quotient by, a constant of one element."""
    for name, other in find.sides(node):
        value = find.scalar(other)
        if value is None or find.graph.type_of(node.outputs[0]) != find.graph.type_of(name):
            continue
        if node.op_type == "Mul":
            return name, value
        if other == node.inputs[1] and value:
            return name, 1.0 / value
    return None


def sources(find: Pattern, name: str) -> list[Source]:
    """The operand itself, and what was made into it, ever earlier."""
    found = [Source(name)]
    while (earlier := _before(find, found[-1])) is not None:
        found.append(earlier)
    return found


def _before(find: Pattern, s: Source) -> Source | None:
    node = find.maker(s.name, "Transpose", "Mul", "Div", "Reshape") if not s.view else None
    if node is None:
        return None
    via = (*s.via, node)
    if node.op_type == "Transpose":
        order = tuple(int(i) for i in attributes(node)["perm"] or (3, 2, 1, 0))
        return replace(s, name=node.inputs[0], perm=tuple(order[i] for i in s.perm), via=via)
    if node.op_type == "Reshape":
        return _unrepeated(find, node, s)
    step = factor_of(find, node)
    return replace(s, name=step[0], factor=s.factor * step[1], via=via) if step else None


def _unrepeated(find: Pattern, merge: Node, s: Source) -> Source | None:
    """Behind heads that an Expand or a Tile has repeated in a new axis, which `merge` takes away.

    (…, N, …) → (…, N, 1, …) → (…, N, G, …) → (…, N·G, …), wherever the axis of heads stands.
    """
    shape = find.graph.type_of(s.name).shape
    wide, axis = find.graph.type_of(merge.inputs[0]).shape, s.perm[1]
    if len(wide) != 5 or (*wide[:axis], wide[axis] * wide[axis + 1], *wide[axis + 2 :]) != shape:
        return None
    repeat = find.maker(merge.inputs[0], "Expand", "Tile")
    one = (*wide[: axis + 1], 1, *wide[axis + 2 :])
    if repeat is None or find.graph.type_of(repeat.inputs[0]).shape != one:
        return None
    few = (*wide[: axis + 1], *wide[axis + 2 :])
    source = replace(s, name=repeat.inputs[0], view=few, group=s.group * wide[axis + 1])
    split = find.maker(repeat.inputs[0], "Unsqueeze", "Reshape")
    via = (*s.via, merge, repeat)
    if split is None:
        return replace(source, via=via)
    seen = find.graph.type_of(split.inputs[0]).shape
    return replace(source, name=split.inputs[0], view=() if seen == few else few, via=(*via, split))


# -- masks ----


@dataclass(frozen=True)
class Hidden:
    """Scores hidden by a boolean tensor: where it is true, or (`keeps`) where it is not."""

    name: str
    keeps: bool


def hidden_by(find: Pattern, where: Node, other: float | None = None) -> tuple[Hidden, str] | None:
    """(what a Where hides, the tensor that it leaves alone); None when it hides nothing.

    Args:
        other: the tensor left alone must be a constant of that one value.
    """
    condition, *sides = where.inputs
    for name, low, keeps in ((sides[0], sides[1], True), (sides[1], sides[0], False)):
        value = find.scalar(low)
        if value is None or value > HIDES:
            continue
        if other is None or find.scalar(name) == other:
            return Hidden(condition, keeps), name
    return None


class Masks:
    """Makes the mask operand of FlashAttentionScore: 1 hides, (…, S1, S2)."""

    def __init__(self, out: Graph, ctx: CompileContext) -> None:
        self.out, self.ctx = out, ctx

    def __call__(self, hidden: Hidden, scores: Shape) -> tuple[list[Node], str | None]:
        """(nodes that make the mask, its name); None when it does not broadcast to the scores."""
        shape = self.out.type_of(hidden.name).shape
        four = (1,) * (4 - len(shape)) + shape
        fits = len(four) == 4 and four[-1] == scores[-1]
        if not fits or any(a not in (1, b) for a, b in zip(four, scores, strict=True)):
            return [], None
        planes = (*four[:2], *scores[2:])
        nodes: list[Node] = []
        name = hidden.name
        if hidden.keeps:
            name = self._not(name, nodes)
        if four != planes:
            name = self._expanded(name, planes, nodes)
        return nodes, name

    def _tensor(self, base: str, shape: Shape) -> str:
        name = self.ctx.fresh(base)
        self.out.tensors[name] = Tensor(name, shape, DType.BOOL)
        return name

    def _not(self, source: str, nodes: list[Node]) -> str:
        shape = self.out.type_of(source).shape
        name = self._tensor(f"{source}_hidden", shape)
        if source in self.out.constants:
            kind = TensorType(shape, DType.BOOL)
            self.out.constants[name] = self.out.constants[source].map(np.logical_not, kind)
        else:
            nodes.append(Node(name, "Not", (source,), (name,)))
        return name

    def _expanded(self, source: str, shape: Shape, nodes: list[Node]) -> str:
        name = self._tensor(f"{source}_rows", shape)
        if source in self.out.constants:
            kind = TensorType(shape, DType.BOOL)
            self.out.constants[name] = self.out.constants[source].map(
                lambda a: np.ascontiguousarray(np.broadcast_to(a, shape)), kind
            )
            return name
        target = ints(self.out, self.ctx, f"{name}_shape", shape)
        nodes.append(Node(name, "Expand", (source, target), (name,)))
        return name


def ints(out: Graph, ctx: CompileContext, base: str, values: Shape) -> str:
    """A constant of int64 values, new in the graph."""
    name = ctx.fresh(base)
    out.constants[name] = Constant.of(np.array(values, np.int64))
    out.tensors[name] = Tensor(name, (len(values),), DType.INT64)
    return name
