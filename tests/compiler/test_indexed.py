"""Indices as the kernels want them."""

from __future__ import annotations

import numpy as np
import pytest
from compiling import graph_of, kinds, passed, same_values

from npusim.compiler.passes.indexed import arrange_indices
from npusim.ir import DType, Graph
from npusim.models.builder import GraphBuilder


def _indexed(op: str, *shapes: tuple[int, ...], below: int = 4, **attrs: object) -> Graph:
    """Data, constant indices, updates."""

    def write(g: GraphBuilder) -> str:
        index = np.random.default_rng(0).integers(0, below, shapes[1])
        inputs = [g.input("x", shapes[0]), g.ints("index", index)]
        inputs += [g.input(f"u{i}", s) for i, s in enumerate(shapes[2:])]
        return g.node(op, "y", *inputs, **attrs)

    return graph_of(write)


@pytest.mark.parametrize("axis", [0, 1])
def test_many_indices_go_along_the_last_axis(axis: int) -> None:
    shape = (20, 30, 40)
    wanted = (20, 9, 40) if axis else (9, 30, 40)
    graph = _indexed("ScatterElements", shape, wanted, wanted, axis=axis, reduction="max")
    result = passed(arrange_indices, graph)
    assert kinds(result) == [*["Transpose"] * 3, "ScatterElements", "Transpose", "Identity"]
    same_values(graph, result, 0)


def test_few_indices_and_the_last_axis_stay() -> None:
    for shape, axis in (((5, 6), 0), ((80, 90), 1)):
        graph = _indexed("ScatterElements", shape, shape, shape, axis=axis)
        assert kinds(passed(arrange_indices, graph)) == ["ScatterElements"]


@pytest.mark.parametrize("wanted", [(9, 3, 8), (9, 3, 5)])
def test_elements_are_scattered_into_the_corner(wanted: tuple[int, ...]) -> None:
    graph = _indexed("ScatterElements", (9, 7, 8), wanted, wanted, axis=0, reduction="add")
    result = passed(arrange_indices, graph)
    assert kinds(result).count("Concat") == sum(
        a < b for a, b in zip(wanted, (9, 7, 8), strict=True)
    )
    same_values(graph, result, 0)


def test_elements_are_gathered_from_the_corner() -> None:
    graph = _indexed("GatherElements", (9, 7, 8), (9, 3, 5), axis=0)
    result = passed(arrange_indices, graph)
    assert kinds(result) == ["Slice", "GatherElements"]
    same_values(graph, result, 0)


@pytest.mark.parametrize("time", [0, 1])
def test_known_lengths_are_an_order(time: int) -> None:
    axes = {"time_axis": time, "batch_axis": 1 - time}
    graph = _indexed("ReverseSequence", (5, 4, 6), ((4, 5)[time],), **axes)
    result = passed(arrange_indices, graph)
    assert kinds(result) == ["GatherND"]
    same_values(graph, result, 0)
    inner = _indexed("ReverseSequence", (3, 5, 4), (4,), time_axis=1, batch_axis=2)
    assert kinds(passed(arrange_indices, inner)) == ["ReverseSequence"]


def test_a_cache_is_written_from_its_beginning() -> None:
    def write(g: GraphBuilder) -> str:
        x, u = g.input("x", (2, 9, 8)), g.input("u", (2, 3, 8))
        return g.node("TensorScatter", "y", x, u, axis=1)

    result = passed(arrange_indices, graph := graph_of(write))
    assert result.type_of(result.nodes[0].inputs[2]).dtype is DType.INT64
    same_values(graph, result, 0)
