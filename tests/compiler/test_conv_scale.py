"""Factors and addends behind a convolution, in its weights and bias."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from compiling import check_run, graph_of, kinds, passed, same_values

from npusim.compiler.passes.conv_scale import fold_scales
from npusim.ir import Graph
from npusim.models.builder import GraphBuilder

Chain = Callable[[GraphBuilder, str], str]


def _behind_conv(chain: Chain, bias: bool = True) -> Graph:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (2, 6, 5, 6))
        inputs = [x, g.weight("w", (8, 6, 3, 3), 0.3)]
        inputs += [g.weight("b", (8,), 0.3)] if bias else []
        return g.node("Relu", "y", chain(g, g.node("Conv", "conv", *inputs)))

    return graph_of(write)


def _channels(g: GraphBuilder, name: str, rank: int = 3) -> str:
    return g.weight(name, (1, 8, 1, 1)[-rank:], 0.2, 1.5)


def _scaled(g: GraphBuilder, x: str) -> str:
    x = g.node("Add", "add", x, _channels(g, "c1"))
    x = g.node("Sub", "sub", x, _channels(g, "c2", 4))
    x = g.node("Mul", "mul", g.constant("two", 2.0), x)
    return g.node("Add", "last", _channels(g, "c3"), x)


def _turned_round(g: GraphBuilder, x: str) -> str:
    x = g.node("Sub", "sub", _channels(g, "c1"), x)
    return g.node("Div", "div", x, _channels(g, "c2"))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chain", [_scaled, _turned_round])
def test_all_goes_into_the_convolution(chain: Chain, bias: bool) -> None:
    graph = _behind_conv(chain, bias)
    result = passed(fold_scales, graph)
    assert kinds(result) == ["Conv", "Relu"]
    same_values(graph, result)
    assert "Mul" not in kinds(check_run(graph))


def _addend(g: GraphBuilder, x: str) -> str:
    return g.node("Add", "add", x, _channels(g, "c"))


def _inverse(g: GraphBuilder, x: str) -> str:
    return g.node("Div", "div", _channels(g, "c"), x)


def _by_rows(g: GraphBuilder, x: str) -> str:
    return g.node("Mul", "mul", x, g.weight("c", (4,), 0.3))


def _read_twice(g: GraphBuilder, x: str) -> str:
    return g.node("Add", "sum", x, g.node("Mul", "mul", x, _channels(g, "c")))


def _wider(g: GraphBuilder, x: str) -> str:
    return g.node("Mul", "mul", x, g.weight("c", (3, 1, 8, 1, 1), 0.3))


@pytest.mark.parametrize("chain", [_addend, _inverse, _by_rows, _read_twice, _wider])
def test_what_is_not_of_channels_stays(chain: Chain) -> None:
    graph = _behind_conv(chain)
    assert passed(fold_scales, graph) is graph
