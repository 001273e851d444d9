"""A residual and the normalisation behind it: one kernel, with the sum where it is wanted."""

from __future__ import annotations

import pytest
from compiling import check_run, context, graph_of, kinds, same_values

from npusim.compiler.passes.add_layernorm import fuse_add_layernorm
from npusim.ir import Graph, verify
from npusim.models.builder import GraphBuilder

SHAPE = (2, 9, 48)


def residual(before: bool = False, after: bool = False, shape: tuple[int, ...] = SHAPE) -> Graph:
    """x + r, normalised; the sum read before or after the normalisation too."""

    def write(g: GraphBuilder) -> str:
        total = g.node("Add", "sum", g.input("x", SHAPE), g.input("r", shape))
        extra = g.node("Tanh", "early", total) if before else ""
        gamma, beta = g.weight("gamma", (48,), 0.1, 1.0), g.weight("beta", (48,), 0.1)
        y = g.node("LayerNormalization", "norm", total, gamma, beta, axis=-1, epsilon=1e-5)
        y = g.node("Mul", "gated", y, extra) if before else y
        return g.node("Sub", "late", y, total) if after else y

    return graph_of(write)


def fused(graph: Graph, chip: str = "ascend910b2") -> tuple[Graph, list[str]]:
    ctx = context(graph, chip)
    return verify(fuse_add_layernorm(graph, ctx)), [d.reason for d in ctx.decisions if not d.taken]


@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])
@pytest.mark.parametrize("after", [False, True])
def test_one_kernel(chip: str, after: bool) -> None:
    graph = residual(after=after)
    out, refused = fused(graph, chip)
    assert not refused and kinds(out)[0] == "AddLayerNorm"
    assert len(out.nodes[0].outputs) == 1 + after
    same_values(graph, out)
    check_run(graph, chip, "fp32", tile_level=True)
    check_run(graph, chip, "fp16", tile_level=True)


def test_the_sum_is_an_output() -> None:
    graph = residual()
    graph.outputs.append("sum")
    out, _ = fused(verify(graph))
    assert kinds(out) == ["AddLayerNorm"] and out.nodes[0].outputs == ("norm", "sum")
    check_run(graph, "ascend910b2", "fp32", tile_level=True)


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (residual(before=True), "wanted by early before"),
        (residual(shape=(1, 9, 48)), "not two of one type"),
    ],
)
def test_what_stays(graph: Graph, reason: str) -> None:
    out, refused = fused(graph)
    assert out is graph and reason in refused[0]
    check_run(graph, "ascend910b2", "fp32")


def test_a_sum_of_one_tensor() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", SHAPE)
        gamma, beta = g.weight("gamma", (48,), 0.1, 1.0), g.weight("beta", (48,), 0.1)
        return g.node("LayerNormalization", "y", g.node("Add", "sum", x, x), gamma, beta)

    assert kinds(fused(graph_of(write))[0]) == ["Add", "LayerNormalization"]
