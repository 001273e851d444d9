"""Attention with repeated heads and boolean masks: matched, refused for a reason, the numbers."""

from __future__ import annotations

import numpy as np
import pytest
from compiling import CHIPS, compiled, context, count, graph_of, kinds

from npusim import api
from npusim.compiler.passes.attention import fuse_attention
from npusim.compiler.passes.precision import assign_precision
from npusim.frontends.reference import evaluate
from npusim.ir import DType, Graph, verify
from npusim.models import random_inputs
from npusim.models.builder import GraphBuilder

B, S, N, KV, D = 2, 33, 6, 2, 16
MERGE = [0, 2, 1, 3]


def _split(g: GraphBuilder, name: str, heads: int) -> str:
    x = g.input(name, (B, S, heads * D))
    return g.node("Reshape", f"{name}.heads", x, g.ints(f"{name}.s", (B, S, heads, D)))


def _repeated(g: GraphBuilder, x: str, axis: int, how: str) -> str:
    """Every head of (…, KV, …) N / KV times, as exporters write it."""
    shape = [*g.shape(x)]
    one = [*shape[: axis + 1], 1, *shape[axis + 1 :]]
    wide = [*shape[: axis + 1], N // KV, *shape[axis + 1 :]]
    many = [*shape[:axis], N, *shape[axis + 1 :]]
    if how == "Reshape":
        y = g.node("Reshape", f"{x}.one", x, g.ints(f"{x}.os", one))
    else:
        y = g.node("Unsqueeze", f"{x}.one", x, g.ints(f"{x}.os", [axis + 1]))
    if how == "Tile":
        y = g.node(
            "Tile",
            f"{x}.wide",
            y,
            g.ints(f"{x}.ws", [w // o for w, o in zip(wide, one, strict=True)]),
        )
    else:
        y = g.node("Expand", f"{x}.wide", y, g.ints(f"{x}.ws", wide))
    return g.node("Reshape", f"{x}.many", y, g.ints(f"{x}.ms", many))


def grouped(how: str = "Expand", first: bool = False, merged: bool = True) -> Graph:
    """Grouped-query attention; `first`: heads are repeated before the Transpose."""

    def write(g: GraphBuilder) -> str:
        q = g.node("Transpose", "q.t", _split(g, "q", N), perm=MERGE)
        k, v = (_split(g, n, KV) for n in "kv")
        if first:
            k, v = (_repeated(g, x, 2, how) for x in (k, v))
        k, v = (g.node("Transpose", f"{x}.t", x, perm=MERGE) for x in (k, v))
        if not first:
            k, v = (_repeated(g, x, 1, how) for x in (k, v))
        k = g.node("Transpose", "k.turned", k, perm=[0, 1, 3, 2])
        x = g.node("Mul", "scaled", g.node("MatMul", "scores", q, k), g.constant("c", 0.25))
        y = g.node("MatMul", "context", g.node("Softmax", "p", x, axis=-1), v)
        if not merged:
            return y
        y = g.node("Transpose", "back", y, perm=MERGE)
        return g.node("Reshape", "y", y, g.ints("y.s", (B, S, N * D)))

    return graph_of(write)


def masked(
    shape: tuple[int, ...], form: str, low: float = -np.inf, constant: bool = False
) -> Graph:
    """Attention whose scores a boolean tensor masks.

    `form`: "keep" Where(mask, x, low), "hide" Where(mask, low, x); "+keep", "+hide" Where of 0
    and low, added.
    """

    def write(g: GraphBuilder) -> str:
        q, k, v = (g.input(n, (B, N, S, D)) for n in "qkv")
        k = g.node("Transpose", "k.turned", k, perm=[0, 1, 3, 2])
        x = g.node("MatMul", "scores", q, k)
        bits = np.random.default_rng(0).random(shape) < 0.5
        mask = (
            g.constant("mask", bits, DType.BOOL) if constant else g.input("mask", shape, DType.BOOL)
        )
        fill = g.constant("low", low)
        other = g.constant("zero", 0.0) if form[0] == "+" else x
        pair = (other, fill) if form.endswith("keep") else (fill, other)
        y = g.node("Where", "where", mask, *pair)
        x = g.node("Add", "masked", x, y) if form[0] == "+" else y
        return g.node("MatMul", "y", g.node("Softmax", "p", x, axis=-1), v)

    return graph_of(write)


def fused(graph: Graph, chip: str = "ascend910a") -> tuple[Graph, list[str]]:
    ctx = context(graph, chip, "fp16")
    out = verify(fuse_attention(assign_precision(graph, ctx), ctx))
    return out, [d.reason for d in ctx.decisions if not d.taken]


def check(graph: Graph, chip: str) -> None:
    """At both levels as in numpy; the mask, of those to keep, shows every row the first key."""
    inputs = random_inputs(graph)
    if "mask" in inputs:
        inputs["mask"][..., 0] = True
    want = evaluate(graph, inputs)
    exe = compiled(graph, chip)
    assert count(exe, "FlashAttentionScore") == 1
    for tile_level in (False, True):
        got = api.run(exe, CHIPS[chip], inputs=inputs, tile_level=tile_level).outputs
        for name, value in want.items():
            assert api.compare(got[name], value).cosine >= 0.999, (name, tile_level)


@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])
@pytest.mark.parametrize(
    ("how", "first", "merged"),
    [
        ("Expand", False, True),
        ("Reshape", True, True),
        ("Tile", False, True),
        ("Expand", False, False),
    ],
)
def test_repeated_heads(chip: str, how: str, first: bool, merged: bool) -> None:
    graph = grouped(how, first, merged)
    out, refused = fused(graph, chip)
    assert not refused
    node = next(n for n in out.nodes if n.op_type == "FlashAttentionScore")
    assert node.attrs["input_layout"] == ("BSND" if merged else "BNSD")
    shape = out.type_of(node.inputs[1]).shape
    assert shape[2 if merged else 1] == KV  # read as they are, not repeated
    assert not {"Expand", "Tile", "Softmax", "MatMul"} & set(kinds(out))
    check(graph, chip)


def test_repeats_that_differ_stay() -> None:
    """Keys of groups, values of all heads: no one number of key heads."""

    def write(g: GraphBuilder) -> str:
        q, v = (g.node("Transpose", f"{n}.t", _split(g, n, N), perm=MERGE) for n in "qv")
        k = _repeated(g, g.node("Transpose", "k.t", _split(g, "k", KV), perm=MERGE), 1, "Expand")
        x = g.node("MatMul", "scores", q, g.node("Transpose", "turn", k, perm=[0, 1, 3, 2]))
        return g.node("MatMul", "context", g.node("Softmax", "p", x, axis=-1), v)

    graph = graph_of(write)
    out, refused = fused(graph)
    assert refused == ["queries (2, 6, 33, 16), keys (2, 2, 33, 16), values (2, 6, 33, 16)"]
    assert count(out, "FlashAttentionScore") == 0


@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])
@pytest.mark.parametrize("form", ["keep", "+keep"])
@pytest.mark.parametrize("shape", [(B, 1, 1, S), (B, 1, S, S), (S, S), (1, N, 1, S)])
def test_boolean_masks(chip: str, form: str, shape: tuple[int, ...]) -> None:
    graph = masked(shape, form)
    out, refused = fused(graph, chip)
    assert not refused and not {"Where", "Softmax", "Add"} & set(kinds(out))
    check(graph, chip)


def test_masks_that_hide_and_constant_ones() -> None:
    for form in ("hide", "+hide"):
        out, refused = fused(masked((B, 1, S, S), form, -1e9))
        assert not refused and "Not" not in kinds(out)
    for form in ("keep", "hide"):
        graph = masked((S,), form, -1e4, constant=True)
        out, refused = fused(graph)
        assert not refused and not {"Not", "Expand"} & set(kinds(out))
        check(graph, "ascend910a")


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (masked((B, 1, S, S), "keep", -1.0), "no product"),  # which leaves them a probability
        (masked((B, 1, S, 1), "keep"), "a mask of shape (2, 1, 33, 1)"),
    ],
)
def test_masks_that_stay(graph: Graph, reason: str) -> None:
    out, refused = fused(graph)
    assert count(out, "FlashAttentionScore") == 0 and reason in refused[0]
