"""What is computed twice is computed once."""

from __future__ import annotations

from compiling import check_run, graph_of, kinds, passed, same_values

from npusim.compiler.passes.common_subexpressions import eliminate_common
from npusim.ir import DType, Graph, Node, Tensor, verify
from npusim.models.builder import GraphBuilder


def test_chains_merge() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (3, 8))
        a = g.node("Softmax", "a2", g.node("Exp", "a1", x), axis=1)
        b = g.node("Softmax", "b2", g.node("Exp", "b1", x))  # axis -1: another attribute
        c = g.node("Softmax", "c2", g.node("Exp", "c1", x), axis=1)
        return g.node("Add", "y", g.node("Add", "sum", a, b), c)

    graph = graph_of(write)
    result = passed(eliminate_common, graph)
    assert kinds(result) == ["Exp", "Softmax", "Softmax", "Add", "Add"]
    same_values(graph, result)


def test_operands_may_change_places() -> None:
    def write(g: GraphBuilder, op_type: str) -> str:
        x, z = g.input("x", (3,)), g.input("z", (3,))
        return g.node("Concat", "y", g.node(op_type, "a", x, z), g.node(op_type, "b", z, x), axis=0)

    for op_type, ops in (("Mul", 2), ("Div", 3)):
        graph = graph_of(lambda g, op_type=op_type: write(g, op_type))
        result = passed(eliminate_common, graph)
        assert len(result.nodes) == ops
        same_values(graph, result)


def test_scalars_of_one_value() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (3,))
        a = g.node("Mul", "a", x, g.constant("half", 0.5))
        b = g.node("Mul", "b", x, g.constant("also", 0.5))
        c = g.node("Mul", "c", x, g.constant("other", -0.5))
        return g.node("Sum", "y", a, b, c)

    result = passed(eliminate_common, graph_of(write))
    assert kinds(result) == ["Mul", "Mul", "Sum"]


def test_views_by_their_result() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.node("Exp", "x", g.input("i", (3, 1, 4)))
        a = g.node("Reshape", "a", x, g.ints("shape", [3, 4]))
        return g.node("Add", "y", a, g.node("Squeeze", "b", x, g.ints("axes", [1])))

    assert kinds(passed(eliminate_common, graph_of(write))) == ["Exp", "Reshape", "Add"]


def test_outputs_are_all_made() -> None:
    """Of two equal outputs both stay; one takes the place of an equal inner tensor."""

    def write(g: GraphBuilder, first_is_one: bool) -> str:
        x = g.input("x", (3,))
        a = g.node("Exp", "a", x)
        g.output(*([a] if first_is_one else [g.node("Neg", "n", a)]))
        return g.node("Exp", "b", x)

    for first_is_one, ops in ((True, ["Exp", "Exp"]), (False, ["Exp", "Neg"])):
        graph = graph_of(lambda g, one=first_is_one: write(g, one))
        result = passed(eliminate_common, graph)
        assert kinds(result) == ops and result.outputs == graph.outputs
        same_values(graph, result)
        check_run(graph)


def test_random_masks_differ() -> None:
    f, b = DType.FLOAT32, DType.BOOL
    kinds_ = {"x": f, "d": f, "e": f, "m": b, "n": b}
    tensors = {name: Tensor(name, (4,), t) for name, t in kinds_.items()}
    nodes = [Node("a", "Dropout", ("x",), ("d", "m")), Node("b", "Dropout", ("x",), ("e", "n"))]
    graph = verify(Graph("small", nodes, tensors, ["x"], ["d", "e", "m", "n"]))
    assert kinds(passed(eliminate_common, graph)) == ["Dropout", "Dropout"]
