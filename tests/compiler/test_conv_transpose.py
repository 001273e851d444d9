"""Transposed convolutions as convolutions of an input with zeros between its pixels."""

from __future__ import annotations

from typing import Any

import pytest
from compiling import check_run, graph_of, kinds, passed, same_values

from npusim.compiler.passes.conv_transpose import turn_transposed_conv
from npusim.ir import Graph
from npusim.models.builder import GraphBuilder
from npusim.program.executable import TaskKind


def _up(kernel: tuple[int, int] = (3, 3), group: int = 1, **attrs: Any) -> Graph:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (2, 20, 5, 6))
        w, b = g.weight("w", (20, 12 // group, *kernel), 0.2), g.weight("b", (12,), 0.3)
        y = g.node("ConvTranspose", "up", x, w, b, group=group, **attrs)
        return g.node("Relu", "y", y)

    return graph_of(write)


@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        ((2, 2), {"strides": [2, 2]}),
        ((3, 3), {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}),
        ((4, 4), {"strides": [2, 2], "pads": [1] * 4}),
        ((3, 2), {"strides": [3, 2], "pads": [0, 1, 1, 0], "dilations": [2, 1]}),
        ((3, 3), {"pads": [1, 0, 2, 1]}),
        ((1, 1), {"strides": [2, 3]}),
        ((4, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ((3, 3), {"strides": [2, 2], "output_shape": [10, 12]}),
    ],
)
def test_equals_a_convolution(kernel: tuple[int, int], attrs: dict[str, Any]) -> None:
    graph = _up(kernel, **attrs)
    result = passed(turn_transposed_conv, graph)
    assert kinds(result) == ["Conv", "Relu"]
    same_values(graph, result)


@pytest.mark.parametrize(
    ("chip", "precision"),
    [("ascend910a", "fp16"), ("ascend910b2", "fp16"), ("ascend910b2", "fp32")],
)
def test_runs_on_the_cube(chip: str, precision: str) -> None:
    graph = _up((3, 3), strides=[2, 2], pads=[1] * 4, output_padding=[1, 1])
    exe = check_run(graph, chip, precision, tile_level=True)
    assert kinds(exe) == ["TransData", "Conv+Relu", "TransData"]
    assert all(t.kind is TaskKind.AI_CORE for t in exe.tasks)


def test_what_no_convolution_says_stays() -> None:
    grouped = _up(group=2, strides=[2, 2])
    cropped = _up((2, 2), strides=[1, 1], pads=[2] * 4)  # more than the kernel adds
    for graph in (grouped, cropped):
        assert kinds(passed(turn_transposed_conv, graph)) == ["ConvTranspose", "Relu"]
        exe = check_run(graph)
        assert [t.op_type for t in exe.tasks if t.kind is TaskKind.AI_CPU] == ["ConvTranspose"]


def test_fp32_without_an_fp32_cube_runs_on_the_ai_cpu() -> None:
    exe = check_run(_up((2, 2), strides=[2, 2]), "ascend910a", "fp32")
    assert any("zeros between the input's pixels" in n for n in exe.notes)
