"""Requests of different shapes: each compiled once, one table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npusim.chip import load_chip
from npusim.cli import main
from npusim.compiler import CompileOptions
from npusim.errors import ModelError
from npusim.frontends.workload import read_workload
from npusim.requests import run_requests


def test_a_shape_is_compiled_once() -> None:
    shapes = [{"x": (2, 64)}, {"x": (4, 64)}, {"x": (2, 64)}]
    found = run_requests("softmax", shapes, load_chip("ascend910a"), CompileOptions())
    assert [r.compile_s is None for r in found] == [False, False, True]
    assert [next(iter(r.result.outputs.values())).shape for r in found] == [
        (2, 64),
        (4, 64),
        (2, 64),
    ]
    times = [r.result.timeline.total_cycles for r in found]
    assert times[0] == times[2]


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "three.yaml"
    path.write_text(
        "source: softmax\nprecision: fp32\nrequests:\n"
        "  - {x: [8, 64]}\n  - {x: [2, 64]}\n  - {x: [8, 64]}\n"
    )
    return path


def test_a_workload_of_requests(
    workload: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["run", str(workload), "--timing-only", "--json", str(tmp_path / "r.json")]) == 0
    out = capsys.readouterr().out
    assert "3, of 2 shapes" in out and out.count("cached") == 1 and "x=2,64" in out
    data = json.loads((tmp_path / "r.json").read_text())
    assert [d["shapes"]["x"][0] for d in data] == [8, 2, 8]
    assert data[0]["run"]["precision"] == "fp32" and data[2]["compile_s"] is None


def test_what_requests_refuse(workload: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["run", str(workload), "--check"]) == 2
    assert "which lists 3 requests" in capsys.readouterr().err
    workload.write_text("source: softmax\nrequests: [{q: [8, 64]}]\n")
    with pytest.raises(ModelError, match="q"):
        read_workload(workload)
