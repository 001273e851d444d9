"""`npusim overlap`."""

from __future__ import annotations

import json
from pathlib import Path
from xml.dom.minidom import parseString

import pytest

from npusim import cli_overlap
from npusim.cli import main
from npusim.explore import overlap


def test_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, page, plot = (tmp_path / name for name in ("o.json", "o.md", "o.html"))
    command = ["overlap", "resnet18", "--batch", "2", "--chunks", "6", "--chip", "ascend910b2"]
    command += ["--json", str(data), "-o", str(page), "--plot", str(plot)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    assert "resnet18, fp16, 6 chunks of 2" in text
    (study,) = json.loads(data.read_text())["studies"]
    assert [r["way"] for r in study["rows"]][-1] == "3 streams, pinned"
    assert all(r["way"] in text and r["way"] in page.read_text() for r in study["rows"])
    best = study["rows"][-1]
    assert f"{100 * best['hidden']:.1f} %" in text and 0 < best["utilisation"] < 1
    assert "85 % overlap, NPU utilisation above 90 %" in text
    written = "npusim overlap resnet18 --batch 2 --chunks 6 --chip ascend910b2"
    assert f"Written by `{written} -o {page}`" in page.read_text()
    svg = plot.read_text()
    boxes = parseString(svg[svg.index("<svg") :]).getElementsByTagName("rect")
    assert len(boxes) == 5 * (3 + 3 * 6)


def test_one_stream(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["overlap", "gemm-1024", "--chunks", "2", "--streams", "1"]) == 0
    text = capsys.readouterr().out
    assert "1 stream, pinned" in text and "3 streams" not in text and "streams: " not in text


def test_the_worked_example(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_overlap, "EXAMPLE", (("gemm-1024", 1),))
    monkeypatch.setattr(cli_overlap, "EXAMPLE_CHIPS", ("ascend910a",))
    monkeypatch.setattr(cli_overlap, "MAP_KERNEL", "gemm-1024")
    defaults = overlap.overlap_map.__kwdefaults__
    monkeypatch.setitem(defaults, "ratios", (0.5, 2.0))
    monkeypatch.setitem(defaults, "counts", (2, 8))
    page, plot, data = (tmp_path / name for name in ("o.md", "o.html", "o.json"))
    command = ["overlap", "-o", str(page), "--plot", str(plot), "--json", str(data)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    assert "hidden / NPU busy on ascend910a" in text
    written = page.read_text()
    assert "## Where the claim holds on ascend910a" in written and "| 0.5 |" in written
    assert len(json.loads(data.read_text())["maps"][0]["cells"]) == 4
    svg = plot.read_text()
    assert len(parseString(svg[svg.index("<svg") :]).getElementsByTagName("rect")) == 2 * 4


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--chunks", "4"], "--chunks without a model"),
        (["--chip", "ascend910a"], "--chip without a model"),
        (["gemm-1024", "--chunks", "0"], "is not a whole number of at least 1"),
        (["gemm-1024", "--streams", "2"], "invalid choice: 2"),
        (["gemm-1024", "--plot", "x.pdf"], "x.pdf"),
        (["relu-1gib", "--buffers", "40"], "40 times"),
    ],
)
def test_errors_in_three_lines(
    words: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["overlap", *words]) == 2
    error = capsys.readouterr().err
    assert what in error and error.count("\n") == 3, error
