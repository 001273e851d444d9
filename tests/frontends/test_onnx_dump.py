"""Graphs at any stage as ONNX files to look at."""

from __future__ import annotations

import onnx
import pytest

from npusim.chip import load_chip
from npusim.compiler import CompileOptions, compile_watched
from npusim.frontends.onnx_dump import DOMAIN, dump_onnx
from npusim.ir import Graph
from npusim.models import build_model


@pytest.mark.parametrize(
    ("model", "sizes"), [("resnet18", {"height": 32, "width": 32}), ("bert-tiny", {})]
)
def test_every_stage_is_a_valid_file(model: str, sizes: dict[str, int]) -> None:
    stages: list[Graph] = []
    graph = build_model(model, **sizes)
    compile_watched(
        graph, load_chip("ascend910a"), CompileOptions(), lambda graph, _: stages.append(graph)
    )
    for stage in stages:
        proto = dump_onnx(stage)
        assert [n.name for n in proto.graph.node] == [n.name for n in stage.nodes]
        assert len(proto.SerializeToString()) < 1_000_000  # no weights
        onnx.load_model_from_string(proto.SerializeToString())
    assert not any(n.domain for n in dump_onnx(stages[0]).graph.node)
    own = [n for n in dump_onnx(stages[-1]).graph.node if n.domain == DOMAIN]
    assert any("+" in n.op_type for n in own)
    if model == "resnet18":
        conv = next(n for n in own if n.op_type.startswith("Conv"))
        layouts = {a.name: a.s for a in conv.attribute}["layouts"]
        assert b"NC1HWC0" in layouts and b"FRACTAL_Z" in layouts
