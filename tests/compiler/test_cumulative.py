"""Running sums in parts and as columns."""

from __future__ import annotations

import pytest
from compiling import check_run, graph_of, kinds, passed, same_values

from npusim.compiler.passes.cumulative import split_cumulative
from npusim.ir import Graph
from npusim.models.builder import GraphBuilder


def _scan(op: str, shape: tuple[int, ...], axis: int, **attrs: int) -> Graph:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", shape)
        return g.node(op, "y", x, g.ints("axis", [axis]), **attrs)

    return graph_of(write)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("shape", [(2500,), (2, 1100, 3)])
def test_a_long_axis_is_scanned_in_parts(
    shape: tuple[int, ...], exclusive: int, reverse: int
) -> None:
    graph = _scan(
        "CumSum", shape, 0 if len(shape) == 1 else 1, exclusive=exclusive, reverse=reverse
    )
    result = passed(split_cumulative, graph)
    assert kinds(result).count("CumSum") == 2 and "Add" in kinds(result)
    same_values(graph, result, 1e-4)  # sums in another order


def test_many_lanes_become_columns() -> None:
    graph = _scan("CumProd", (5, 60, 40), -1)
    result = passed(split_cumulative, graph)
    assert kinds(result) == ["Reshape", "Transpose", "CumProd", "Transpose", "Reshape"]
    same_values(graph, result, 0)


@pytest.mark.parametrize(("shape", "axis"), [((40, 300), 0), ((8, 300), 1), ((3, 0), 0)])
def test_what_the_kernel_takes_stays(shape: tuple[int, ...], axis: int) -> None:
    graph = _scan("CumSum", shape, axis)
    assert kinds(passed(split_cumulative, graph)) == ["CumSum"]


def test_parts_run_on_cores() -> None:
    exe = check_run(_scan("CumSum", (3000,), 0), "ascend910b2", "fp32", tile_level=True)
    assert all(task.call is not None for task in exe.tasks)
