"""What LayerNormalization and RMSNormalization are made of, as exporters write them.

    s = x - mean(x)   (or x itself)
    s / √(mean(s²) + ε)   [· gamma]   [+ beta]

with s² a Pow or a Mul, the quotient a Div or a product with a Reciprocal, or with 1 / ….
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.decomposed import Found
from npusim.compiler.passes.patterns import Pattern
from npusim.ir import Constant, Graph, Node, TensorType


@dataclass(frozen=True)
class Standardised:
    """x over its deviation: the nodes that make it, the last one `root`."""

    x: str
    axis: int
    epsilon: float
    centred: bool
    root: Node
    steps: tuple[Node, ...]


def standardised(find: Pattern, node: Node) -> Standardised | None:
    """What a quotient or product computes, where it standardises a tensor."""
    if node.epilogue or node.op_type not in ("Div", "Mul") or len(node.inputs) != 2:
        return None
    ways = [node.inputs] if node.op_type == "Div" else list(find.sides(node))
    for over, under in ways:
        deviation = _deviation(find, under, inverse=node.op_type == "Mul")
        if deviation is None:
            continue
        square, axis, epsilon, steps = deviation
        found = _squared(find, square, over)
        if found is None:
            continue
        base = Standardised(over, axis, epsilon, False, node, (*steps, *found, node))
        return _centred(find, base, square) or base
    return None


def _deviation(
    find: Pattern, name: str, inverse: bool
) -> tuple[str, int, float, tuple[Node, ...]] | None:
    """(squares, first axis, ε, nodes) of √(mean(squares) + ε), or of its inverse."""
    steps: list[Node] = []
    if inverse:
        turned = find.maker(name, "Reciprocal", "Div")
        if turned is None or (turned.op_type == "Div" and not find.is_scalar(turned.inputs[0], 1)):
            return None
        steps.append(turned)
        name = turned.inputs[-1]
    root = find.maker(name, "Sqrt")
    add = find.maker(root.inputs[0], "Add") if root is not None else None
    if root is None or add is None:
        return None
    for name, constant in find.sides(add):
        epsilon, mean = find.scalar(constant), find.maker(name, "ReduceMean")
        if epsilon is None or mean is None:
            continue
        axis = _first_axis(find, mean)
        if axis is not None:
            return mean.inputs[0], axis, epsilon, (*steps, root, add, mean)
    return None


def _first_axis(find: Pattern, mean: Node) -> int | None:
    """Where the axes of a mean begin, when they are the last ones."""
    axes = find.axes(mean)
    rank = len(find.graph.type_of(mean.inputs[0]).shape)
    return axes[0] if axes and axes == list(range(axes[0], rank)) else None


def _squared(find: Pattern, square: str, over: str) -> tuple[Node, ...] | None:
    """The nodes that make `square` of the tensor `over`, or of a twin of it."""
    node = find.maker(square, "Pow", "Mul")
    if node is None or len(node.inputs) != 2:
        return None
    same = node.inputs[0] == node.inputs[1]
    if same if node.op_type == "Pow" else not same:
        return None
    if node.op_type == "Pow" and not find.is_scalar(node.inputs[1], 2):
        return None
    if node.inputs[0] == over:
        return (node,)
    twin, first = find.maker(node.inputs[0], "Sub"), find.maker(over, "Sub")
    if twin is None or first is None or twin.inputs != first.inputs:
        return None
    return (node, twin)


def _centred(find: Pattern, base: Standardised, square: str) -> Standardised | None:
    """The same with the mean taken off, where the tensor is x - mean(x)."""
    sub = find.maker(base.x, "Sub")
    mean = find.maker(sub.inputs[1], "ReduceMean") if sub is not None else None
    if sub is None or mean is None or mean.inputs[0] != sub.inputs[0]:
        return None
    if _first_axis(find, mean) != base.axis:
        return None
    steps = (mean, sub, *base.steps)
    return replace(base, x=sub.inputs[0], centred=True, steps=steps)


def matches(graph: Graph, ctx: CompileContext, centred: bool, op_type: str) -> Iterator[Found]:
    """Every normalisation of a graph, with scale and (when centred) bias."""
    find = Pattern(graph)
    for node in graph.nodes:
        base = standardised(find, node)
        if base is None or base.centred is not centred:
            continue
        x = graph.type_of(base.x)
        steps, root, constants = base.steps, base.root, dict[str, Constant]()
        gamma, mul = _affine(find, root, "Mul", x, base.axis)
        beta = ""
        if mul is not None:
            steps, root = (*steps, mul), mul
        if centred:
            beta, add = _affine(find, root, "Add", x, base.axis)
            if add is not None:
                steps, root = (*steps, add), add
        if not gamma:
            gamma = ctx.fresh(f"{root.name}_scale")
            constants[gamma] = Constant.full(x.shape[base.axis :], 1.0, x.dtype)
        inputs = (base.x, gamma, *([beta] if beta else []))
        attrs = {"axis": base.axis, "epsilon": base.epsilon}
        made = Node(root.name, op_type, inputs, root.outputs, attrs)
        yield Found(root, steps, made, constants)


def _affine(
    find: Pattern, root: Node, op_type: str, x: TensorType, axis: int
) -> tuple[str, Node | None]:
    """The one reader of the result that scales or shifts it along the normalised axes."""
    reader = find.reader(root.outputs[0], op_type)
    if reader is None:
        return "", None
    for name, other in find.sides(reader):
        given = find.graph.type_of(other)
        shape = given.shape
        while len(shape) > len(x.shape) - axis and shape[0] == 1:
            shape = shape[1:]
        made = other in find.graph.constants or other in find.graph.inputs
        if name == root.outputs[0] and shape == x.shape[axis:] and made and given.dtype is x.dtype:
            return other, reader
    return "", None
