"""`npusim sweep`, `npusim search`, `npusim experiments`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npusim.cli import main
from npusim.explore.sweep import engines
from npusim.explore.sweep.store import read_rows

YAML = """
description: a trial
workloads: [gemm-1024]
sweep:
  hbm.bandwidth: [0.3 TB/s, 1.2 TB/s]
  core.ub.size: [32, 256 KiB]
metrics: [latency_us, area_mm2]
plots: [{x: hbm.bandwidth, y: latency_us, by: core.ub.size}]
search: {objectives: {latency_us: min, area_mm2: min}, trials: 3}
"""


@pytest.fixture
def experiment(tmp_path: Path) -> str:
    path = tmp_path / "trial.yaml"
    path.write_text(YAML)
    return str(path)


def test_sweep(experiment: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["sweep", experiment, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "300 GB/s" in text and "2 of 4 points failed; the first: " in text
    assert max(map(len, text.replace(str(out), "out").splitlines())) <= 100
    assert {p.name for p in out.iterdir()} == {"rows.csv", "rows.parquet", "plot1.png"}
    assert len(read_rows(out / "rows.csv")) == 4
    assert main(["sweep", experiment, "--out", str(out)]) == 2
    assert "add --resume" in capsys.readouterr().err
    assert main(["sweep", experiment, "--out", str(out), "--resume"]) == 0


def test_interrupted(
    experiment: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = engines.Evaluator.row

    def row(self: Any, job: Any) -> Any:
        if job.point.get("hbm.bandwidth") > 1e12:
            raise KeyboardInterrupt
        return whole(self, job)

    monkeypatch.setattr(engines.Evaluator, "row", row)
    assert main(["sweep", experiment, "--out", str(tmp_path / "out")]) == 130
    assert "interrupted: 2 of 4 points" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(["sweep", experiment, "--out", str(tmp_path / "out"), "--resume"]) == 0
    assert len(read_rows(tmp_path / "out" / "rows.csv")) == 4


def test_many_points_ask_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "many.yaml"
    path.write_text(
        "workloads: [gemm-1024]\n"
        "sweep:\n"
        "  clock: {range: [0.8 GHz, 1.2 GHz], steps: 500}\n"
        "  hbm.bandwidth: {range: [1 TB/s, 2 TB/s], steps: 500}\n"
    )
    assert main(["sweep", str(path), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "250000 points, about " in error and "add --yes" in error


def test_search(experiment: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["search", experiment, "--out", str(out), "-j", "2"]) == 0
    text = capsys.readouterr().out
    assert "on the front" in text and "area_mm2" in text
    names = {p.name for p in out.iterdir()}
    assert {"search.db", "trials.csv", "front.csv"} <= names
    assert main(["search", experiment, "--out", str(out), "--trials", "6"]) == 0
    assert "trials, " in capsys.readouterr().out


def test_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiments"]) == 0
    text = capsys.readouterr().out
    assert "hbm-bandwidth" in text and "batch" in text


@pytest.mark.parametrize("command", ["sweep", "search"])
def test_errors(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "e.yaml"
    path.write_text("workloads: [resnet5]\n")
    assert main([command, str(path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 3 and "did you mean resnet50?" in error
