"""FRACTAL_NZ from product to product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from compiling import CHIPS, check_run, compiled, context, count, graph_of, kinds, passed

from npusim import api
from npusim.compiler import CompileOptions, compile_watched
from npusim.compiler.checks import check_graph
from npusim.compiler.passes.heavy_format import propagate_fractals
from npusim.compiler.passes.layout import assign_layouts
from npusim.compiler.passes.trans_matmul import fuse_matmul_transdata
from npusim.compiler.passes.trans_motion import move_transdata
from npusim.ir import DType, Graph, Layout, Node, Tensor, verify
from npusim.models.builder import GraphBuilder

HALF = DType.FLOAT16


def _layer(g: GraphBuilder, x: str, name: str, n: int) -> str:
    k = g.shape(x)[-1]
    y = g.node("MatMul", f"{name}_product", x, g.weight(f"{name}_w", (k, n), 1 / k**0.5))
    return g.node("Add", f"{name}_sum", y, g.weight(f"{name}_b", (n,), 0.1))


def _mlp(g: GraphBuilder, rows: int = 128, outside: bool = False) -> str:
    """Product, Gelu, product, wide enough for fractals to pay."""
    x = g.input("x", (rows, 768))
    y = g.node("Gelu", "gelu", _layer(g, x, "up", 3072))
    if outside:
        g.output(g.node("Softmax", "other", y))
    return _layer(g, y, "down", 256)


def _layout(graph: Graph, node: str) -> Layout:
    maker = next(n for n in graph.nodes if n.name.startswith(node))
    return graph.tensors[maker.outputs[0]].layout


def _propagated(write: Callable[[GraphBuilder], str], chip: str = "ascend910a") -> Graph:
    def keep(graph: Graph, report: object) -> None:
        graphs[getattr(report, "name", "")] = check_graph(graph)

    graphs: dict[str, Graph] = {}
    compile_watched(graph_of(write), CHIPS[chip], CompileOptions(), keep)
    return graphs["PrunePass"]


def test_a_chain_of_products_stays_in_fractals() -> None:
    graph = _propagated(_mlp)
    assert count(graph, "TransData") == 0
    assert _layout(graph, "up") is _layout(graph, "gelu") is Layout.FRACTAL_NZ
    assert _layout(graph, "down") is Layout.ND


def test_it_is_faster() -> None:
    graph, chip = graph_of(_mlp), CHIPS["ascend910a"]
    ends = []
    for off in ((), ("HeavyFormatPropagationPass",)):
        exe = api.compile_graph(graph, chip, options=CompileOptions(disabled=frozenset(off)))
        ends.append(max(o.end for o in api.run(exe, chip, timing_only=True).timeline.ops))
    assert ends[0] < ends[1]


@pytest.mark.parametrize("rows", [128, 100])
def test_numbers(rows: int) -> None:
    """Whole blocks, and rows that would have padding: there Gelu stays in ND."""
    graph = graph_of(lambda g: _mlp(g, rows))
    for tile_level in (False, True):
        exe = check_run(graph, tile_level=tile_level)
    gelu = next(t for t in exe.tasks if t.op_type == "Gelu")
    layout = exe.buffers[gelu.outputs[0]].layout
    assert (layout is Layout.FRACTAL_NZ) <= (rows % 16 == 0)


def test_another_reader_gets_nd() -> None:
    graph = graph_of(lambda g: _mlp(g, outside=True))
    exe = check_run(graph)
    rows = next(t for t in exe.tasks if t.op_type == "ReduceElemwise")  # Softmax and its Cast
    assert exe.buffers[rows.inputs[0]].layout is Layout.ND


def test_a_shared_operand_is_converted_once() -> None:
    """Three products that would each not pay for a TransData pay for one together."""

    def write(g: GraphBuilder, products: int) -> str:
        x = g.node("Softmax", "x", g.input("i", (2048, 768)))
        return g.node("Sum", "y", *(_layer(g, x, f"p{i}", 768) for i in range(products)))

    found = [count(_propagated(lambda g, n=n: write(g, n)), "TransData") for n in (1, 6)]
    assert found[0] <= found[1] <= 1


def test_chips_with_fixp_read_nd() -> None:
    assert count(_propagated(_mlp, "ascend910b2"), "TransData") == 0
    assert _layout(_propagated(_mlp, "ascend910b2"), "gelu") is Layout.ND


# -- a product and its TransData, a node between them ----------------------------------------------


def _graph(between: bool, other: bool = False) -> Graph:
    """MatMul (→ Neg) → TransData to FRACTAL_NZ → Abs."""
    tensors = {
        "x": Tensor("x", (64, 96), HALF),
        "w": Tensor("w", (96, 128), HALF),
        "m": Tensor("m", (64, 128), HALF),
        "n": Tensor("n", (64, 128), HALF),
        "t": Tensor("t", (64, 128), HALF, Layout.FRACTAL_NZ),
        "y": Tensor("y", (64, 128), HALF, Layout.FRACTAL_NZ),
    }
    nodes = [Node("product", "MatMul", ("x", "w"), ("m",))]
    if between or other:
        nodes.append(Node("neg", "Neg", ("m",), ("n",)))
    nodes += [
        Node("trans", "TransData", ("n" if between else "m",), ("t",)),
        Node("abs", "Abs", ("t",), ("y",)),
    ]
    outputs = ["y", *(["n"] if other else [])]
    return verify(Graph("g", nodes, tensors, ["x", "w"], outputs))


def test_a_product_writes_fractals() -> None:
    result = check_graph(passed(fuse_matmul_transdata, _graph(False)))
    assert kinds(result) == ["MatMul", "Abs"] and result.nodes[0].outputs == ("t",)


def test_a_product_that_others_read_does_not() -> None:
    graph = _graph(False, other=True)
    ctx = context(graph)
    assert kinds(fuse_matmul_transdata(graph, ctx)) == kinds(graph)
    assert ctx.decisions[0].reason == "the product is wanted in ND too"


def test_a_transdata_goes_before_a_node_into_the_product() -> None:
    result = check_graph(passed(move_transdata, _graph(True)))
    assert kinds(result) == ["MatMul", "Neg", "Abs"]
    assert result.tensors["m"].layout is Layout.FRACTAL_NZ


def test_ragged_rows_stay() -> None:
    graph = _graph(True)
    for name, t in graph.tensors.items():
        if name != "w":
            graph.tensors[name] = replace(t, shape=(60, t.shape[1]))
    assert "TransData" in kinds(passed(move_transdata, graph))


def test_weights_are_left_alone() -> None:
    """Constants are packed when loaded: nothing to propagate."""
    graph = graph_of(lambda g: _layer(g, g.input("x", (64, 96)), "a", 64))
    laid_out = passed(assign_layouts, graph, precision="fp16")
    assert kinds(passed(propagate_fractals, laid_out)) == kinds(laid_out)
    assert len(compiled(graph).tasks) <= 2
