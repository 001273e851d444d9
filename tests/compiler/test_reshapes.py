"""Chains of shape operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compiling import check_run, graph_of, kinds, passed, same_values
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.compiler.passes.reshapes import remove_reshapes
from npusim.ir import Graph
from npusim.models.builder import GraphBuilder


def _simplified(graph: Graph) -> Graph:
    result = passed(remove_reshapes, graph)
    same_values(graph, result)
    return result


def test_a_view_of_views_is_one() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.node("Relu", "relu", g.input("x", (4, 6)))
        x = g.node("Reshape", "a", x, g.ints("shape", [2, 1, 12]))
        x = g.node("Squeeze", "b", x, g.ints("axes", [1]))
        return g.node("Relu", "y", g.node("Unsqueeze", "c", x, g.ints("axis", [0])))

    result = _simplified(graph_of(write))
    assert kinds(result) == ["Relu", "Reshape", "Relu"]
    assert result.nodes[1].inputs[0] == "relu" and "shape" not in result.constants


def test_there_and_back_is_nothing() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.node("Relu", "relu", g.input("x", (4, 1, 6)))
        x = g.node("Unsqueeze", "u", g.node("Squeeze", "s", x, g.ints("a", [1])), g.ints("b", [1]))
        return g.node("Softmax", "y", x)

    assert kinds(_simplified(graph_of(write))) == ["Relu", "Softmax"]


@pytest.mark.parametrize("tail", [True, False])
def test_transposes(tail: bool) -> None:
    """Two become one, or none; a graph output keeps its name."""

    def write(g: GraphBuilder, second: list[int]) -> str:
        x = g.node("Relu", "relu", g.input("x", (2, 3, 4)))
        x = g.node("Transpose", "a", x, perm=[1, 2, 0])
        x = g.node("Transpose", "b", x, perm=second)
        return g.node("Softmax", "y", x) if tail else x

    ends = ["Softmax"] * tail
    result = _simplified(graph_of(lambda g: write(g, [2, 0, 1])))
    assert kinds(result) == ["Relu", *ends]
    result = _simplified(graph_of(lambda g: write(g, [1, 0, 2])))
    assert kinds(result) == ["Relu", "Transpose", *ends]
    assert result.nodes[1].attrs == {"perm": [2, 1, 0]}


def test_three_transposes() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (2, 3, 4))
        for i in range(3):
            x = g.node("Transpose", f"t{i}", x)
        return g.node("Softmax", "y", x)

    assert kinds(_simplified(graph_of(write))) == ["Transpose", "Softmax"]


def test_axes_of_one_move_for_free() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.node("Transpose", "t", g.input("x", (1, 5, 1, 7)), perm=[1, 0, 3, 2])
        return g.node("Softmax", "y", x)

    graph = graph_of(write)
    assert kinds(_simplified(graph)) == ["Reshape", "Softmax"]
    assert [t.op_type for t in check_run(graph).tasks][1:-1] == ["Softmax"]  # but for the Casts


def test_what_others_read_stays() -> None:
    def write(g: GraphBuilder) -> str:
        a = g.node("Transpose", "a", g.input("x", (2, 3)))
        g.output(g.node("Relu", "other", a))
        return g.node("Relu", "y", g.node("Transpose", "b", a))

    result = _simplified(graph_of(write))
    assert kinds(result) == ["Transpose", "Relu", "Relu"]
    assert result.nodes[-1].inputs == ("x",)


def test_an_output_of_an_input_stays() -> None:
    graph = graph_of(lambda g: g.node("Reshape", "y", g.input("x", (2, 3)), g.ints("s", [2, 3])))
    assert kinds(_simplified(graph)) == ["Reshape"]
    check_run(graph)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_chain(data: st.DataObject) -> None:
    def write(g: GraphBuilder) -> str:
        x: Any = g.node("Relu", "first", g.input("x", (2, 1, 3, 4)))
        for i in range(data.draw(st.integers(1, 6))):
            shape = g.shape(x)
            if data.draw(st.booleans()):
                perm = data.draw(st.permutations(range(len(shape))))
                x = g.node("Transpose", f"t{i}", x, perm=list(perm))
            else:
                dims = data.draw(st.sampled_from([(24,), (4, 6), (2, 3, 4), (1, 24), shape]))
                x = g.node("Reshape", f"r{i}", x, g.ints(f"s{i}", list(dims)))
            if data.draw(st.integers(0, 3)) == 0:
                g.output(x)
        if x in g._graph.outputs or data.draw(st.booleans()):
            x = g.node("Neg", "y", x)
        return x

    graph = graph_of(write)
    result = _simplified(graph)
    assert len(result.nodes) <= len(graph.nodes)
    again = passed(remove_reshapes, result)
    assert kinds(again) == kinds(result)
    assert all(np.prod(t.shape) == 24 for n in result.nodes for t in [result.type_of(n.outputs[0])])
