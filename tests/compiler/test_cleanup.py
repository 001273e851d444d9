"""Identities and what nobody reads."""

from __future__ import annotations

from compiling import check_run, graph_of, kinds, passed, same_values

from npusim.compiler.passes.cleanup import remove_dead, remove_identities
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
