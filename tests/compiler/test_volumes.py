"""Convolutions and pools of three dimensions, by the kernels of images; LpPool."""

from __future__ import annotations

from typing import Any

import pytest
from compiling import check_run, graph_of, kinds, passed, same_values

from npusim.compiler.passes.conv3d import expand_conv3d
from npusim.compiler.passes.lp_pool import pool_powers
from npusim.compiler.passes.pool_rank import pool_images
from npusim.ir import Graph
from npusim.models.builder import GraphBuilder

VOLUME = (2, 12, 6, 7, 8)


def _conv(kernel: tuple[int, int, int], group: int = 1, fixed: bool = True, **attrs: Any) -> Graph:
    def write(g: GraphBuilder) -> str:
        x, shape = g.input("x", VOLUME), (24, 12 // group, *kernel)
        w = g.weight("w", shape, 0.2) if fixed else g.input("w", shape)
        return g.node("Conv", "y", x, w, g.weight("b", (24,), 0.3), group=group, **attrs)

    return graph_of(write)


@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        ((1, 1, 1), {}),
        ((3, 3, 3), {"pads": [1] * 6}),
        ((3, 1, 2), {"strides": [2, 1, 2], "pads": [0, 1, 0, 2, 0, 1]}),
        ((2, 3, 3), {"dilations": [3, 1, 2]}),
        ((3, 2, 1), {"group": 3, "auto_pad": "SAME_LOWER", "strides": [2, 2, 1]}),
        ((2, 1, 1), {"group": 12}),
    ],
)
def test_depth_is_folded_into_channels(kernel: tuple[int, int, int], attrs: dict[str, Any]) -> None:
    graph = _conv(kernel, **attrs)
    result = passed(expand_conv3d, graph)
    assert kinds(result).count("Conv") == 1
    assert len(result.type_of(result.nodes[-3].inputs[0]).shape) == 4
    same_values(graph, result)


def test_weights_that_are_computed_stay() -> None:
    assert kinds(passed(expand_conv3d, _conv((2, 2, 2), fixed=False))) == ["Conv"]


@pytest.mark.parametrize(("chip", "precision"), [("ascend910a", "fp16"), ("ascend910b2", "fp32")])
def test_the_cube_convolves_volumes(chip: str, precision: str) -> None:
    exe = check_run(_conv((3, 3, 3), pads=[1] * 6), chip, precision, tile_level=True)
    assert "Conv" in kinds(exe) and all(task.call is not None for task in exe.tasks)


def _pool(op: str, **attrs: Any) -> Graph:
    return graph_of(lambda g: g.node(op, "y", g.input("x", VOLUME), **attrs))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    "attrs",
    [
        {"kernel_shape": [2, 3, 2], "strides": [2, 2, 1]},
        {"kernel_shape": [3, 3, 3], "pads": [1, 0, 1, 1, 2, 1], "ceil_mode": 1, "strides": [2] * 3},
        {"kernel_shape": [2, 2, 3], "dilations": [2, 1, 2], "auto_pad": "SAME_UPPER"},
    ],
)
@pytest.mark.parametrize("counted", [0, 1])
def test_pools_height_and_width_then_depth(op: str, attrs: dict[str, Any], counted: int) -> None:
    own = {"count_include_pad": counted} if op == "AveragePool" else {}
    graph = _pool(op, **attrs, **own)
    result = passed(pool_images, graph)
    assert kinds(result) == ["Reshape", op, "Reshape", op, "Reshape"]
    same_values(graph, result)
    exe = check_run(graph, "ascend910a", "fp32")
    assert all(task.call is not None for task in exe.tasks)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_powers_are_averaged(p: int) -> None:
    attrs = {"kernel_shape": [2, 2, 2], "strides": [2, 1, 2], "pads": [1, 0, 1, 0, 1, 1]}
    graph = _pool("LpPool", p=p, **attrs)
    result = passed(pool_powers, graph)
    assert "AveragePool" in kinds(result)
    same_values(graph, result)
    partial = _pool("LpPool", p=p, kernel_shape=[2, 3, 2], strides=[3, 3, 4], ceil_mode=1)
    assert kinds(passed(pool_powers, partial)) == ["LpPool"]
