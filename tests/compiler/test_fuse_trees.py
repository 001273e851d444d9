"""Small trees of elementwise operators become one kernel, where a chain cannot say them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from compiling import CHIPS, check_run, context, count, explained, graph_of, kinds, same_values
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim import api
from npusim.compiler.options import CompileOptions
from npusim.compiler.passes.fuse import fuse_elementwise
from npusim.ir import DType, Graph, verify
from npusim.models import random_inputs
from npusim.models.builder import GraphBuilder

Shape = tuple[int, ...]
Write = Callable[..., str]
SHAPE = (64, 130)


def fused(graph: Graph, chip: str = "ascend910a") -> tuple[Graph, list[str]]:
    """The graph after the pass alone, and why it refused what it refused."""
    out, refused = explained(fuse_elementwise, graph, chip)
    same_values(graph, out)
    return out, refused


def meeting(g: GraphBuilder, shape: Shape = SHAPE) -> str:
    """a·b + c·d, the last two a row and a column."""
    a, b = g.input("a", shape), g.input("b", shape)
    c, d = g.input("c", shape[-1:]), g.input("d", (*shape[:-1], 1))
    return g.node("Add", "y", g.node("Mul", "p", a, b), g.node("Mul", "q", c, d))


def gated(g: GraphBuilder, shape: Shape = SHAPE) -> str:
    x = g.node("Add", "biased", g.input("x", shape), g.input("b", shape[-1:]))
    y = g.node("Mul", "gated", x, g.node("Tanh", "gate", x))
    return g.node("Clip", "y", y, g.constant("low", -1.0), g.constant("high", 1.0))


def square(g: GraphBuilder, shape: Shape = SHAPE) -> str:
    d = g.node("Sub", "d", g.input("x", shape), g.input("y", shape))
    return g.node("Mul", "y2", d, d)


def chosen(g: GraphBuilder, shape: Shape = SHAPE) -> str:
    x, y = g.node("Exp", "e", g.input("x", shape)), g.node("Neg", "n", g.input("y", shape))
    bigger = g.node("Greater", "bigger", x, y)
    return g.node("Cast", "narrow", g.node("Where", "w", bigger, x, y), to="float16")


TREES = (meeting, gated, square, chosen)


@pytest.mark.parametrize("write", TREES)
@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])
def test_one_kernel_that_is_faster(write: Write, chip: str) -> None:
    graph = graph_of(write)
    out, refused = fused(graph, chip)
    assert kinds(out) == ["FusedElemwise"] and not refused
    level = (CompileOptions("fp32"), CompileOptions("fp32", level=1))
    exes = [api.compile_graph(graph, CHIPS[chip], options=o) for o in level]
    one, two = (api.run(e, CHIPS[chip], timing_only=True).timeline.total_cycles for e in exes)
    assert one < two


SIZES = st.sampled_from([1, 2, 13, 15, 16, 17, 31, 33, 127, 128, 129, 1031])


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(TREES), st.sampled_from(["ascend910a", "ascend910b2"]),
    st.sampled_from(["fp32", "fp16"]), SIZES, st.one_of(SIZES, st.just(40_009)),
)  # fmt: skip
def test_any_shape(write: Write, chip: str, precision: str, m: int, n: int) -> None:
    """Fused at both levels as not fused; shapes around blocks, and larger than UB."""
    m = min(m, 10**6 // n)  # tile level executes every instruction
    graph = graph_of(lambda g: write(g, (m, n)))
    inputs = random_inputs(graph)
    exe = check_run(graph, chip, precision, tile_level=True, inputs=inputs)
    apart = api.compile_graph(graph, CHIPS[chip], options=CompileOptions(precision, level=0))
    got, want = (api.run(e, CHIPS[chip], inputs=inputs).outputs for e in (exe, apart))
    for name, value in want.items():
        found = api.compare(got[name], value)
        assert found.cosine >= 0.999 if precision == "fp16" else found.max_rel_err < 1e-3


@pytest.mark.parametrize(("late", "whom"), [(True, "1 nodes outside"), (False, "the caller")])
def test_what_is_wanted_elsewhere_stays(late: bool, whom: str) -> None:
    def write(g: GraphBuilder) -> str:
        y = meeting(g)
        g.output(g.node("Transpose", "other", "p") if late else "p")
        return y

    out, refused = fused(graph_of(write))
    assert any(f"p is wanted by {whom}" in r for r in refused)
    assert "p" in {o for n in out.nodes for o in n.outputs}


def test_chains_stay_chains() -> None:
    """With their epilogue, and in the layouts of convolutions, which a tree does not have."""

    def chain(g: GraphBuilder) -> str:
        return g.node("Tanh", "t", g.node("Mul", "m", g.input("x", SHAPE), g.input("y", SHAPE)))

    def conv(g: GraphBuilder) -> str:
        x, w = g.input("x", (1, 16, 8, 8)), g.weight("w", (16, 16, 1, 1), 0.1)
        y = g.node("MaxPool", "pool", g.node("Conv", "c", x, w), kernel_shape=[1, 1])
        return g.node("Add", "sum", g.node("Exp", "e", y), g.node("Tanh", "t", y))

    out, refused = fused(graph_of(chain))
    assert kinds(out) == ["Mul+Tanh"] and not refused
    assert count(fused(graph_of(conv))[0], "FusedElemwise") == 0


def test_reasons_that_are_told() -> None:
    """Types that no vector unit has."""

    def wide(g: GraphBuilder) -> str:
        x = g.node("Neg", "n", g.input("x", SHAPE, DType.INT64))
        return g.node("Add", "y", x, g.node("Abs", "a", g.input("z", SHAPE, DType.INT64)))

    graph = graph_of(wide)
    ctx = context(graph)
    out = verify(fuse_elementwise(graph, ctx))
    assert count(out, "FusedElemwise") == 0
    assert any("int64" in d.reason for d in ctx.decisions if not d.taken)
