"""Operators that give their operand back."""

from __future__ import annotations

import numpy as np
import pytest
from compiling import check_run, graph_of, kinds, passed, same_values

from npusim.compiler.passes.no_ops import remove_no_ops
from npusim.models.builder import GraphBuilder


@pytest.mark.parametrize(
    ("op_type", "value", "left"),
    [("Add", 0.0, True), ("Mul", 1.0, True), ("Sub", 0.0, False), ("Div", 1.0, False),
     ("Pow", 1.0, False)],
)  # fmt: skip
def test_neutral_constants(op_type: str, value: float, left: bool) -> None:
    def write(g: GraphBuilder, swapped: bool, whole: bool, value: float = value) -> str:
        x = g.node("Exp", "x", g.input("i", (3, 4)))
        c = g.constant("c", np.full((3, 4), value)) if whole else g.constant("c", value)
        return g.node("Neg", "y", g.node(op_type, "none", *((c, x) if swapped else (x, c))))

    graph = graph_of(lambda g: write(g, False, False))
    result = passed(remove_no_ops, graph)
    assert kinds(result) == ["Exp", "Neg"]
    same_values(graph, result)
    swapped = passed(remove_no_ops, graph_of(lambda g: write(g, True, False)))
    assert kinds(swapped) == (["Exp", "Neg"] if left else ["Exp", op_type, "Neg"])
    for other in (graph_of(lambda g: write(g, False, False, 0.5)),
                  graph_of(lambda g: write(g, False, True))):  # fmt: skip
        assert kinds(passed(remove_no_ops, other)) == ["Exp", op_type, "Neg"]


def test_what_grows_stays() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.node("Exp", "x", g.input("i", (4,)))
        zero = g.constant("z", np.zeros((1, 1)))
        x = g.node("Add", "wider", x, zero)  # (4,) → (1, 4)
        return g.node("Expand", "y", x, g.ints("shape", [3, 4]))

    assert kinds(passed(remove_no_ops, graph_of(write))) == ["Exp", "Add", "Expand"]


def test_operators_of_one() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.node("Exp", "x", g.input("i", (3, 4)))
        x = g.node("Concat", "concat", x, axis=0)
        x = g.node("Max", "max", g.node("Sum", "sum", x))
        x = g.node("Expand", "expand", x, g.ints("shape", [1, 4]))
        x = g.node("Tile", "tile", x, g.ints("repeats", [1, 1]))
        return g.node("Clip", "y", x)

    graph = graph_of(write)
    result = passed(remove_no_ops, graph)
    assert kinds(result) == ["Exp"] and result.nodes[0].outputs == ("y",)
    same_values(graph, result)
    check_run(graph)
