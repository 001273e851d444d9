"""`npusim run --sanitize`: a line, or three per finding; the exit code; the JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npusim import api
from npusim.cli import main
from npusim.sanitize import Finding, FindingKind, SanitizeReport, Side

RUN = ["run", "bert-tiny", "--chip", "toy", "--timing-only", "-q"]
FINDING = Finding(
    FindingKind.RAW, "Softmax, block 0", Side("MTE2", "copy_gm 64 B", 1, "writes", "softmax.py:7"),
    Side("V", "exp", 4, "reads", "softmax.py:9"), "UB", 32, 64,
    "set_flag(MTE2, V) after #1 and wait_flag(MTE2, V) before #4", "or so", 3,
)  # fmt: skip


def test_nothing_is_said_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    assert main([*RUN, "--json", str(path)]) == 0
    assert "sanitizer" not in capsys.readouterr().out
    assert json.loads(path.read_text())["sanitizer"] is None


def test_no_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    assert main([*RUN, "--sanitize", "--json", str(path)]) == 0
    data = json.loads(path.read_text())["sanitizer"]
    kernels, streams = data["kernels"], data["streams"]
    assert kernels["findings"] == [] and kernels["instructions"] > 1000
    assert streams["findings"] == []
    assert capsys.readouterr().out.splitlines()[:2] == [
        f"sanitizer: {kernels['launches']} launches of {kernels['kernels']} kernels checked, "
        "no findings",
        f"sanitizer: {streams['entries']} tasks on 1 stream followed, no findings",
    ]


def test_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run goes on, for its figures; the exit code says that something is wrong."""
    report = SanitizeReport(4, 2, 99, (FINDING,))
    monkeypatch.setattr(api, "sanitize", lambda exe, chip, progress: report)
    path = tmp_path / "run.json"
    assert main([*RUN, "--sanitize", "--json", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "sanitizer: 4 launches of 2 kernels checked, 1 finding",
        "read-after-write race: UB bytes 32…95: Softmax, block 0 (3 times)",
        "between: MTE2 writes at #1 copy_gm 64 B (softmax.py:7), "
        "then V reads at #4 exp (softmax.py:9)",
        "missing: set_flag(MTE2, V) after #1 and wait_flag(MTE2, V) before #4; or so",
    ]
    assert lines[4].startswith("sanitizer: ") and lines[5].startswith("bert-tiny on toy")
    (found,) = json.loads(path.read_text())["sanitizer"]["kernels"]["findings"]
    assert (found["kind"], found["start"], found["nbytes"]) == ("read-after-write race", 32, 64)
    assert found["first"] == {
        "actor": "MTE2", "what": "copy_gm 64 B", "index": 1, "access": "writes",
        "source": "softmax.py:7",
    }  # fmt: skip
