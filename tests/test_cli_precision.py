"""`npusim precision`, and the options of precision that other commands have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npusim.cli import main

SMALL = ["resnet18", "--shape", "height=32", "--shape", "width=32"]


@pytest.mark.parametrize(("chip", "modes", "tasks"), [("ascend910a", 4, 3), ("ascend910b2", 7, 3)])
def test_compares_the_modes_of_a_chip(
    chip: str, modes: int, tasks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.json"
    assert main(["precision", *SMALL, "--chip", chip, "--tensors", "--json", str(path)]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    assert "Precision modes" in text and "Tensors in execution order" in text
    found = json.loads(path.read_text())["modes"]
    assert len(found) == modes and found[0]["mode"] == "must_keep_origin_dtype"
    assert len({m["us"] for m in found if not m["same_as"]}) == tasks
    assert found[0]["casts"] == 0
    for m in found:
        assert m["worst"]["error"] == max(t["error"] for t in m["tensors"])
        assert m["worst_output"]["output"] and m["jump"] is None
        assert (
            m["worst"]["error"] < {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}[m["narrow"]]
        )
    assert "must_keep_origin_dtype: Conv in float32" in text or chip != "ascend910a"


def test_a_mode_and_lists_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = tmp_path / "ops_info.json"
    lists.write_text('{"black-list": {"to-add": ["SoftmaxV2"]}}')
    options = ["--precision-mode", "allow_mix_precision", "--modify-mixlist", str(lists)]
    assert main(["run", "bert-tiny", "--timing-only", *options]) == 0
    text = capsys.readouterr().out
    assert "allow_mix_precision" in text and "mixlist" in text
    assert main(["compile", "bert-tiny", *options]) == 0
    assert "allow_mix_precision" in capsys.readouterr().out
    options[1] = "force_fp16"
    assert main(["run", "bert-tiny", "--timing-only", *options]) == 2
    assert "which has no operator lists" in capsys.readouterr().err
    assert main(["precision", "bert-tiny", "--modify-mixlist", str(lists)]) == 0


def test_origin_types_are_judged_as_fp32(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", *SMALL, "--chip", "ascend910b2", "--check", "--precision-mode"]
    assert main([*command, "must_keep_origin_dtype", "-q"]) == 0
    assert "relative error at most" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [
        "run m --precision fp16 --precision-mode force_fp16",
        "run m --precision-mode force_fp32",
        "run resnet18 --precision-mode allow_mix_precision_bf16",
        "precision resnet18 --precision fp16",
        "precision resnet18 --modify-mixlist none.json",
        "precision resnet81",
    ],
)
def test_user_errors(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 3
