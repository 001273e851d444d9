"""Gelu that an exporter has written in steps becomes one node.

    0.5 · x · (1 + erf(x / √2))
    0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))

with the three factors of the product in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import pi, sqrt

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.decomposed import Found, collapse
from npusim.compiler.passes.patterns import Pattern
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Graph, Node

NAME = "GeluFusionPass"
Steps = tuple[Node, ...]


@graph_pass(NAME, Kind.GRAPH_FUSION)
def fuse_gelu(graph: Graph, ctx: CompileContext) -> Graph:
    """Div, Erf, Add, Mul, Mul (or the tanh form) → Gelu."""
    return collapse(NAME, graph, ctx, _matches(graph))


def _matches(graph: Graph) -> Iterator[Found]:
    find = Pattern(graph)
    for root in graph.nodes:
        if root.op_type != "Mul" or root.epilogue:
            continue
        for factors, steps in _products(find, root):
            found = _gelu(find, factors)
            if found is not None:
                x, approximate, inner = found
                attrs = {"approximate": approximate}
                node = Node(root.name, "Gelu", (x,), root.outputs, attrs)
                yield Found(root, (*inner, *steps), node)
                break


def _products(find: Pattern, root: Node) -> Iterator[tuple[tuple[str, str, str], Steps]]:
    """A product as three factors, with the two nodes that multiply them."""
    for left, right in find.sides(root):
        inner = find.inner(left, "Mul")
        if inner is not None and len(inner.inputs) == 2:
            yield (inner.inputs[0], inner.inputs[1], right), (inner, root)


def _gelu(find: Pattern, factors: tuple[str, str, str]) -> tuple[str, str, Steps] | None:
    """(x, form, nodes of the last factor) where the factors are ½, x and 1 + f(x)."""
    halves = [f for f in factors if find.is_scalar(f, 0.5)]
    if len(halves) != 1:
        return None
    rest = [f for f in factors if f != halves[0]]
    for x, name in (rest, rest[::-1]):
        add = find.inner(name, "Add")
        for one, inner in find.sides(add) if add is not None else ():
            if add is None or not find.is_scalar(one, 1):
                continue
            erf, tanh = find.inner(inner, "Erf"), find.inner(inner, "Tanh")
            steps = _scaled(find, erf.inputs[0], x) if erf is not None else None
            if erf is not None and steps is not None:
                return x, "none", (*steps, erf, add)
            steps = _cubic(find, tanh.inputs[0], x) if tanh is not None else None
            if tanh is not None and steps is not None:
                return x, "tanh", (*steps, tanh, add)
    return None


def _scaled(find: Pattern, name: str, x: str) -> Steps | None:
    """x / √2."""
    node = find.inner(name, "Div", "Mul")
    if node is None:
        return None
    if node.op_type == "Div":
        return (node,) if node.inputs[0] == x and find.is_scalar(node.inputs[1], sqrt(2)) else None
    return (node,) if _times(find, node, x, sqrt(0.5)) else None


def _times(find: Pattern, node: Node, x: str, value: float) -> bool:
    """True for the product of x and a constant."""
    return any(a == x and find.is_scalar(c, value) for a, c in find.sides(node))


def _cubic(find: Pattern, name: str, x: str) -> Steps | None:
    """√(2/π) · (x + 0.044715 · x³)."""
    outer = find.inner(name, "Mul")
    for inner, constant in find.sides(outer) if outer is not None else ():
        total = find.inner(inner, "Add")
        if outer is None or total is None or not find.is_scalar(constant, sqrt(2 / pi)):
            continue
        for a, b in find.sides(total):
            scaled = find.inner(b, "Mul")
            for cube, factor in find.sides(scaled) if scaled is not None else ():
                steps = _cube(find, cube, x)
                if a == x and scaled and steps is not None and find.is_scalar(factor, 0.044715):
                    return (*steps, scaled, total, outer)
    return None


def _cube(find: Pattern, name: str, x: str) -> Steps | None:
    """x³, as a power or as two products."""
    node = find.inner(name, "Pow", "Mul")
    if node is None:
        return None
    if node.op_type == "Pow":
        return (node,) if node.inputs[0] == x and find.is_scalar(node.inputs[1], 3) else None
    for a, b in find.sides(node):
        square = find.inner(b, "Mul")
        if a == x and square is not None and square.inputs == (x, x):
            return (square, node)
    return None
