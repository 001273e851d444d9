"""The pipeline: levels, switches, reports, and the same numbers whatever is switched off."""

from __future__ import annotations

import numpy as np
import pytest
from compiling import CHIPS

from npusim import api
from npusim.compiler import PASSES, CompileOptions, compile_watched
from npusim.compiler.rewrite import LEVELS, Kind, traffic
from npusim.errors import UnsupportedError
from npusim.ir import Graph
from npusim.models import build_model, random_inputs

MODELS = {
    "resnet18": build_model("resnet18", height=32, width=32),
    "bert-tiny": build_model("bert-tiny"),
    "bert-torch": api.load_model("tests/data/bert_torch_tiny.onnx", batch=1).graph,
}
OPTIONAL = sorted({p.name for p in PASSES if p.kind is not Kind.NEEDED})


def outputs(model: str, precision: str, options: CompileOptions) -> dict[str, np.ndarray]:
    graph = MODELS[model]
    chip = CHIPS["ascend910a"]
    exe = api.compile_graph(graph, chip, options=options)
    return api.run(exe, chip, inputs=random_inputs(graph)).outputs


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("model", MODELS)
def test_numbers_do_not_depend_on_the_level_or_a_pass(model: str, precision: str) -> None:
    want = outputs(model, precision, CompileOptions(precision))
    others = [CompileOptions(precision, level=level) for level in (0, 1)]
    others += [CompileOptions(precision, disabled=frozenset({name})) for name in OPTIONAL]
    tolerance = 2e-5 if precision == "fp32" else 2e-2
    for options in others:
        got = outputs(model, precision, options)
        assert got.keys() == want.keys()
        for name, value in got.items():
            scale = np.abs(want[name]).max()
            np.testing.assert_allclose(value / scale, want[name] / scale, atol=tolerance)


def test_levels_run_more_and_more() -> None:
    graph, chip = MODELS["resnet18"], CHIPS["ascend910a"]
    tasks = []
    for level in (0, 1, 2):
        found = compile_watched(graph, chip, CompileOptions(level=level))
        assert [p.ran for p in found.passes] == [LEVELS[p.kind] <= level for p in found.passes]
        tasks.append(len(found.executable.tasks))
    assert tasks[0] >= tasks[1] > tasks[2]


def test_reports_say_what_changed() -> None:
    graphs: list[Graph] = []
    options = CompileOptions(disabled=frozenset({"TbeEltwiseFusionPass"}))
    found = compile_watched(
        MODELS["resnet18"], CHIPS["ascend910a"], options, lambda graph, report: graphs.append(graph)
    )
    ran = [p for p in found.passes if p.ran]
    assert len(graphs) == len(ran) + 1 and len(ran) == len(found.passes) - 1
    for before, after, report in zip(graphs, graphs[1:], ran, strict=False):
        assert (report.ops_before, report.ops_after) == (len(before.nodes), len(after.nodes))
        assert report.saved_bytes == traffic(before) - traffic(after)
    by_name = {p.name: p for p in found.passes}
    assert by_name["ConvBatchnormFusionPass"].effects == 20
    assert by_name["InsertCastPass"].casts == 2
    assert by_name["InsertTransNodePass"].trans_data == 2


def test_every_decision_has_a_reason() -> None:
    found = compile_watched(MODELS["bert-tiny"], CHIPS["ascend910b2"], CompileOptions())
    assert found.decisions and all(d.reason and len(d.nodes) == 2 for d in found.decisions)
    refused = {d.reason for d in found.decisions if not d.taken}
    assert any("does not take it" in reason for reason in refused)  # FIXP adds nothing


@pytest.mark.parametrize(
    ("name", "match"), [("InsertCastPass", "without it"), ("ConvBatchnormFusion", "did you mean")]
)
def test_passes_that_cannot_be_switched_off(name: str, match: str) -> None:
    options = CompileOptions(disabled=frozenset({name}))
    with pytest.raises(UnsupportedError, match=match):
        compile_watched(MODELS["bert-tiny"], CHIPS["ascend910a"], options)
