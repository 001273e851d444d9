"""Two convolutions as one kernel: when it is taken, what is equal, what it gains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compiling import CHIPS, check_run, graph_of, kinds

from npusim import api
from npusim.compiler.options import CompileOptions, Decision
from npusim.compiler.pipeline import compile_watched
from npusim.ir import Graph, verify
from npusim.models import random_inputs
from npusim.models.builder import GraphBuilder
from npusim.program.executable import Executable
from npusim.sanitize import sanitize_executable

NAME = "ConvDepthFusionPass"
APART = CompileOptions(disabled=frozenset({NAME}))
CHIP = pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])


def conv(g: GraphBuilder, name: str, x: str, channels: int, side: int = 1, **attrs: Any) -> str:
    """A convolution with its bias."""
    inside = g.shape(x)[1] // attrs.get("group", 1)
    w = g.weight(f"{name}.w", (channels, inside, side, side), 0.1)
    return g.node("Conv", name, x, w, g.weight(f"{name}.b", (channels,), 0.1), **attrs)


def pair(
    shape: tuple[int, ...] = (1, 64, 28, 28), mid: int = 64, co: int = 128, side: int = 3,
    stride: int = 1, between: str = "Relu", residual: bool = False, second: int = 1, **attrs: Any,
) -> Graph:  # fmt: skip
    """Conv, what is between, Conv[, Add, Relu]; `second`, `attrs`: window of the second."""

    def write(g: GraphBuilder) -> str:
        x = g.input("x", shape)
        pads = (side // 2,) * 4
        y = conv(g, "first", x, mid, side, pads=pads, strides=(stride, stride))
        y = g.node(between, "between", y) if between else y
        y = conv(g, "second", y, co, second, **attrs)
        if residual:
            y = g.node("Add", "sum", y, g.input("r", g.shape(y)))
            y = g.node("Relu", "end", y)
        return y

    return graph_of(write)


def explained(graph: Graph, chip: str = "ascend910a") -> tuple[Executable, list[Decision]]:
    """What it is compiled to, and what the pass decided."""
    found = compile_watched(graph, CHIPS[chip], CompileOptions())
    return found.executable, [d for d in found.decisions if d.rewrite == NAME]


def times(graph: Graph, chip: str) -> tuple[int, int]:
    """Cycles of a graph with the pass and without."""
    spec = CHIPS[chip]
    runs = [
        api.run(api.compile_graph(graph, spec, options=o), spec, timing_only=True)
        for o in (CompileOptions(), APART)
    ]
    together, apart = (r.timeline.total_cycles for r in runs)
    return together, apart


@CHIP
@pytest.mark.parametrize("between", ["Relu", ""])
def test_one_kernel_computes_the_same(chip: str, between: str) -> None:
    spec, graph = CHIPS[chip], pair((2, 48, 20, 20), between=between, residual=True)
    exe = check_run(graph, chip, tile_level=True)
    assert not sanitize_executable(exe, spec).findings
    assert "ConvConv+Add+Relu" in kinds(exe)
    inputs = random_inputs(graph)
    apart = api.compile_graph(graph, spec, options=APART)
    assert "Conv" in " ".join(kinds(apart)) and "ConvConv" not in " ".join(kinds(apart))
    got, want = (api.run(e, spec, inputs=inputs).outputs for e in (exe, apart))
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value)


def test_biases_and_steps_are_optional() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (1, 32, 20, 20))
        y = g.node("Conv", "first", x, g.weight("w", (48, 32, 3, 3), 0.1), pads=(1,) * 4)
        y = g.node("Conv", "second", y, g.weight("v", (64, 48, 1, 1), 0.1))
        return g.node("Add", "sum", g.input("r", g.shape(y)), y)

    exe = check_run(graph_of(write), tile_level=True)
    assert "ConvConv+Add" in kinds(exe)


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (pair(mid=512, co=512), "both weights take 1,114,112 B"),
        (pair((1, 64, 28, 28), 16, 16, side=3, between="LeakyRelu"), ""),
        (pair(group=64, co=64), "second has groups"),
        (pair((4, 16, 7, 7), 256, 512, stride=2, residual=True), "it would take"),
        (pair(second=3, pads=(1,) * 4), ""),
        (pair(strides=(2, 2)), ""),
        (pair(pads=(1,) * 4), ""),
    ],
)
def test_left_apart(graph: Graph, reason: str) -> None:
    """'': no pair for it, and not a word about it."""
    exe, decisions = explained(graph)
    assert "ConvConv" not in " ".join(kinds(exe))
    assert [d.taken for d in decisions] == ([False] if reason else [])
    assert all(reason in d.reason for d in decisions)


def test_an_image_that_others_want() -> None:
    def write(g: GraphBuilder) -> str:
        y = g.node("Relu", "between", conv(g, "first", g.input("x", (1, 64, 28, 28)), 64))
        return g.node("Concat", "both", conv(g, "second", y, 64), conv(g, "third", y, 64), axis=1)

    _, decisions = explained(graph_of(write))
    assert [d.reason for d in decisions] == ["between is wanted by others"] * 2
    graph = pair()
    graph.outputs.append("between")
    _, decisions = explained(verify(graph))
    assert "wanted by others" in decisions[0].reason


def test_three_in_a_row() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (1, 64, 28, 28))
        return conv(g, "third", conv(g, "second", conv(g, "first", x, 64), 64), 64)

    exe, decisions = explained(graph_of(write))
    assert [d.taken for d in decisions] == [True, False]
    assert decisions[1].reason == "second is the second of another pair"
    assert [k for k in kinds(exe) if k.startswith("Conv")] == ["ConvConv", "Conv"]


PAIRS = {
    "ResNet-50 56²": pair((1, 64, 56, 56), 64, 256, residual=True),
    "ResNet-50 28²": pair((1, 128, 28, 28), 128, 512, residual=True),
    "ResNet-50 56², batch 8": pair((8, 64, 56, 56), 64, 256),
    "ResNet-50 28², stride 2": pair((4, 128, 56, 56), 128, 512, stride=2, residual=True),
    "wide 1×1": pair((2, 256, 14, 14), 64, 256, side=1),
    "many channels between": pair((1, 32, 56, 56), 256, 16),
    "5×5 on small images": pair((16, 32, 7, 7), 48, 32, side=5),
}


@CHIP
@pytest.mark.parametrize("name", PAIRS)
def test_no_pair_is_slower_than_apart(chip: str, name: str) -> None:
    together, apart = times(PAIRS[name], chip)
    assert together <= apart


@pytest.mark.parametrize(("chip", "tasks"), [("ascend910a", 50), ("ascend910b2", 51)])
def test_resnet50(chip: str, tasks: int) -> None:
    """Every pair at 56² and, where L1 holds its image, at 28²."""
    graph = api.load_model("resnet50").graph
    exe, decisions = explained(graph, chip)
    fused = sum(d.taken for d in decisions)
    assert len(exe.tasks) == tasks and [t.op_type for t in exe.tasks].count("ConvConv") == fused
    together, apart = times(graph, chip)
    assert together < 0.97 * apart
