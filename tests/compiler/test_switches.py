"""CANN's fusion_switch.cfg and fusion_result.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from npusim.chip import load_chip
from npusim.compiler import CompileOptions, compile_watched
from npusim.compiler.rewrite import Kind, declared_passes
from npusim.compiler.switches import fusion_result, read_switches
from npusim.errors import ModelError
from npusim.models import build_model

CONV, BN, ELTWISE = (
    "TbeConvCommonRules0FusionPass", "ConvBatchnormFusionPass", "TbeEltwiseFusionPass",
)  # fmt: skip


def read(tmp_path: Path, text: str) -> tuple[set[str], tuple[str, ...]]:
    path = tmp_path / "fusion_switch.cfg"
    path.write_text(text)
    found = read_switches(path)
    return set(found.disabled), found.unknown


def test_lines(tmp_path: Path) -> None:
    text = f"# a comment\n{CONV}:off\n\n{BN} : on\nSoftmaxFusionPass:off\n"
    assert read(tmp_path, text) == ({CONV}, ("SoftmaxFusionPass",))


def test_json(tmp_path: Path) -> None:
    text = f'{{"Switch": {{"UBFusion": {{"ALL": "off", "{CONV}": "on"}}}}}}'
    ub = {p.name for p in declared_passes() if p.kind is Kind.UB_FUSION}
    assert read(tmp_path, text) == (ub - {CONV}, ())
    text = f'{{"Switch": {{"GraphFusion": {{"{BN}": "off", "Other": "off"}}}}}}'
    assert read(tmp_path, text) == ({BN}, ("Other",))


@pytest.mark.parametrize(
    "text",
    ["Pass:maybe", "Pass", ":off", "{", '{"Switch": 3}', '{"Switch": {"X": {}}}',
     '{"Switch": {"UBFusion": {"ALL": 1}}}'],
)  # fmt: skip
def test_others_are_errors(tmp_path: Path, text: str) -> None:
    with pytest.raises(ModelError, match=r"fusion_switch\.cfg"):
        read(tmp_path, text)


def test_the_result_counts_as_strings_and_leaves_out_what_is_off() -> None:
    graph = build_model("resnet18", height=32, width=32)
    options = CompileOptions(disabled=frozenset({ELTWISE}))
    result = fusion_result(compile_watched(graph, load_chip("ascend910a"), options).passes)
    (session,) = result.values()
    assert isinstance(session, dict)
    assert session["graph_fusion"][BN] == {"effect_times": "20", "match_times": "20"}
    assert session["ub_fusion"][CONV]["effect_times"] == "17"  # convolutions with ReLU or Add
    assert ELTWISE not in session["ub_fusion"]
