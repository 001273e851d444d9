"""Resize as products and Gathers, an axis at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compiling import check_run, graph_of, kinds, passed, same_values

from npusim.compiler.passes.resize import split_resize
from npusim.ir import Graph
from npusim.models.builder import GraphBuilder


def _resize(sizes: list[int], **attrs: Any) -> Graph:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (1, 16, 10, 12))
        return g.node("Resize", "y", x, "", "", g.ints("sizes", [1, 16, *sizes]), **attrs)

    return graph_of(write)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("sizes", [[20, 24], [7, 30], [10, 5]])
def test_interpolation_is_a_product_an_axis(mode: str, sizes: list[int]) -> None:
    graph = _resize(sizes, mode=mode, antialias=int(sizes[1] < 12))
    result = passed(split_resize, graph)
    assert kinds(result).count("MatMul") == sum(
        a != b for a, b in zip(sizes, (10, 12), strict=True)
    )
    same_values(graph, result)


def test_nearest_rows_are_gathered() -> None:
    graph = _resize([13, 30])
    result = passed(split_resize, graph)
    assert kinds(result) == ["Transpose", "Gather", "Gather", "Transpose", "Identity"]
    same_values(graph, result, 0)
    assert "Transpose" not in kinds(passed(split_resize, _resize([13, 12])))


def test_repeats_and_regions_stay() -> None:
    assert kinds(passed(split_resize, _resize([20, 36]))) == ["Resize"]

    def write(g: GraphBuilder) -> str:
        x, roi = g.input("x", (1, 1, 4, 4)), g.constant("roi", np.array([0, 0, 0, 0, 1, 1, 0.9, 1]))
        mode = "tf_crop_and_resize"
        sizes = g.ints("sizes", [1, 1, 3, 3])
        return g.node("Resize", "y", x, roi, "", sizes, coordinate_transformation_mode=mode)

    assert kinds(passed(split_resize, graph_of(write))) == ["Resize"]


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize(("chip", "precision"), [("ascend910a", "fp16"), ("ascend910b2", "fp32")])
def test_it_runs_on_cores(mode: str, chip: str, precision: str) -> None:
    exe = check_run(_resize([15, 30], mode=mode), chip, precision, tile_level=True)
    assert all(task.call is not None for task in exe.tasks)
