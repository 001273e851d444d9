"""Every pass leaves a graph that says what its operators do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from compiling import CHIPS, graph_of, passed
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import random_graph

from npusim.compiler import CompileOptions, compile_watched
from npusim.compiler.checks import check_graph
from npusim.compiler.passes.layout import assign_layouts
from npusim.errors import GraphError
from npusim.ir import DType, Graph, Layout
from npusim.models import build_model
from npusim.models.builder import GraphBuilder


def _watched(graph: Graph, chip: str, precision: str) -> None:
    compile_watched(
        graph, CHIPS[chip], CompileOptions(precision), lambda g, report: (check_graph(g), None)[1]
    )


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])
@pytest.mark.parametrize("model", ["resnet18", "bert-tiny"])
def test_models(model: str, chip: str, precision: str) -> None:
    sizes = {"height": 32, "width": 32} if model == "resnet18" else {}
    _watched(build_model(model, **sizes), chip, precision)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_graphs(data: st.DataObject) -> None:
    def pick(options: Any) -> Any:
        return options[data.draw(st.integers(0, len(options) - 1))]

    graph = random_graph(pick, data.draw(st.integers(1, 10)))
    chip, precision = data.draw(
        st.sampled_from([("ascend910a", "fp16"), ("ascend910b2", "bf16"), ("toy", "fp32")])
    )
    _watched(graph, chip, precision)


def _pooled(g: GraphBuilder) -> str:
    x = g.node("MaxPool", "p", g.input("x", (1, 32, 6, 6)), kernel_shape=[2, 2])
    return g.node("Relu", "y", x)


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("p", {"shape": (1, 32, 6, 5)}, "is float32"),
        ("p", {"dtype": DType.FLOAT16}, "is float16"),
        ("p", {"layout": Layout.ND}, "one layout for all operands"),
        ("p", {"layout": Layout.FRACTAL_NZ}, "FRACTAL_NZ"),
        ("x", {"layout": Layout.NC1HWC0}, "another layout"),
    ],
)
def test_what_is_wrong_is_found(name: str, change: dict[str, Any], match: str) -> None:
    graph = check_graph(passed(assign_layouts, graph_of(_pooled)))
    graph.tensors[name] = replace(graph.tensors[name], **change)
    with pytest.raises(GraphError, match=match):
        check_graph(graph)
