"""Reductions and softmax, fused with what is elementwise around them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from compiling import CHIPS, check_run, context, count, graph_of, kinds, same_values
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim import api
from npusim.compiler.options import CompileOptions
from npusim.compiler.passes.reduce_elemwise import fuse_reductions
from npusim.frontends.onnx_dump import dump_onnx
from npusim.ir import DType, Graph, verify
from npusim.ir.printer import format_graph
from npusim.models import random_inputs
from npusim.models.builder import GraphBuilder
from npusim.ops.cann_fused import operators_in

Shape = tuple[int, ...]
Write = Callable[..., str]
ROWS = (300, 96)


def fused(graph: Graph, chip: str = "ascend910a") -> tuple[Graph, list[str]]:
    """The graph after the pass alone, and why it refused what it refused."""
    ctx = context(graph, chip)
    out = verify(fuse_reductions(graph, ctx))
    same_values(graph, out)
    return out, [d.reason for d in ctx.decisions if not d.taken]


def _reduced(g: GraphBuilder, op: str, x: str, keep: int = 1) -> str:
    return g.node(op, f"{op}_{x}", x, g.ints(f"{x}_axes", [-1]), keepdims=keep)


def dot(g: GraphBuilder, shape: Shape = ROWS) -> str:
    y = g.node("Mul", "product", g.input("x", shape), g.input("y", shape))
    return g.node("Sqrt", "root", g.node("Abs", "size", _reduced(g, "ReduceSum", y, 0)))


def variance(g: GraphBuilder, shape: Shape = ROWS) -> str:
    x = g.input("x", shape)
    d = g.node("Sub", "d", x, _reduced(g, "ReduceMean", x))
    return _reduced(g, "ReduceMean", g.node("Pow", "square", d, g.constant("two", 2.0)))


def normalised(g: GraphBuilder, shape: Shape = ROWS) -> str:
    x = g.input("x", shape)
    size = g.node("Max", "size", _reduced(g, "ReduceL2", x), g.constant("least", 1e-3))
    return g.node("Div", "y", x, size)


def shares(g: GraphBuilder, shape: Shape = ROWS) -> str:
    power = g.node("Exp", "power", g.input("x", shape))
    return g.node("Div", "y", power, _reduced(g, "ReduceSum", power))


def masked_softmax(g: GraphBuilder, shape: Shape = (2, 4, 40, 96)) -> str:
    scaled = g.node("Mul", "scaled", g.input("x", shape), g.constant("c", 0.125))
    mask = g.input("mask", (shape[0], *(1,) * (len(shape) - 2), shape[-1]))
    y = g.node("Softmax", "y", g.node("Add", "hidden", scaled, mask), axis=-1)
    return g.node("Mul", "kept", y, g.input("keep", shape))


def hidden_softmax(g: GraphBuilder, shape: Shape = (2, 4, 40, 96)) -> str:
    where = g.input("where", (shape[0], *(1,) * (len(shape) - 2), shape[-1]), DType.BOOL)
    masked = g.node("Where", "masked", where, g.input("x", shape), g.constant("low", -1e4))
    return g.node("Softmax", "y", masked, axis=-1)


PATTERNS = (dot, variance, normalised, shares, masked_softmax, hidden_softmax)


@pytest.mark.parametrize("write", PATTERNS)
@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])
def test_one_kernel(write: Write, chip: str) -> None:
    out, refused = fused(graph_of(write), chip)
    assert kinds(out) == ["ReduceElemwise"] and not refused


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("write", PATTERNS)
def test_values(write: Write, precision: str) -> None:
    """Fused as not fused, at both levels."""
    graph = graph_of(write)
    for chip in ("ascend910a", "ascend910b2"):
        if precision == "bf16" and chip == "ascend910a":
            continue  # has none
        exe = check_run(graph, chip, precision, tile_level=True)
        assert count(exe, "ReduceElemwise") == 1
        inputs = random_inputs(graph)
        apart = api.compile_graph(graph, CHIPS[chip], options=CompileOptions(precision, level=0))
        runs = [api.run(e, CHIPS[chip], inputs=inputs).outputs for e in (exe, apart)]
        for name, want in runs[1].items():
            found = api.compare(runs[0][name], want)
            if precision == "fp32":
                assert found.max_rel_err < 1e-4 or found.max_abs_err < 1e-6
            else:
                assert found.cosine >= 0.999


LENGTHS = st.sampled_from([2, 13, 15, 16, 17, 31, 32, 33, 64, 127, 128, 129, 509, 2048, 6007])


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(PATTERNS), st.sampled_from(["ascend910a", "ascend910b2"]),
    st.sampled_from(["fp32", "fp16"]), st.integers(1, 37), LENGTHS,
)  # fmt: skip
def test_any_rows(write: Write, chip: str, precision: str, m: int, n: int) -> None:
    graph = graph_of(lambda g: write(g, (m, n)))
    check_run(graph, chip, precision, tile_level=True)
    same_values(graph, verify(fuse_reductions(graph, context(graph, chip))))


@pytest.mark.parametrize("seen", ["product", "size"])
def test_what_is_wanted_elsewhere_stays(seen: str) -> None:
    def write(g: GraphBuilder, late: bool) -> str:
        last = dot(g)
        other = g.node("Transpose", "other", seen) if late else seen
        g.output(other)
        return last

    for late, whom in ((True, "1 nodes outside"), (False, "the caller")):
        out, refused = fused(graph_of(lambda g, late=late: write(g, late)))
        assert any(seen in r and whom in r for r in refused), refused
        made = {o for n in out.nodes for o in n.outputs}
        assert seen in made and count(out, "ReduceElemwise") == 1


def test_two_reasons_that_are_told() -> None:
    """Rows that UB does not hold; columns are not rows."""
    out, refused = fused(graph_of(lambda g: dot(g, (4, 70_000))))
    assert "ReduceElemwise: no tiling fits the on-chip buffers" in refused
    assert "Mul" in kinds(out)

    def columns(g: GraphBuilder) -> str:
        y = g.node("Mul", "p", g.input("x", ROWS), g.input("y", ROWS))
        return g.node("ReduceSum", "s", y, g.ints("axes", [0]))

    out, refused = fused(graph_of(columns))
    assert kinds(out) == ["Mul", "ReduceSum"] and "axes (0,)" in refused[0]


def test_what_does_not_pay_stays() -> None:
    """The 910A's select does not repeat: it costs twice as much in fp32."""

    def write(g: GraphBuilder) -> str:
        shape = (8, 12, 256, 256)
        where = g.input("where", (8, 1, 256, 256), DType.BOOL)
        x = g.input("x", shape, DType.FLOAT16)
        y = g.node("Where", "masked", where, x, g.constant("low", -1e4, DType.FLOAT16))
        wide = g.node("Cast", "wide", y, to="float32")
        return g.node("Softmax", "soft", wide, axis=-1)

    graph = graph_of(write)
    ctx = context(graph, "ascend910a")
    out = verify(fuse_reductions(graph, ctx))
    assert kinds(out) == ["Where", "ReduceElemwise"]
    assert any("it would cost" in d.reason for d in ctx.decisions if not d.taken)


