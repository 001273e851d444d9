"""Identities and what nobody reads."""

from __future__ import annotations

import pytest
from compiling import check_run, count, graph_of, kinds, passed, same_values

from npusim.compiler.passes.cleanup import remove_dead, remove_identities
from npusim.ir import DType
from npusim.models.builder import GraphBuilder


def test_identities_go() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (2, 3))
        y = g.node("Dropout", "drop", g.node("Identity", "same", x))
        y = g.node("Cast", "cast", y, to="float32")
        return g.node("Relu", "relu", g.node("Identity", "again", y))

    graph = graph_of(write)
    result = passed(remove_identities, graph)
    assert kinds(result) == ["Relu"] and result.nodes[0].inputs == ("x",)
    same_values(graph, result)


def test_real_casts_stay() -> None:
    graph = graph_of(
        lambda g: g.node(
            "Relu",
            "y",
            g.node(
                "Cast", "b", g.node("Cast", "a", g.input("x", (4,)), to="float16"), to="float32"
            ),
        )
    )
    assert kinds(passed(remove_identities, graph)) == ["Cast", "Cast", "Relu"]


def test_an_output_keeps_its_node() -> None:
    graph = graph_of(lambda g: g.node("Identity", "y", g.input("x", (2, 3))))
    assert kinds(passed(remove_identities, graph)) == ["Identity"]
    check_run(graph, precision="fp32")


def test_dropout_with_a_mask_stays() -> None:
    from npusim.ir import DType, Graph, Node, Tensor, verify

    f, b = DType.FLOAT32, DType.BOOL
    tensors = {n: Tensor(n, (4,), t) for n, t in (("x", f), ("d", f), ("mask", b), ("y", f))}
    nodes = [
        Node("drop", "Dropout", ("x",), ("d", "mask")),
        Node("relu", "Relu", ("d",), ("y",)),
    ]
    graph = verify(Graph("small", nodes, tensors, ["x"], ["y", "mask"]))
    assert kinds(passed(remove_identities, graph)) == ["Dropout", "Relu"]


def test_dead_nodes_and_constants_go() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (2, 3))
        g.node("Mul", "lonely", g.node("Exp", "also", x), g.weight("w", (3,), 1.0))
        return g.node("Relu", "y", x)

    result = passed(remove_dead, graph_of(write))
    assert kinds(result) == ["Relu"]
    assert not result.constants and set(result.tensors) == {"x", "y"}


def test_an_unused_input_stays() -> None:
    def write(g: GraphBuilder) -> str:
        g.input("unused", (5,))
        return g.node("Relu", "y", g.input("x", (2, 3)))

    graph = graph_of(write)
    assert passed(remove_dead, graph).inputs == ["unused", "x"]
    check_run(graph)


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        ("float32", "float32", 0),  # of fp16: there and back below
        ("float32", "int32", 1),
        ("int32", "float32", 2),  # truncates
        ("float32", "float16", 0),
    ],
)
def test_casts_of_casts(first: str, second: str, left: int) -> None:
    """A Cast of fp16 to a type that holds all of it, then to another, is one Cast or none."""

    def write(g: GraphBuilder) -> str:
        x = g.node("Neg", "n", g.input("x", (4,), DType.FLOAT16))
        x = g.node("Cast", "b", g.node("Cast", "a", x, to=first), to=second)
        return g.node("Neg", "y", x)

    graph = graph_of(write)
    result = passed(remove_dead, passed(remove_identities, graph))
    assert count(result, "Cast") == (1 if (first, second) == ("float32",) * 2 else left)
    same_values(graph, result)


def test_an_output_takes_the_name_of_the_identity() -> None:
    graph = graph_of(lambda g: g.node("Identity", "y", g.node("Neg", "n", g.input("x", (2, 3)))))
    result = passed(remove_identities, graph)
    assert kinds(result) == ["Neg"] and result.nodes[0].outputs == ("y",)
    same_values(graph, result)


def test_two_names_of_one_output() -> None:
    def write(g: GraphBuilder) -> str:
        n = g.node("Neg", "n", g.input("x", (2, 3)))
        g.output(g.node("Identity", "a", n))
        return g.node("Identity", "b", n)

    graph = graph_of(write)
    result = passed(remove_identities, graph)
    assert kinds(result) == ["Neg", "Identity"] and result.outputs == ["a", "b"]
    same_values(graph, result)
    check_run(graph)


def test_a_cast_of_a_constant_is_folded() -> None:
    def write(g: GraphBuilder) -> str:
        c = g.node("Cast", "c", g.ints("i", [1, 2, 3]), to="float32")
        return g.node("Mul", "y", g.input("x", (3,)), c)

    assert "Cast" not in [t.op_type for t in check_run(graph_of(write), precision="fp32").tasks]
