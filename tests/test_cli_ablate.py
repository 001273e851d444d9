"""`npusim ablate`."""

from __future__ import annotations

import json
from pathlib import Path
from xml.dom.minidom import parseString

import pytest

from npusim import cli_ablate
from npusim.cli import main
from npusim.explore import precision_gain
from npusim.explore.ablation import optional_passes
from npusim.profiling.ablation_report import times


@pytest.fixture(autouse=True)
def cache_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_prints_checks_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    data, page, plot = (tmp_path / name for name in ("a.json", "a.md", "a.html"))
    command = ["ablate", "bert-tiny", "--chip", "ascend910b2", "--plot", str(plot)]
    assert main([*command, "--json", str(data), "-o", str(page)]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    lines = [line for line in text.splitlines() if line.startswith(("O0", "+ ", "as O2"))]
    found = json.loads(data.read_text())
    assert len(found["rows"]) == len(optional_passes()) + 5  # fp32, fp16, reuse, O3, the twin
    idle = text[text.index("does nothing here: ") :]
    assert len(lines) + idle.count(",") + 1 == len(found["rows"])
    assert "check       onnxruntime" in text
    assert all(0 < float(r["check"]) < 1e-2 and not r["failed"] for r in found["rows"])
    assert found["rows"][0]["memory_bytes"] > found["rows"][-2]["memory_bytes"]
    assert (tmp_path / "cache" / "npusim" / "tilings").is_dir()
    written = page.read_text()
    assert f"Written by `npusim ablate bert-tiny --chip ascend910b2 -o {page}`" in written
    assert "| + MatMulBiasAddFusionPass |" in written
    svg = plot.read_text()
    picture = parseString(svg[svg.index("<svg") :])
    assert len(picture.getElementsByTagName("rect")) == 3 * len(lines)


def test_a_png(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "a.png"
    assert main(["ablate", "gemm-1024", "--no-check", "--plot", str(plot)]) == 0
    assert "timing only" in capsys.readouterr().out
    assert plot.stat().st_size > 10_000
    assert main(["ablate", "gemm-1024", "--plot", "x.pdf"]) == 2


def test_large_models_are_timed_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ablate", "gemm-4096", "--set", "hbm.size=64MiB"]) == 0
    text = capsys.readouterr().out
    assert "timing only: 137 GFLOP are many to compute (--check does)" in text
    assert "! more than the chip's 64.0 MiB: timed as if it fitted" in text


def test_a_check_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusing(args, model, chip):
        return lambda exe: ("0.5", exe.precision == "fp32"), "a reference"

    monkeypatch.setattr(cli_ablate, "_check_of", refusing)
    assert main(["ablate", "gemm-1024", "--check"]) == 1
    found = capsys.readouterr()
    assert "0.5 ✗" in found.out
    assert found.err == "check failed: gemm-1024, O0, fp32; gemm-1024, as O2, but fp32\n"


def test_the_worked_example(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_ablate, "EXAMPLE", (("gemm-1024", 1),))
    monkeypatch.setattr(precision_gain, "NETS", (("gemm-1024", 1), ("bert-tiny", 2)))
    page, data = tmp_path / "a.md", tmp_path / "a.json"
    assert main(["ablate", "--no-check", "-o", str(page), "--json", str(data)]) == 0
    text = capsys.readouterr().out
    assert text.count("Step by step") == 2 and "precision: fp16: 3–5× the speed" in text
    assert max(map(len, text.splitlines())) <= 100
    written = page.read_text()
    assert written.count("### Published claims") == 2
    assert "## gemm-1024, batch 1, on ascend910b2" in written
    assert "## fp16 beside fp32, on ascend910b2" in written and "| bert-tiny | 2 |" in written
    assert "| cube (≤ 4×) | transfers and memory (≤ 2×) |" in written
    assert [len(a["claims"]) for a in json.loads(data.read_text())] == [2, 2]


@pytest.mark.parametrize(
    "option", [["--batch", "2"], ["--chip", "toy"], ["--plot", "x.html"], ["--check"]]
)
def test_options_of_a_model_without_one(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ablate", *option]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and f"{option[0]} without a model" in lines[0]


def test_times() -> None:
    cases = ((2.0, 2.0), (1000.0, 999.0), (3.0, 2.0), (500.0, 10.0), (9.0, 10.0))
    assert [times(a, b) for a, b in cases] == ["·", "1.001×", "1.50×", "50.0×", "0.90×"]
