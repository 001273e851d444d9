"""A Cast to fp32 behind a cube node: its own output type."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from compiling import CHIPS, check_run, compiled, context, count, graph_of, kinds, same_values

from npusim import api
from npusim.compiler.passes.cube_cast import fuse_conv_cast, fuse_matmul_cast
from npusim.compiler.passes.layout import assign_layouts
from npusim.frontends.reference import evaluate
from npusim.ir import DType, Graph, Layout
from npusim.models import random_inputs
from npusim.models.builder import GraphBuilder
from npusim.program.executable import Executable

HALF = DType.FLOAT16


def _matmul(g: GraphBuilder, to: str = "float32") -> str:
    m = g.node("MatMul", "m", g.input("x", (20, 40), HALF), g.input("z", (40, 24), HALF))
    return g.node("Cast", "y", m, to=to)


def _conv(g: GraphBuilder) -> str:
    g.dtype = HALF
    x = g.input("x", (1, 16, 6, 6))
    c = g.node("Conv", "c", x, g.weight("w", (32, 16, 3, 3), 0.1), g.weight("b", (32,), 0.1))
    return g.node("MaxPool", "p", g.node("Cast", "y", c, to="float32"), kernel_shape=[2, 2])


def _run_as(graph: Graph, fused: Graph, chip: str) -> Executable:
    """Compile `graph` and run it at both levels; outputs must be those of `fused` in numpy."""
    inputs = random_inputs(graph)
    exe = compiled(graph, chip, "fp32")
    want = evaluate(fused, inputs)
    for tile_level in (False, True):
        result = api.run(exe, CHIPS[chip], inputs=inputs, tile_level=tile_level)
        for name, value in result.outputs.items():
            np.testing.assert_allclose(value, want[name], rtol=1e-5, atol=1e-5)
    return exe


@pytest.mark.parametrize("chip", ["toy", "ascend910a", "ascend910b2"])
def test_a_product_in_fp32(chip: str) -> None:
    graph = graph_of(_matmul)
    ctx = context(graph, chip)
    result = fuse_matmul_cast(graph, ctx)
    assert kinds(result) == ["MatMul"] and result.type_of("y").dtype is DType.FLOAT32
    assert [d.taken for d in ctx.decisions] == [True]
    same_values(graph, result, rtol=1e-3)  # fp16 between them is gone
    assert kinds(_run_as(graph, result, chip)) == ["MatMul"]


def _sums(g: GraphBuilder) -> str:
    """Bias, residual and ReLU stay in the epilogue; their operands are fp16."""
    x = g.input("x", (2, 20, 40))
    m = g.node("MatMul", "m", x, g.weight("w", (40, 24), 0.2))
    m = g.node("Add", "biased", m, g.weight("b", (24,), 0.2))
    return g.node("Relu", "y", g.node("Add", "sum", m, g.input("r", (2, 20, 24))))


@pytest.mark.parametrize("chip", ["toy", "ascend910a", "ascend910b2"])
def test_behind_an_epilogue(chip: str) -> None:
    for tile_level in (False, True):
        exe = check_run(graph_of(_sums), chip, "fp16", tile_level)
    casts = {"ascend910a": 2, "toy": 2, "ascend910b2": 2}  # of the inputs; FIXP adds nothing
    assert count(exe, "Cast") == casts[chip]


@pytest.mark.parametrize("chip", ["toy", "ascend910a", "ascend910b2"])
def test_a_convolution_in_fp32(chip: str) -> None:
    graph = graph_of(_conv)
    laid_out = assign_layouts(graph, context(graph, chip))
    result = fuse_conv_cast(laid_out, context(laid_out, chip))
    assert count(result, "Cast") == 0
    assert result.tensors["y"].layout is Layout.NC1HWC0
    same_values(graph, result, rtol=1e-3)
    assert count(_run_as(graph, result, chip), "Cast") == 0


def _no_cube(g: GraphBuilder) -> str:
    g.dtype = HALF
    x = g.input("x", (1, 16, 6, 6))
    c = g.node("Conv", "c", x, g.weight("w", (16, 1, 3, 3), 0.1), group=16)
    return g.node("Cast", "y", c, to="float32")


def _shared(g: GraphBuilder) -> str:
    y = _matmul(g)
    g.output(y)
    return g.node("Neg", "n", "m")


def _both(graph: Graph) -> list[str]:
    ctx = context(graph)
    for rewrite in (fuse_matmul_cast, fuse_conv_cast):
        assert kinds(rewrite(graph, ctx)) == kinds(graph)
    return [d.reason for d in ctx.decisions]


@pytest.mark.parametrize(
    ("write", "reason"),
    [(_no_cube, "no kernel of the cube"), (_shared, "wanted in float16 too")],
)
def test_what_stays(write: Callable[[GraphBuilder], str], reason: str) -> None:
    (found,) = _both(graph_of(write))
    assert reason in found


def test_other_types_stay() -> None:
    assert _both(graph_of(lambda g: _matmul(g, "int32"))) == []
