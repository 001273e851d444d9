"""Batch normalisation: into the convolution before it, or scale and shift."""

from __future__ import annotations

import pytest
from compiling import check_run, count, graph_of, kinds, passed, same_values

from npusim.compiler.passes.batchnorm import fold_batchnorm
from npusim.models.builder import GraphBuilder


def batchnorm(g: GraphBuilder, x: str, name: str) -> str:
    """A BatchNormalization with random statistics."""
    c = g.shape(x)[1]
    parts = [
        g.weight(f"{name}_{part}", (c,), 0.1, mean)
        for part, mean in (("scale", 1.5), ("shift", 0.3), ("mean", -0.2), ("var", 2.0))
    ]
    return g.node("BatchNormalization", name, x, *parts, epsilon=1e-3)


def conv(g: GraphBuilder, x: str, name: str, co: int, bias: bool, group: int = 1) -> str:
    """A 3 × 3 convolution."""
    ci = g.shape(x)[1] // group
    inputs = [x, g.weight(f"{name}_w", (co, ci, 3, 3), 0.3)]
    inputs += [g.weight(f"{name}_b", (co,), 0.3)] if bias else []
    return g.node("Conv", name, *inputs, group=group)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [1, 2, 6])
def test_folds_into_the_convolution(bias: bool, group: int) -> None:
    graph = graph_of(
        lambda g: batchnorm(g, conv(g, g.input("x", (2, 6, 5, 6)), "c", 6, bias, group), "bn")
    )
    result = passed(fold_batchnorm, graph)
    assert kinds(result) == ["Conv"] and result.nodes[0].outputs == ("bn",)
    same_values(graph, result)
    check_run(graph, precision="fp16")


@pytest.mark.parametrize("shape", [(3, 5), (2, 5, 7), (2, 5, 4, 3), (1, 5, 2, 3, 2)])
def test_alone_it_is_scale_and_shift(shape: tuple[int, ...]) -> None:
    graph = graph_of(lambda g: batchnorm(g, g.input("x", shape), "bn"))
    result = passed(fold_batchnorm, graph)
    assert kinds(result) == ["Mul+Add"]
    same_values(graph, result)
    check_run(graph, "ascend910b2", "fp32", tile_level=True)


def test_a_convolution_that_others_read_stays() -> None:
    def write(g: GraphBuilder) -> str:
        y = conv(g, g.input("x", (1, 4, 6, 6)), "c", 8, True)
        return g.node("Add", "y", batchnorm(g, y, "bn"), y)

    graph = graph_of(write)
    result = passed(fold_batchnorm, graph)
    assert kinds(result) == ["Conv", "Mul+Add", "Add"]
    same_values(graph, result)


def test_an_output_convolution_stays() -> None:
    def write(g: GraphBuilder) -> str:
        y = conv(g, g.input("x", (1, 4, 6, 6)), "c", 8, False)
        g.output(y)
        return batchnorm(g, y, "bn")

    result = passed(fold_batchnorm, graph_of(write))
    assert kinds(result) == ["Conv", "Mul+Add"]


def test_two_in_a_row() -> None:
    graph = graph_of(
        lambda g: batchnorm(
            g, batchnorm(g, conv(g, g.input("x", (1, 4, 6, 6)), "c", 8, True), "one"), "two"
        )
    )
    result = passed(fold_batchnorm, graph)
    assert count(result, "BatchNormalization") == 0
    same_values(graph, result)


def test_statistics_that_are_inputs_stay() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (2, 5, 4, 4))
        parts = [g.weight(n, (5,), 0.1, 1.0) for n in ("scale", "shift", "var")]
        mean = g.input("mean", (5,))
        return g.node("BatchNormalization", "y", x, *parts[:2], mean, parts[2])

    graph = graph_of(write)
    assert kinds(passed(fold_batchnorm, graph)) == ["BatchNormalization"]
    check_run(graph, precision="fp32")
