"""Operators that exporters write in steps: found whole, left where somebody looks inside."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import pytest
from compiling import (
    check_run,
    compiled,
    count,
    explained,
    graph_of,
    kinds,
    same_values,
)

from npusim import api
from npusim.compiler.passes.gelu import fuse_gelu
from npusim.compiler.passes.layernorm import fuse_layernorm
from npusim.compiler.passes.rmsnorm import fuse_rmsnorm
from npusim.compiler.passes.swish import fuse_swish
from npusim.compiler.rewrite import Pass
from npusim.ir import Graph, verify
from npusim.models.builder import GraphBuilder

WIDTH = 32
SHAPE = (2, 5, WIDTH)


def _square(g: GraphBuilder, x: str, how: str) -> str:
    if how == "Pow":
        return g.node("Pow", "square", x, g.constant("two", 2.0))
    return g.node("Mul", "square", x, x)


def _over(g: GraphBuilder, x: str, square: str, how: str) -> str:
    """x / √(mean(square) + ε)."""
    mean = g.node("ReduceMean", "variance", square, g.ints("axes", [-1]))
    total = g.node("Add", "stable", mean, g.constant("epsilon", 1e-3))
    root = g.node("Sqrt", "root", total)
    if how == "Div":
        return g.node("Div", "standard", x, root)
    if how == "Reciprocal":
        return g.node("Mul", "standard", g.node("Reciprocal", "inverse", root), x)
    one = g.node("Div", "inverse", g.constant("one", 1.0), root)
    return g.node("Mul", "standard", x, one)


def layer_norm(
    square: str = "Pow", over: str = "Div", affine: str = "both", twin: bool = False
) -> Graph:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", SHAPE)
        mean = g.node("ReduceMean", "mean", x, g.ints("last", [2]))
        s = g.node("Sub", "centred", x, mean)
        again = g.node("Sub", "again", x, mean) if twin else s
        y = _over(g, again, _square(g, s, square), over)
        if affine in ("both", "scale"):
            y = g.node("Mul", "scaled", g.weight("gamma", (WIDTH,), 0.1, 1.0), y)
        if affine == "both":
            y = g.node("Add", "shifted", y, g.weight("beta", (1, WIDTH), 0.1))
        return y

    return graph_of(write)


@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])
@pytest.mark.parametrize(
    ("square", "over", "affine", "twin"),
    [
        ("Pow", "Div", "both", False),
        ("Mul", "Reciprocal", "scale", False),
        ("Pow", "One", "none", False),
        ("Pow", "Div", "both", True),
    ],
)
def test_layer_norm(chip: str, square: str, over: str, affine: str, twin: bool) -> None:
    graph = layer_norm(square, over, affine, twin)
    out, refused = explained(fuse_layernorm, graph, chip)
    assert not refused and kinds(out) == ["LayerNormalization"]
    assert out.nodes[0].attrs == {"axis": 2, "epsilon": pytest.approx(1e-3)}
    same_values(graph, out)
    check_run(graph, chip, "fp32", tile_level=True)
    check_run(graph, chip, "fp16")


def rms_norm(square: str, over: str) -> Graph:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", SHAPE)
        y = _over(g, x, _square(g, x, square), over)
        return g.node("Mul", "scaled", g.weight("gamma", (WIDTH,), 0.1, 1.0), y)

    return graph_of(write)


@pytest.mark.parametrize("square", ["Pow", "Mul"])
@pytest.mark.parametrize("over", ["Div", "Reciprocal", "One"])
def test_rms_norm(square: str, over: str) -> None:
    graph = rms_norm(square, over)
    out, refused = explained(fuse_rmsnorm, graph)
    assert not refused and kinds(out) == ["RMSNormalization"]
    same_values(graph, out)
    check_run(graph, precision="fp32", tile_level=True)
    assert kinds(explained(fuse_layernorm, graph)[0])[-1] == "Mul"  # nothing is centred
    assert count(explained(fuse_rmsnorm, layer_norm())[0], "RMSNormalization") == 0


def gelu(form: str, order: str = "x(1+f)/2") -> Graph:
    def inner(g: GraphBuilder, x: str) -> str:
        if form == "erf":
            return g.node("Erf", "f", g.node("Div", "scaled", x, g.constant("root", sqrt(2))))
        if form == "erf by product":
            half = g.constant("root", sqrt(0.5))
            return g.node("Erf", "f", g.node("Mul", "scaled", half, x))
        if form == "tanh":
            cube = g.node("Pow", "cube", x, g.constant("three", 3.0))
        else:
            cube = g.node("Mul", "cube", x, g.node("Mul", "xx", x, x))
        small = g.node("Mul", "small", cube, g.constant("c", 0.044715))
        total = g.node("Add", "total", x, small)
        return g.node("Tanh", "f", g.node("Mul", "scaled", total, g.constant("r", sqrt(2 / pi))))

    def write(g: GraphBuilder) -> str:
        x = g.input("x", SHAPE)
        one = g.node("Add", "one", inner(g, x), g.constant("1", 1.0))
        half = g.constant("half", 0.5)
        if order == "x(1+f)/2":
            return g.node("Mul", "y", g.node("Mul", "p", x, one), half)
        if order == "x/2 (1+f)":
            return g.node("Mul", "y", g.node("Mul", "p", x, half), one)
        return g.node("Mul", "y", x, g.node("Mul", "p", half, one))

    return graph_of(write)


@pytest.mark.parametrize("order", ["x(1+f)/2", "x/2 (1+f)", "x (1+f)/2"])
@pytest.mark.parametrize("form", ["erf", "erf by product", "tanh", "tanh by products"])
def test_gelu(form: str, order: str) -> None:
    graph = gelu(form, order)
    out, refused = explained(fuse_gelu, graph)
    assert not refused and kinds(out) == ["Gelu"]
    assert out.nodes[0].attrs["approximate"] == ("tanh" if "tanh" in form else "none")
    same_values(graph, out)


def test_swiglu() -> None:
    """x · sigmoid(x) · y is one kernel."""

    def write(g: GraphBuilder) -> str:
        x, y = g.input("x", SHAPE), g.input("y", SHAPE)
        swish = g.node("Mul", "swish", x, g.node("Sigmoid", "gate", x))
        return g.node("Mul", "out", swish, y)

    graph = graph_of(write)
    out, _ = explained(fuse_swish, graph)
    assert kinds(out) == ["Swish", "Mul"]
    same_values(graph, out)
    assert "Swish+Mul" in kinds(compiled(graph, precision="fp32"))
    check_run(graph, precision="fp32", tile_level=True)


def _leaking(make: Callable[[], Graph], inside: str) -> Graph:
    graph = make()
    graph.outputs.append(inside)
    return verify(graph)


@pytest.mark.parametrize(
    ("rewrite", "make", "inside", "op_type"),
    [
        (fuse_layernorm, layer_norm, "centred", "LayerNormalization"),
        (fuse_layernorm, layer_norm, "variance", "LayerNormalization"),
        (fuse_rmsnorm, lambda: rms_norm("Pow", "Div"), "root", "RMSNormalization"),
        (fuse_gelu, lambda: gelu("erf"), "f", "Gelu"),
    ],
)
def test_what_somebody_looks_into_stays(
    rewrite: Pass, make: Callable[[], Graph], inside: str, op_type: str
) -> None:
    graph = _leaking(make, inside)
    out, refused = explained(rewrite, graph)
    assert count(out, op_type) == 0
    assert all("wanted by the caller" in r for r in refused)
    check_run(graph, precision="fp32")


def test_other_axes_stay() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", SHAPE)
        s = g.node("Sub", "centred", x, g.node("ReduceMean", "mean", x, g.ints("a", [1])))
        return _over(g, s, _square(g, s, "Pow"), "Div")

    out, _ = explained(fuse_layernorm, graph_of(write))
    assert count(out, "LayerNormalization") == 0


@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])
def test_a_torch_export(chip: str) -> None:
    """BERT of two layers: every LayerNormalization, Gelu and attention is one kernel."""
    model = api.load_model("tests/data/bert_torch_tiny.onnx", batch=2)
    exe = check_run(model.graph, chip)
    assert count(exe, "LayerNormalization") + count(exe, "AddLayerNorm") == 5
    steps = [s.op_type for t in exe.tasks if t.node is not None for s in t.node.epilogue]
    assert count(exe, "Gelu") + steps.count("Gelu") == count(exe, "FlashAttentionScore") == 2
    layer = [t for t in exe.tasks if "layer.1/" in t.name]
    assert len(layer) <= 12
