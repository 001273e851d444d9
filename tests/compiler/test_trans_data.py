"""TransData that cancel, merge, move over elementwise nodes, take a Cast in, or move nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from compiling import (
    CHIPS,
    check_run,
    compiled,
    context,
    count,
    graph_of,
    kinds,
    passed,
    same_values,
)

from npusim import api
from npusim.compiler import CompileOptions, compile_watched
from npusim.compiler.checks import check_graph
from npusim.compiler.passes.layout import assign_layouts
from npusim.compiler.passes.trans_breadth import merge_same_transdata
from npusim.compiler.passes.trans_cast import fuse_trans_cast
from npusim.compiler.passes.trans_motion import move_transdata
from npusim.compiler.passes.trans_symmetry import eliminate_symmetric
from npusim.ir import DType, Graph, Layout, Node, Tensor, verify
from npusim.models.builder import GraphBuilder

SHAPE = (1, 32, 6, 5)


def _pool(g: GraphBuilder, name: str, x: str) -> str:
    """An operator that works in NC1HWC0."""
    return g.node("MaxPool", name, x, kernel_shape=[2, 2])


def _laid_out(write: Callable[[GraphBuilder], str]) -> Graph:
    return passed(assign_layouts, graph_of(write))


def _moved(graph: Graph, precision: str = "fp16") -> Graph:
    result = check_graph(passed(move_transdata, graph, precision=precision))
    same_values(graph, result)
    return result


def _chain(layouts: list[Layout], channels: int = 32, dtype: DType = DType.FLOAT16) -> Graph:
    """x in ND, TransData after TransData, Neg."""
    tensors = {
        f"t{i}": Tensor(f"t{i}", (2, channels, 3, 3), dtype, layout)
        for i, layout in enumerate([Layout.ND, *layouts])
    }
    nodes = [
        Node(f"trans{i}", "TransData", (f"t{i}",), (f"t{i + 1}",)) for i in range(len(layouts))
    ]
    last = f"t{len(layouts)}"
    tensors["y"] = Tensor("y", (2, channels, 3, 3), dtype, layouts[-1])
    nodes.append(Node("neg", "Neg", (last,), ("y",)))
    return verify(Graph("chain", nodes, tensors, ["t0"], ["y"]))


# -- pairs, and copies of one tensor --------------------------------------------------------------


def test_there_and_back() -> None:
    graph = _chain([Layout.NC1HWC0, Layout.ND])
    result = passed(eliminate_symmetric, graph)
    assert result.nodes[-1].inputs == ("t0",)
    graph = _chain([Layout.NC1HWC0, Layout.ND, Layout.NC1HWC0])
    assert passed(eliminate_symmetric, graph).nodes[-1].inputs == ("t1",)


@pytest.mark.parametrize(("channels", "source"), [(32, "t0"), (20, "t2")])
def test_padding_is_written_anew(channels: int, source: str) -> None:
    """What an elementwise node leaves in padding, a TransData there and back would clear."""
    graph = _chain([Layout.ND, Layout.NC1HWC0], channels)
    blocked = Tensor("t0", (2, channels, 3, 3), DType.FLOAT16, Layout.NC1HWC0)
    graph.tensors["t0"] = blocked
    assert passed(eliminate_symmetric, graph).nodes[-1].inputs == (source,)


def test_a_conversion_is_not_undone() -> None:
    graph = _chain([Layout.NC1HWC0, Layout.ND], dtype=DType.FLOAT32)
    graph.tensors["t1"] = Tensor("t1", (2, 32, 3, 3), DType.FLOAT16, Layout.NC1HWC0)
    assert len(passed(eliminate_symmetric, graph).nodes[-1].inputs) == 1
    assert passed(eliminate_symmetric, graph).nodes[-1].inputs == ("t2",)


def test_copies_merge() -> None:
    shape, half = (2, 32, 3, 3), DType.FLOAT16
    tensors = {"x": Tensor("x", shape, half)}
    nodes = []
    for name, layout in (("a", Layout.NC1HWC0), ("b", Layout.NC1HWC0), ("c", Layout.FRACTAL_NZ)):
        tensors[name] = Tensor(name, shape, half, layout)
        tensors[f"{name}_y"] = Tensor(f"{name}_y", shape, half, layout)
        nodes.append(Node(f"{name}_trans", "TransData", ("x",), (name,)))
        nodes.append(Node(f"{name}_neg", "Neg", (name,), (f"{name}_y",)))
    outputs = ["a_y", "b_y", "c_y"]
    result = passed(merge_same_transdata, verify(Graph("g", nodes, tensors, ["x"], outputs)))
    assert count(result, "TransData") == 2
    assert [n.inputs[0] for n in result.nodes if n.op_type == "Neg"] == ["a", "a", "c"]


# -- views ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("channels", "tasks"), [(32, 0), (20, 1)])
def test_pooled_channels_are_a_view(channels: int, tasks: int) -> None:
    """Whole blocks of channels with H = W = 1 lie in NC1HWC0 as in ND."""

    def write(g: GraphBuilder) -> str:
        x = g.node("GlobalAveragePool", "gap", _pool(g, "p", g.input("x", (2, channels, 6, 5))))
        return g.node("Softmax", "y", g.node("Flatten", "f", x), axis=-1)

    for tile_level in (False, True):
        exe = check_run(graph_of(write), tile_level=tile_level)
    assert count(exe, "TransData") == 1 + tasks  # the input's
    softmax = exe.tasks[-1]
    there = exe.buffers[softmax.inputs[0]].address == exe.buffers["gap"].address
    assert there is (tasks == 0)


# -- motion ---------------------------------------------------------------------------------------


def test_hoisted_to_share_one() -> None:
    """x is read in NC1HWC0, and so is Exp(x): Exp works there too."""

    def write(g: GraphBuilder) -> str:
        x = g.node("Softmax", "x", g.input("i", SHAPE))
        return g.node("Add", "y", _pool(g, "a", x), _pool(g, "b", g.node("Exp", "exp", x)))

    graph = _laid_out(write)
    assert count(graph, "TransData") == 3
    result = _moved(graph)
    assert count(result, "TransData") == 2
    exp = next(n for n in result.nodes if n.op_type == "Exp")
    assert result.tensors[exp.outputs[0]].layout is Layout.NC1HWC0
    check_run(graph_of(write), tile_level=True)


def test_sunk_to_share_one() -> None:
    """p is read in ND, and so is Exp(p): Exp works there too."""

    def write(g: GraphBuilder) -> str:
        p = _pool(g, "p", g.input("i", SHAPE))
        exp = g.node("Exp", "exp", p)
        return g.node("Add", "y", g.node("Softmax", "a", p), g.node("Softmax", "b", exp))

    graph = _laid_out(write)
    assert count(graph, "TransData") == 3
    result = _moved(graph)
    assert count(result, "TransData") == 2
    assert result.tensors[result.producers()["y"].inputs[0]].layout is Layout.ND
    check_run(graph_of(write), tile_level=True)


def test_a_constant_of_channels_moves_too() -> None:
    def write(g: GraphBuilder) -> str:
        p = _pool(g, "p", g.input("i", SHAPE))
        scaled = g.node("Mul", "scaled", p, g.weight("w", (32, 1, 1), 1.0))
        scaled = g.node("Add", "half", scaled, g.constant("h", 0.5))
        return g.node("Add", "y", g.node("Softmax", "a", p), g.node("Softmax", "b", scaled))

    graph = _laid_out(write)
    result = _moved(_moved(graph))
    assert count(result, "TransData") <= count(graph, "TransData")
    check_run(graph_of(write), tile_level=True)


def test_ragged_channels_do_not_enter_a_block() -> None:
    """Exp would make ones of the padding: it stays where there is none."""

    def write(g: GraphBuilder) -> str:
        x = g.node("Softmax", "x", g.input("i", (1, 20, 6, 5)))
        return g.node("Add", "y", _pool(g, "a", x), _pool(g, "b", g.node("Exp", "exp", x)))

    result = _moved(_laid_out(write))
    exp = next(n for n in result.nodes if n.op_type == "Exp")
    assert result.tensors[exp.outputs[0]].layout is Layout.ND


def test_other_readers_get_theirs() -> None:
    """A result that is read in both layouts, and is an output, is there in both."""

    def write(g: GraphBuilder) -> str:
        p = _pool(g, "p", g.input("i", SHAPE))
        e = g.node("Exp", "exp", p)
        g.output(e, g.node("Softmax", "a", p), _pool(g, "q", e))
        return g.node("Softmax", "b", e)

    graph = _laid_out(write)
    result = _moved(graph)
    assert result.outputs == graph.outputs
    check_run(graph_of(write), tile_level=True)


def test_a_cast_goes_to_the_narrow_side() -> None:
    """fp32 is made of fp16 in ND after the TransData, not before it."""

    def write(g: GraphBuilder) -> str:
        x = g.input("i", (1, 32, 60, 50), DType.FLOAT16)
        return g.node("Cast", "y", _pool(g, "p", x), to="float32")

    graph = _laid_out(write)
    assert kinds(graph)[-2:] == ["Cast", "TransData"]
    assert kinds(_moved(graph))[-2:] == ["TransData", "Cast"]


def test_every_motion_is_decided_by_cycles() -> None:
    def write(g: GraphBuilder) -> str:
        return g.node("Exp", "y", _pool(g, "p", g.input("i", SHAPE)))

    graph = _laid_out(write)
    ctx = context(graph)
    move_transdata(graph, ctx)
    assert [d.nodes[0] for d in ctx.decisions] and all("cycles" in d.reason for d in ctx.decisions)


# -- conversion -----------------------------------------------------------------------------------


def test_casts_join_at_both_borders() -> None:
    """fp32 in, fp32 out, fp16 in NC1HWC0 inside: two kernels convert layout and type."""
    graph = graph_of(lambda g: _pool(g, "y", g.input("i", (1, 20, 12, 10))))
    for tile_level in (False, True):
        exe = check_run(graph, tile_level=tile_level)
    assert kinds(exe) == ["TransData", "MaxPool", "TransData"]
    first, last = exe.tasks[0], exe.tasks[-1]
    assert first.node.attrs == {"to": "float16"} and last.node.attrs == {"to": "float32"}
    np.testing.assert_equal(exe.buffers[last.outputs[0]].dtype, DType.FLOAT32)


def test_a_cast_that_others_read_stays() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.node("Cast", "c", g.input("i", SHAPE), to="float16")
        return g.node("Concat", "y", g.node("Neg", "n", x), x, axis=0)

    graph = graph_of(write)
    graph.tensors["t"] = Tensor("t", SHAPE, DType.FLOAT16, Layout.NC1HWC0)
    graph.nodes.append(Node("trans", "TransData", ("c",), ("t",)))
    ctx = context(graph)
    assert kinds(fuse_trans_cast(graph, ctx)) == kinds(graph)
    assert ctx.decisions[0].reason == "what is between them is wanted by others"


@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])
def test_faster_with_all_of_them(chip: str) -> None:
    """The passes, off and on: fewer tasks, less time, the same numbers."""

    def write(g: GraphBuilder) -> str:
        x = g.input("x", (1, 3, 30, 30))
        w = g.weight("w", (32, 3, 3, 3), 0.2)
        y = g.node("Conv", "conv", x, w, pads=[1] * 4)
        y = g.node("GlobalAveragePool", "gap", y)
        y = g.node("Flatten", "flat", y)
        return g.node("MatMul", "y", y, g.weight("v", (32, 10), 0.2))

    graph = graph_of(write)
    off = frozenset({"TransDataCastFusionPass", "TransDataMotionPass", "MatmulCastFusionPass"})
    times, tasks = [], []
    for options in (CompileOptions(), CompileOptions(disabled=off)):
        exe = compile_watched(graph, CHIPS[chip], options).executable
        timeline = api.run(exe, CHIPS[chip], timing_only=True).timeline
        times.append(max(op.end for op in timeline.ops))
        tasks.append(len(exe.tasks))
    assert tasks[0] == tasks[1] - 2 and times[0] < times[1]
    assert len(compiled(graph, chip).tasks) == tasks[0]
    check_run(graph, chip, tile_level=True)
