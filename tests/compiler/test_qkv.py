"""Q, K and V as one product, whose heads the attention reads in place."""

from __future__ import annotations

import pytest
from compiling import CHIPS, check_run, compiled, count, graph_of, kinds

from npusim.compiler import CompileOptions, compile_watched
from npusim.compiler.passes.qkv import NAME
from npusim.ir import Graph
from npusim.models.builder import GraphBuilder

B, S, N, D = 2, 24, 4, 16
H = N * D


def block(
    bias: tuple[bool, bool, bool] = (True, True, True), other: bool = False, shown: bool = False
) -> Graph:
    """Self-attention with its projections; K of another input, V's heads an output."""

    def write(g: GraphBuilder) -> str:
        x = g.input("x", (B, S, H))
        y = g.input("y", (B, S, H)) if other else x
        parts = []
        perms = {"q": [0, 2, 1, 3], "k": [0, 2, 3, 1], "v": [0, 2, 1, 3]}
        for (name, perm), biased in zip(perms.items(), bias, strict=True):
            source = y if name == "k" else x
            p = g.node("MatMul", name, source, g.weight(f"{name}.w", (H, H), 0.2))
            if biased:
                p = g.node("Add", f"{name}.add", p, g.weight(f"{name}.b", (H,), 0.2))
            p = g.node("Reshape", f"{name}.heads", p, g.ints(f"{name}.shape", (B, S, N, D)))
            parts.append(g.node("Transpose", f"{name}.t", p, perm=perm))
        if shown:
            g.output("v.heads")
        q, k, v = parts
        p = g.node("Softmax", "softmax", g.node("MatMul", "scores", q, k), axis=-1)
        return g.node("Transpose", "out", g.node("MatMul", "context", p, v), perm=[0, 2, 1, 3])

    return graph_of(write)


@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])
@pytest.mark.parametrize("biased", [False, True])
def test_one_product(chip: str, biased: bool) -> None:
    exe = check_run(block((biased,) * 3), chip, tile_level=True)
    assert [k for k in kinds(exe) if k != "Cast"] == ["MatMul", "FlashAttentionScore"]
    attention = next(t.node for t in exe.tasks if t.op_type == "FlashAttentionScore")
    assert attention.attrs["first_heads"] == (0, N, 2 * N)
    assert exe.memory.weight_bytes < 3.3 * H * H * 2  # the single weights are gone


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (block(other=True), "different inputs"),
        (block((True, False, True)), "only some of the products have a bias"),
        (block(shown=True), ""),
    ],
)
def test_what_stays(graph: Graph, reason: str) -> None:
    exe = check_run(graph, tile_level=True)
    assert count(exe, "MatMul") == 3 and count(exe, "FlashAttentionScore") == 1
    found = compile_watched(graph, CHIPS["ascend910a"], CompileOptions())
    refused = [d.reason for d in found.decisions if d.rewrite == NAME]
    assert len(refused) == bool(reason) and all(reason in r for r in refused)


def test_without_fused_attention_nothing_changes() -> None:
    exe = compiled(block(), precision="fp32")
    assert count(exe, "MatMul") == 5
