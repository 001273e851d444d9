"""Grouped convolutions joined into whole blocks of channels, with a block-diagonal filter."""

from __future__ import annotations

import numpy as np
import pytest
from compiling import check_run, graph_of, kinds, passed, same_values

from npusim.compiler.passes.grouped_conv import expand_grouped_conv
from npusim.ir import Graph
from npusim.models.builder import GraphBuilder


def _grouped(ci: int, co: int, group: int) -> Graph:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (2, ci, 6, 5))
        w, b = g.weight("w", (co, ci // group, 3, 3), 0.3), g.weight("b", (co,), 0.3)
        return g.node("Conv", "y", x, w, b, group=group, pads=[1, 0, 1, 2])

    return graph_of(write)


@pytest.mark.parametrize("sizes", [(6, 4, 2), (8, 8, 4), (3, 9, 3), (4, 8, 4), (20, 10, 5)])
def test_dense_equals_grouped(sizes: tuple[int, int, int]) -> None:
    ci, co, group = sizes
    graph = _grouped(ci, co, group)
    result = passed(expand_grouped_conv, graph)
    dense = result.constants[result.nodes[0].inputs[1]].value()
    assert dense.shape == (co, ci, 3, 3) and result.nodes[0].attrs["group"] == 1
    assert np.count_nonzero(dense) == graph.constants["w"].type.size
    same_values(graph, result)
    exe = check_run(graph, "ascend910b2", "fp32")
    assert [t.call.kernel for t in exe.tasks if t.op_type == "Conv" and t.call] == ["Conv2D"]


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [((64, 64, 8), 4), ((32, 64, 2), 2), ((48, 96, 3), 3), ((64, 32, 32), 2), ((48, 24, 6), 1)],
)
@pytest.mark.parametrize("chip", ["toy", "ascend910a", "ascend910b2"])
def test_groups_fill_blocks(sizes: tuple[int, int, int], groups: int, chip: str) -> None:
    """Each that is left is a convolution of its own on the cube, with its own piece of the bias."""
    graph = _grouped(*sizes)
    result = passed(expand_grouped_conv, graph, "ascend910b2")
    assert result.nodes[0].attrs["group"] == groups
    same_values(graph, result)
    for tile in (False, True):
        exe = check_run(graph, chip, "fp16", tile_level=tile)
    assert [t.call.kernel for t in exe.tasks if t.op_type == "Conv" and t.call] == ["Conv2D"]


def test_groups_off_the_cube_are_dense() -> None:
    """fp32 on the 910A: the vector unit's kernel takes no groups."""
    graph = _grouped(32, 64, 2)
    assert passed(expand_grouped_conv, graph).nodes[0].attrs["group"] == 1
    exe = check_run(graph, "ascend910a", "fp32")
    assert "ConvVector" in [t.call.kernel for t in exe.tasks if t.call]


def test_groups_of_blocks_need_no_constant_weights() -> None:
    def write(g: GraphBuilder) -> str:
        x, w = g.input("x", (1, 64, 5, 5)), g.input("w", (32, 32, 3, 3))
        return g.node("Conv", "y", x, w, group=2)

    exe = check_run(graph_of(write), precision="fp16", tile_level=True)
    assert "Conv2D" in [t.call.kernel for t in exe.tasks if t.call]


def test_depthwise_stays() -> None:
    graph = _grouped(6, 6, 6)
    assert passed(expand_grouped_conv, graph).nodes == graph.nodes
    exe = check_run(graph)
    assert "DepthwiseConv" in [t.call.kernel for t in exe.tasks if t.call]


@pytest.mark.parametrize(("chip", "precision"), [("ascend910a", "fp16"), ("ascend910b2", "fp16"),
                                                 ("ascend910b2", "fp32")])  # fmt: skip
def test_depthwise_goes_where_it_is_faster(chip: str, precision: str) -> None:
    """The cube takes blocks of 16 channels, each with a diagonal a tap, where that is faster."""

    def depthwise(channels: int, side: int, taps: int) -> Graph:
        def write(g: GraphBuilder) -> str:
            x, w = (
                g.input("x", (2, channels, side, side)),
                g.weight("w", (channels, 1, taps, taps), 0.3),
            )
            return g.node("Conv", "y", x, w, group=channels, pads=[taps // 2] * 4)

        return graph_of(write)

    run = []
    for graph in (depthwise(96, 40, 3), depthwise(20, 8, 3)):  # 20 channels: no whole blocks
        for tile in (False, True):
            exe = check_run(graph, chip, precision, tile_level=tile)
        run.append(next(t.call.kernel for t in exe.tasks if t.op_type == "Conv" and t.call))
    assert run == ["Conv2D", "DepthwiseConv"]


def test_depthwise_of_fp32_stays_where_the_cube_has_none() -> None:
    graph = _grouped(32, 32, 32)
    kernels = [t.call.kernel for t in check_run(graph, "ascend910a", "fp32").tasks if t.call]
    assert "DepthwiseConv" in kernels


def test_weights_that_are_inputs_stay() -> None:
    def write(g: GraphBuilder) -> str:
        x, w = g.input("x", (1, 4, 5, 5)), g.input("w", (8, 2, 3, 3))
        return g.node("Conv", "y", x, w, group=2)

    graph = graph_of(write)
    assert kinds(passed(expand_grouped_conv, graph)) == ["Conv"]
    assert any("AI CPU" in n for n in check_run(graph).notes)
