"""Transposes of images: sunk until they cancel, and only where that moves less."""

from __future__ import annotations

from compiling import check_run, count, graph_of, kinds, passed, same_values

from npusim.compiler.passes.transpose_motion import sink_transposes
from npusim.models.builder import GraphBuilder

NHWC, NCHW = [0, 2, 3, 1], [0, 3, 1, 2]


def _conv(g: GraphBuilder, x: str, name: str, co: int = 16) -> str:
    """A convolution of an NHWC image, as exporters of NHWC frameworks write it."""
    x = g.node("Transpose", f"{name}_in", x, perm=NCHW)
    w = g.weight(f"{name}_w", (co, g.shape(x)[1], 3, 3), 0.1)
    x = g.node("Conv", f"{name}_conv", x, w, pads=[1] * 4)
    return g.node("Transpose", name, x, perm=NHWC)


def _norm(g: GraphBuilder, x: str, name: str) -> str:
    """Scale and shift of the channels, then Relu."""
    c = g.shape(x)[3]
    x = g.node("Sub", f"{name}_sub", x, g.weight(f"{name}_mean", (c,), 0.2))
    x = g.node("Mul", f"{name}_mul", x, g.weight(f"{name}_scale", (1, 1, c), 0.1, 1.0))
    return g.node("Relu", name, x)


def test_a_residual_network_keeps_two() -> None:
    def write(g: GraphBuilder) -> str:
        x = _norm(g, _conv(g, g.input("x", (2, 6, 7, 3)), "a"), "na")
        y = _norm(g, _conv(g, x, "b"), "nb")
        x = g.node("Add", "sum", g.node("Clip", "c", y, "", g.constant("six", 6.0)), x)
        x = g.node("Concat", "joined", x, _conv(g, x, "d", 8), axis=-1)
        return _norm(g, x, "y")

    graph = graph_of(write)
    result = passed(sink_transposes, graph)
    assert kinds(result).count("Transpose") == 2  # the input's and the output's
    same_values(graph, result)
    exe = check_run(graph, tile_level=True)
    # The last Sub and Mul stand behind a Concat; the others are in the weights.
    assert [k for k in kinds(exe) if "Conv" in k] == ["Conv+Relu", "Conv+Relu+Min+Add", "Conv"]


def test_pads_and_reductions_are_renumbered() -> None:
    def write(g: GraphBuilder) -> str:
        x = _conv(g, g.input("x", (2, 5, 6, 3)), "a")
        x = g.node("Pad", "pad", x, g.ints("pads", [0, 1, 2, 0, 0, 3, 0, 1]))
        x = g.node("Relu", "relu", _conv(g, x, "b"))
        top = g.node("ReduceMax", "top", x, g.ints("last", [-1]), keepdims=1)
        x = g.node("Sub", "sub", x, top)
        return g.node("ReduceMean", "y", x, g.ints("axes", [1, 2]), keepdims=0)

    graph = graph_of(write)
    result = passed(sink_transposes, graph)
    assert kinds(result).count("Transpose") == 1
    same_values(graph, result)
    check_run(graph)


def test_nothing_to_gain_nothing_changed() -> None:
    def open_end(g: GraphBuilder) -> str:
        return g.node("Relu", "y", _conv(g, g.input("x", (1, 5, 6, 3)), "a"))

    def one_side(g: GraphBuilder) -> str:
        x = _conv(g, g.input("x", (1, 5, 6, 3)), "a")
        return _conv(g, g.node("Add", "add", x, g.input("z", (1, 5, 6, 16))), "y")

    def mixed(g: GraphBuilder) -> str:
        x = _conv(g, g.input("x", (1, 5, 6, 3)), "a")
        x = g.node("ReduceMean", "mean", x, g.ints("axes", [1]), keepdims=0)  # (N, W, C)
        return g.node("Tanh", "y", x)

    for write in (open_end, one_side, mixed):
        graph = graph_of(write)
        assert passed(sink_transposes, graph) is graph


def test_other_permutations_stay() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.node("Transpose", "heads", g.input("x", (2, 8, 4, 16)), perm=[0, 2, 1, 3])
        return g.node("Transpose", "y", g.node("Relu", "relu", x), perm=[0, 2, 1, 3])

    graph = graph_of(write)
    assert count(passed(sink_transposes, graph), "Transpose") == 2
