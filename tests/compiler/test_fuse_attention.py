"""Attention step by step becomes one kernel: where it may, where it must not, the numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from compiling import check_run, context, count, graph_of, kinds

from npusim.compiler.passes.attention import fuse_attention
from npusim.compiler.passes.precision import assign_precision
from npusim.ir import Graph, verify
from npusim.models.builder import GraphBuilder

B, S, N, D = 2, 33, 4, 16


def _heads(g: GraphBuilder, name: str, perm: list[int]) -> str:
    x = g.input(name, (B, S, N * D))
    x = g.node("Reshape", f"{name}.heads", x, g.ints(f"{name}.shape", (B, S, N, D)))
    return g.node("Transpose", f"{name}.t", x, perm=perm)


def _merged(g: GraphBuilder, x: str) -> str:
    x = g.node("Transpose", "back", x, perm=[0, 2, 1, 3])
    return g.node("Reshape", "y", x, g.ints("y.shape", (B, S, N * D)))


def attention(
    mask: tuple[int, ...] | None = (B, 1, 1, S),
    scale: str = "Mul",
    between: Callable[[GraphBuilder, str], str] = lambda g, x: x,
    turned: bool = False,
) -> Graph:
    """Attention as BERT's exporters write it; `between` goes behind the scores."""

    def write(g: GraphBuilder) -> str:
        q, v = (_heads(g, name, [0, 2, 1, 3]) for name in "qv")
        x = g.node("MatMul", "scores", q, _heads(g, "k", [0, 2, 3, 1]))
        if scale:
            x = g.node(scale, "scale", x, g.constant("factor", 0.25 if scale == "Mul" else 4.0))
        x = between(g, x)
        if mask is not None:
            pair = [x, g.input("mask", mask)]
            x = g.node("Add", "masked", *(pair[::-1] if turned else pair))
        x = g.node("Softmax", "softmax", x, axis=-1)
        return _merged(g, g.node("MatMul", "context", x, v))

    return graph_of(write)


def fused(graph: Graph, chip: str = "ascend910a") -> tuple[Graph, list[str]]:
    """What the pass makes of a graph in fp16, and why it left what it left."""
    ctx = context(graph, chip, "fp16")
    out = verify(fuse_attention(assign_precision(graph, ctx), ctx))
    return out, [d.reason for d in ctx.decisions if not d.taken]


@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])
@pytest.mark.parametrize(
    ("mask", "scale", "turned"),
    [
        ((B, 1, 1, S), "Mul", False),
        ((1, N, S, S), "Div", True),
        ((S, S), "Mul", False),
        (None, "", False),
    ],
)
def test_one_kernel(chip: str, mask: tuple[int, ...] | None, scale: str, turned: bool) -> None:
    graph = attention(mask, scale, turned=turned)
    out, refused = fused(graph, chip)
    assert not refused and count(out, "FlashAttentionScore") == 1
    assert not {"MatMul", "Softmax", "Transpose", "Add", "Mul"} & set(kinds(out))
    exe = check_run(graph, chip, tile_level=True)
    assert count(exe, "FlashAttentionScore") == 1


def test_layouts() -> None:
    """Heads before their split where the result is merged, else as the products take them."""
    node = next(n for n in fused(attention())[0].nodes if n.op_type == "FlashAttentionScore")
    assert node.attrs["input_layout"] == "BSND" and node.attrs["scale_value"] == 0.25

    def write(g: GraphBuilder) -> str:
        q, k, v = (g.input(n, (B, N, S, D)) for n in "qkv")
        k = g.node("Transpose", "turn", k, perm=[0, 1, 3, 2])
        q = g.node("Mul", "q.scaled", q, g.constant("a", 0.5))
        k = g.node("Mul", "k.scaled", k, g.constant("b", 0.25))
        x = g.node("Softmax", "softmax", g.node("MatMul", "scores", q, k), axis=-1)
        return g.node("MatMul", "y", x, v)

    graph = graph_of(write)
    out, refused = fused(graph)
    node = next(n for n in out.nodes if n.op_type == "FlashAttentionScore")
    assert not refused and node.attrs["input_layout"] == "BNSD"
    assert node.attrs["scale_value"] == 0.125  # of queries and keys
    check_run(graph, tile_level=True)


def test_a_constant_mask() -> None:
    def write(g: GraphBuilder) -> str:
        q, k, v = (g.input(n, (1, N, S, D)) for n in "qkv")
        k = g.node("Transpose", "turn", k, perm=[0, 1, 3, 2])
        mask = g.constant("mask", np.triu(np.full((S, S), -1e4, np.float32), 1))
        x = g.node("Add", "masked", mask, g.node("MatMul", "scores", q, k))
        return g.node("MatMul", "y", g.node("Softmax", "softmax", x, axis=-1), v)

    graph = graph_of(write)
    assert kinds(fused(graph)[0])[-2:] == ["FlashAttentionScore", "Cast"]
    check_run(graph, tile_level=True)


def _wanted_twice(g: GraphBuilder, x: str) -> str:
    g.output(x)
    return x


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"between": lambda g, x: g.node("Tanh", "cap", x)}, "no product"),
        ({"between": _wanted_twice, "scale": ""}, "no product"),
        ({"mask": (B, 1, S, 1)}, "a mask of shape (2, 1, 33, 1)"),
    ],
)
def test_what_stays(changes: dict[str, object], reason: str) -> None:
    graph = attention(**changes)  # type: ignore[arg-type]
    out, refused = fused(graph)
    assert count(out, "FlashAttentionScore") == 0 and len(refused) == 1 and reason in refused[0]
    check_run(graph)


def test_fp32_where_the_cube_takes_it() -> None:
    """On the 910A attention in fp32 stays in steps, and it is said why."""
    graph = attention()
    ctx = context(graph, precision="fp32")
    assert fuse_attention(graph, ctx) is graph
    assert "float32: the cube of ascend910a takes float16" in ctx.decisions[0].reason
    check_run(graph, precision="fp32")
    exe = check_run(graph, "ascend910b2", "fp32", tile_level=True)
    assert count(exe, "FlashAttentionScore") == 1 and count(exe, "MatMul") == 0


def test_other_softmaxes() -> None:
    """Of other axes; of probabilities that no product takes."""

    def first_axis(g: GraphBuilder) -> str:
        x = g.node("Softmax", "softmax", g.input("x", (1, 2, 16, 16)), axis=1)
        return g.node("MatMul", "y", x, g.input("v", (1, 2, 16, 16)))

    def alone(g: GraphBuilder) -> str:
        return g.node("Softmax", "y", g.input("x", (4, 16)), axis=-1)

    out, refused = fused(graph_of(first_axis))
    assert "softmax over axis 1" in refused[0] and count(out, "Softmax") == 1
    assert fused(graph_of(alone))[1] == []