def test_it_is_faster() -> None:
    for chip in (CHIPS["ascend910a"], CHIPS["ascend910b2"]):
        for write in PATTERNS[:5]:
            graph = graph_of(write)
            off = CompileOptions("fp32", disabled=frozenset({"TbeReduceElemwiseFusionPass"}))
            exes = [
                api.compile_graph(graph, chip, options=o) for o in (CompileOptions("fp32"), off)
            ]
            one, two = (api.run(e, chip, timing_only=True).timeline.total_cycles for e in exes)
            assert one < two, (chip.name, write.__name__)


def test_softmax_twice_is_one_kernel_and_order_is_kept() -> None:
    def write(g: GraphBuilder) -> str:
        a = g.node("Softmax", "a", g.input("x", (64, 64)))
        b = g.node("Exp", "b", a)
        return g.node("Add", "c", b, g.node("Softmax", "s", b))

    out, _ = fused(graph_of(write))
    assert [s.op_type for s in out.nodes[0].attrs["steps"]] == ["Softmax", "Exp", "Softmax", "Add"]


def test_it_is_named_after_what_it_holds() -> None:
    out, _ = fused(graph_of(masked_softmax))
    node = dump_onnx(out).graph.node[0]
    assert node.op_type == "Mul+Add+Softmax+Mul" and operators_in(out.nodes[0])[2] == "Softmax"
    assert node.attribute[0].strings[1] == b"Add(4, 2)"
    assert "ReduceElemwise(" in str(format_graph(out))
