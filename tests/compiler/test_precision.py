"""One narrow type: casts at the borders, weights at load; what is no float32 stays."""

from __future__ import annotations

import numpy as np
import pytest
from compiling import CHIPS, check_run, compiled, graph_of, kinds, passed

from npusim import api
from npusim.compiler import CompileOptions
from npusim.compiler.passes.precision import assign_precision
from npusim.errors import UnsupportedError
from npusim.ir import DType
from npusim.models.builder import GraphBuilder


def _mlp(g: GraphBuilder) -> str:
    x = g.input("x", (4, 16))
    return g.node("Relu", "y", g.node("MatMul", "m", x, g.weight("w", (16, 8), 0.3)))


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_casts_at_the_borders(precision: str, dtype: str) -> None:
    graph = graph_of(_mlp)
    result = passed(assign_precision, graph, "ascend910b2", precision)
    assert kinds(result) == ["Cast", "MatMul", "Relu", "Cast"]
    assert result.tensors["x"].dtype is result.tensors["y"].dtype is DType.FLOAT32
    inner = {o for n in result.nodes for o in n.outputs} - {"y"} | {"w"}
    assert {result.tensors[t].dtype.value for t in inner} == {dtype}
    assert result.constants["w"].value().dtype == result.tensors["w"].dtype.np


def test_fp32_changes_nothing() -> None:
    graph = graph_of(_mlp)
    assert passed(assign_precision, graph, "ascend910b2", "fp32") is graph


def test_integers_and_halves_stay() -> None:
    def write(g: GraphBuilder) -> str:
        ids = g.input("ids", (3,), DType.INT64)
        half = g.input("half", (3, 4), DType.FLOAT16)
        rows = g.node("Gather", "rows", g.weight("table", (10, 4), 1.0), ids)
        return g.node("Add", "y", rows, g.node("Cast", "wide", half, to="float32"))

    graph = graph_of(write)
    result = passed(assign_precision, graph, precision="fp16")
    assert result.tensors["ids"].dtype is DType.INT64
    assert kinds(result) == ["Gather", "Cast", "Add", "Cast"]
    assert result.tensors["wide"].dtype is DType.FLOAT16  # the model's Cast has a new target
    check_run(graph)


def test_integer_outputs_get_no_cast() -> None:
    graph = graph_of(lambda g: g.node("Cast", "y", g.input("x", (5,)), to="int32"))
    result = passed(assign_precision, graph, precision="fp16")
    assert result.nodes[-1].outputs == ("y",) and result.tensors["y"].dtype is DType.INT32


def test_an_output_that_others_read() -> None:
    def write(g: GraphBuilder) -> str:
        a = g.node("Relu", "a", g.input("x", (4, 8)))
        g.output(a)
        return g.node("Exp", "b", a)

    check_run(graph_of(write))


@pytest.mark.parametrize("tile_level", [False, True])
def test_large_values_saturate(tile_level: bool) -> None:
    """A sum beyond fp16 gives its largest value, as the chips' saturation mode does.

    Where the product takes the Cast to the fp32 output in, the sum never is fp16.
    """
    graph = graph_of(lambda g: g.node("MatMul", "y", g.input("x", (3, 2)), g.input("w", (2, 1))))
    x = np.array([[300, 300], [-300, -300], [300, -300]], np.float32)
    inputs = {"x": x, "w": np.full((2, 1), 200, np.float32)}
    for chip in (CHIPS["ascend910a"], CHIPS["ascend910b2"]):
        for off, largest in (({"MatmulCastFusionPass"}, 65504), (set(), 120000)):
            options = CompileOptions(disabled=frozenset(off))
            exe = api.compile_graph(graph, chip, options=options)
            result = api.run(exe, chip, inputs=inputs, tile_level=tile_level)
            np.testing.assert_array_equal(result.outputs["y"].ravel(), [largest, -largest, 0])


def test_bf16_without_the_cube() -> None:
    with pytest.raises(UnsupportedError) as error:
        compiled(graph_of(_mlp), "ascend910a", "bf16")
    lines = str(error.value).splitlines()
    assert len(lines) == 3
    assert "bf16 on ascend910a" in lines[0]
    assert "fp16, fp32" in lines[1] and "bf16" not in lines[1]
    assert "--precision fp16" in lines[2]


def test_an_unknown_precision() -> None:
    with pytest.raises(UnsupportedError, match="fp32, fp16, bf16"):
        compiled(graph_of(_mlp), precision="fp8")


def test_names_do_not_collide() -> None:
    """A model may have tensors called as the compiler's own."""

    def write(g: GraphBuilder) -> str:
        x = g.input("x", (4, 8))
        y = g.node("Exp", "x__0", g.node("Relu", "x_cast__0", x))
        return g.node("Add", "y", y, g.node("Neg", "y__0", x))

    check_run(graph_of(write))
