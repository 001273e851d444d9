"""Images of at most 4 channels in NC1HWC0_C04, where it is asked for and pays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from compiling import count, graph_of

from npusim import api
from npusim.chip import load_chip
from npusim.compiler import CompileOptions, compile_watched
from npusim.ir import Graph, Layout
from npusim.models import random_inputs
from npusim.models.builder import GraphBuilder
from npusim.program.executable import Executable
from npusim.sanitize import sanitize_executable

CHIPS = {n: load_chip(n) for n in ("toy", "ascend310p3", "ascend910a", "ascend910b2")}
C04 = {Layout.NC1HWC0_C04, Layout.FRACTAL_Z_C04}


def _stem(channels: int = 3, size: int = 45, kernel: int = 7) -> Callable[[GraphBuilder], str]:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (2, channels, size, size))
        w = g.weight("w", (24, channels, kernel, kernel), 0.1)
        attrs = {"pads": [kernel // 2] * 4, "strides": [2, 2]}
        y = g.node("Relu", "relu", g.node("Conv", "y", x, w, g.weight("b", (24,), 0.3), **attrs))
        return g.node("MaxPool", "pool", y, kernel_shape=[2, 2], strides=[2, 2])

    return write


def _depthwise(g: GraphBuilder) -> str:
    x = g.input("x", (1, 4, 20, 20))
    return g.node("Conv", "y", x, g.weight("w", (4, 1, 3, 3), 0.2), group=4)


def _compile(graph: Graph, chip: str, small: bool = True, precision: str = "fp16") -> Executable:
    options = CompileOptions(precision, small_channel=small)
    return api.compile_graph(graph, CHIPS[chip], options=options)


def _few(exe: Executable) -> bool:
    """Whether something lies in a C04 layout."""
    return any(b.layout in C04 for b in exe.buffers.values())


@pytest.mark.parametrize("chip", ["toy", "ascend310p3", "ascend910a"])
def test_the_numbers_are_those_of_the_plain_layout(chip: str) -> None:
    """Bit for bit at operator level, and at tile level but for the order of the sums."""
    graph = graph_of(_stem())
    few, plain = _compile(graph, chip), _compile(graph, chip, small=False)
    assert _few(few) and not _few(plain)
    assert count(few, "TransData") == count(plain, "TransData") == 2
    inputs = random_inputs(graph)
    runs = [api.run(exe, CHIPS[chip], inputs=inputs) for exe in (few, plain)]
    by_tiles = api.run(few, CHIPS[chip], inputs=inputs, tile_level=True)
    assert runs[0].timeline.total_cycles < runs[1].timeline.total_cycles
    for name, value in runs[1].outputs.items():
        np.testing.assert_array_equal(runs[0].outputs[name], value)
        np.testing.assert_allclose(by_tiles.outputs[name], value, rtol=2e-3, atol=2e-3)
    assert not sanitize_executable(few, CHIPS[chip]).findings


def test_off_by_default() -> None:
    exe = api.compile_graph(graph_of(_stem()), CHIPS["ascend910a"])
    assert not _few(exe)


@pytest.mark.parametrize(
    ("write", "precision", "reason"),
    [
        (_depthwise, "fp16", "groups"),
        (_stem(), "fp32", "float16"),
        (_stem(5), "fp16", ""),  # nothing to decide
    ],
)
def test_what_stays_plain(
    write: Callable[[GraphBuilder], str], precision: str, reason: str
) -> None:
    options = CompileOptions(precision, small_channel=True)
    found = compile_watched(graph_of(write), CHIPS["ascend910a"], options)
    assert not _few(found.executable)
    reasons = [d.reason for d in found.decisions if d.rewrite == "SmallChannel"]
    assert [reason in r for r in reasons] == [True] * bool(reason)


def test_chips_with_fixp_say_that_they_do_not() -> None:
    exe = _compile(graph_of(_stem()), "ascend910b2")
    assert not _few(exe)
    assert any("small channels" in note for note in exe.notes)


def test_an_image_made_on_the_device_stays() -> None:
    """Only an image in ND is turned into blocks of 4; this one is a convolution's result."""

    def write(g: GraphBuilder) -> str:
        x = g.input("x", (1, 32, 20, 20))
        y = g.node("Conv", "a", x, g.weight("v", (3, 32, 1, 1), 0.2))
        return g.node("Conv", "y", y, g.weight("w", (16, 3, 3, 3), 0.2))

    options = CompileOptions("fp16", small_channel=True)
    found = compile_watched(graph_of(write), CHIPS["ascend910a"], options)
    assert not _few(found.executable)
    decisions = [d for d in found.decisions if d.rewrite == "SmallChannel"]
    assert [(d.nodes, d.reason) for d in decisions] == [(("y",), "the image is made in NC1HWC0")]


def test_two_convolutions_share_the_image() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (1, 3, 64, 64))
        parts = [
            g.node("Conv", n, x, g.weight(f"{n}w", (16, 3, 5, 5), 0.2), pads=[2] * 4) for n in "ab"
        ]
        return g.node("Add", "y", *parts)

    exe = _compile(graph_of(write), "ascend910a")
    assert sum(b.layout is Layout.NC1HWC0_C04 for b in exe.buffers.values()) == 1
    assert count(exe, "TransData") == 2


def test_a_result_in_fp32_keeps_the_layout() -> None:
    """The Cast behind a convolution joins it in whatever layout it is."""

    def write(g: GraphBuilder) -> str:
        x = g.input("x", (1, 3, 64, 64))
        return g.node("Conv", "y", x, g.weight("w", (16, 3, 7, 7), 0.2), pads=[3] * 4)

    graph = graph_of(write)
    few, plain = (_compile(graph, "ascend910a", small) for small in (True, False))
    assert _few(few) and [t.op_type for t in few.tasks] == [t.op_type for t in plain.tasks]
