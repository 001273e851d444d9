"""What joins a node on chip, and what must not."""

from __future__ import annotations

import re

import pytest
from compiling import check_run, count, graph_of, kinds, passed, same_values

from npusim.chip import load_chip
from npusim.compiler.options import CompileContext, CompileOptions
from npusim.compiler.passes.fuse import (
    MAX_CHAIN,
    fuse_bias,
    fuse_conv_epilogues,
    fuse_elementwise,
    fuse_matmul_epilogues,
)
from npusim.ir import Graph
from npusim.models.builder import GraphBuilder


def fuse_epilogues(graph: Graph, ctx: CompileContext) -> Graph:
    """The three passes, in the pipeline's order."""
    for rewrite in (fuse_conv_epilogues, fuse_matmul_epilogues, fuse_elementwise):
        graph = rewrite(graph, ctx)
    return graph


def _matmul(g: GraphBuilder, shape: tuple[int, ...] = (4, 16), n: int = 8) -> str:
    return g.node("MatMul", "m", g.input("x", shape), g.weight("w", (shape[-1], n), 0.3))


def _conv(g: GraphBuilder, co: int = 8) -> str:
    return g.node("Conv", "c", g.input("x", (1, 4, 6, 6)), g.weight("w", (co, 4, 3, 3), 0.2))


# -- bias -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8,), (1, 8)])
@pytest.mark.parametrize("turned", [False, True])
def test_bias(shape: tuple[int, ...], turned: bool) -> None:
    def write(g: GraphBuilder) -> str:
        pair = [_matmul(g), g.weight("b", shape, 1.0)]
        return g.node("Add", "y", *(pair[::-1] if turned else pair))

    graph = graph_of(write)
    result = passed(fuse_bias, graph)
    assert kinds(result) == ["MatMul"] and len(result.nodes[0].inputs) == 3
    same_values(graph, result)
    for chip in ("toy", "ascend910b2"):
        check_run(graph, chip, tile_level=True)


def test_bias_of_a_batch() -> None:
    graph = graph_of(lambda g: g.node("Add", "y", _matmul(g, (3, 4, 16)), g.weight("b", (8,), 1.0)))
    assert kinds(passed(fuse_bias, graph)) == ["MatMul"]
    check_run(graph, tile_level=True)


def test_no_bias() -> None:
    """A column, a tensor that grows the result, an input, a product that is an output."""

    def column(g: GraphBuilder) -> str:
        return g.node("Add", "y", _matmul(g), g.weight("b", (4, 1), 1.0))

    def growing(g: GraphBuilder) -> str:
        return g.node("Add", "y", _matmul(g, n=1), g.weight("b", (8,), 1.0))

    def variable(g: GraphBuilder) -> str:
        return g.node("Add", "y", _matmul(g), g.input("b", (8,)))

    def output(g: GraphBuilder) -> str:
        g.output(_matmul(g))
        return g.node("Add", "y", "m", g.weight("b", (8,), 1.0))

    for write in (column, growing, variable, output):
        graph = graph_of(write)
        assert kinds(passed(fuse_bias, graph)) == ["MatMul", "Add"], write.__name__
        check_run(graph, tile_level=True)


# -- epilogues --------------------------------------------------------------------------------


def _residual(g: GraphBuilder) -> str:
    y = g.node("Add", "sum", g.input("r", (1, 8, 4, 4)), _conv(g))
    return g.node("Relu", "y", y)


def test_residual_and_relu() -> None:
    graph = graph_of(_residual)
    result = passed(fuse_epilogues, graph)
    assert kinds(result) == ["Conv+Add+Relu"]
    assert result.nodes[0].inputs == ("x", "w", "", "r")
    same_values(graph, result)
    check_run(graph, tile_level=True)


def test_fixp_does_relu_only() -> None:
    """The vector cores of the same kernel do the rest."""
    for write, kernel in ((_residual, "Conv2DEpilogue"), (_rectified, "Conv2D")):
        graph = graph_of(write)
        for precision in ("fp16", "fp32"):
            exe = check_run(graph, "ascend910b2", precision, tile_level=True)
            assert [t.call.kernel for t in exe.tasks if t.node.epilogue and t.call] == [kernel]


def _rectified(g: GraphBuilder) -> str:
    return g.node("Relu", "y", _conv(g))


@pytest.mark.parametrize(("l2", "taken"), [("7TB/s", True), ("0.2TB/s", False)])
def test_both_kinds_of_core_only_where_it_pays(l2: str, taken: bool) -> None:
    """Tiles go from core to core through L2: a slow one keeps the kernels apart."""

    def write(g: GraphBuilder) -> str:
        x = g.node("Conv", "c", g.input("x", (8, 64, 28, 28)), g.weight("w", (256, 64, 1, 1), 0.1))
        return g.node("Relu", "y", g.node("Add", "sum", x, g.input("r", (8, 256, 28, 28))))

    graph = graph_of(write)
    chip = load_chip("ascend910b2", [f"l2.bandwidth={l2}"])
    ctx = CompileContext(chip, CompileOptions("fp16"), taken=set(graph.tensors))
    result = fuse_conv_epilogues(graph, ctx)
    decision = ctx.decisions[0]
    assert kinds(result) == (["Conv+Add+Relu"] if taken else ["Conv", "Add", "Relu"])
    assert decision.taken == taken
    assert re.match(r"Conv2DEpilogue (takes it:|would take) \d+ cycles, apart \d+", decision.reason)


def test_the_kernel_stays_the_same() -> None:
    """An Add that the cube's kernel refuses must not move the product to the vector unit."""
    graph = graph_of(lambda g: g.node("Add", "y", _matmul(g), g.input("r", (4, 8))))
    assert kinds(passed(fuse_epilogues, graph, "ascend910b2", "fp32")) == ["MatMul", "Add"]
    exe = check_run(graph, "ascend910b2", "fp32")
    assert [t.call.kernel for t in exe.tasks if t.op_type == "MatMul" and t.call] == ["MatMul"]


def test_clip_becomes_max_and_min() -> None:
    def write(g: GraphBuilder) -> str:
        return g.node("Clip", "y", _conv(g), g.constant("low", 0.0), g.constant("high", 0.5))

    graph = graph_of(write)
    result = passed(fuse_epilogues, graph, precision="fp16")
    assert kinds(result) == ["Conv+Max+Min"]
    same_values(graph, result)
    check_run(graph, tile_level=True)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("op_type", ["Sub", "Div"])
def test_order_of_operands(op_type: str, swapped: bool) -> None:
    """r - f(x) is not f(x) - r."""

    def write(g: GraphBuilder) -> str:
        pair = [g.node("Exp", "e", g.input("x", (3, 40))), g.weight("r", (3, 40), 0.1, 2.0)]
        return g.node(op_type, "y", *(pair[::-1] if swapped else pair))

    graph = graph_of(write)
    fused = kinds(passed(fuse_epilogues, graph))
    assert fused == (["Exp", op_type] if swapped else [f"Exp+{op_type}"])
    check_run(graph, precision="fp32", tile_level=True)


def test_both_operands_the_same() -> None:
    def write(g: GraphBuilder) -> str:
        e = g.node("Exp", "e", g.input("x", (3, 40)))
        return g.node("Mul", "y", e, e)

    graph = graph_of(write)
    assert kinds(passed(fuse_epilogues, graph)) == ["FusedElemwise"]  # no chain: it is read twice
    check_run(graph, precision="fp32")


def test_two_consumers() -> None:
    def write(g: GraphBuilder) -> str:
        c = _conv(g)
        return g.node("Add", "y", g.node("Relu", "a", c), g.node("Exp", "b", c))

    graph = graph_of(write)
    assert kinds(passed(fuse_epilogues, graph)) == ["Conv", "Exp", "Relu+Add"]
    check_run(graph, tile_level=True)


def test_outputs_are_made() -> None:
    def write(g: GraphBuilder) -> str:
        g.output(_conv(g))
        return g.node("Relu", "y", "c")

    graph = graph_of(write)
    assert kinds(passed(fuse_epilogues, graph)) == ["Conv", "Relu"]
    check_run(graph, tile_level=True)


def test_growing_shapes_stay_apart() -> None:
    def write(g: GraphBuilder) -> str:
        return g.node("Add", "y", g.node("Relu", "r", g.input("x", (3, 1))), g.input("z", (3, 5)))

    assert kinds(passed(fuse_epilogues, graph_of(write))) == ["Relu", "Add"]


def test_long_chains_are_cut() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (4, 64))
        for i in range(2 * MAX_CHAIN):
            x = g.node("Tanh" if i % 2 else "Neg", f"n{i}", x)
        return x

    graph = graph_of(write)
    result = passed(fuse_epilogues, graph)
    assert [len(n.epilogue) for n in result.nodes] == [MAX_CHAIN, MAX_CHAIN - 2]
    same_values(graph, result)
    check_run(graph, precision="fp32", tile_level=True)


@pytest.mark.parametrize("tile_level", [False, True])
def test_a_cast_inside_a_chain(tile_level: bool) -> None:
    """Truncation to an integer, and a truth value, survive the fusion."""

    def truncated(g: GraphBuilder) -> str:
        x = g.node("Mul", "wide", g.input("x", (4, 32)), g.constant("c", 5.0))
        x = g.node("Cast", "i", x, to="int32")
        return g.node("Neg", "y", g.node("Cast", "f", x, to="float32"))

    def truth(g: GraphBuilder) -> str:
        x = g.node("Cast", "b", g.node("Relu", "r", g.input("x", (4, 32))), to="bool")
        return g.node("Cast", "y", x, to="float32")

    for write in (truncated, truth):
        graph: Graph = graph_of(write)
        assert len(passed(fuse_epilogues, graph).nodes) == 1
        check_run(graph, precision="fp32", tile_level=tile_level)


def test_an_operand_of_another_rank_is_left_to_its_own_kernel() -> None:
    def write(g: GraphBuilder) -> str:
        x, w = g.input("x", (1, 16, 4, 4)), g.weight("w", (16, 16, 1, 1), 0.2)
        return g.node("Add", "y", g.node("Conv", "c", x, w), g.input("rows", (16, 4, 4)))

    exe = check_run(graph_of(write), tile_level=True)
    assert count(exe, "Conv") == count(exe, "Add") == 1
