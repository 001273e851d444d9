"""`npusim pipeline`."""

from __future__ import annotations

import json
from pathlib import Path
from xml.dom.minidom import parseString

import pytest

from npusim import cli_pipeline
from npusim.cli import main

TINY = str(Path(__file__).parent / "data" / "resnet_torch_tiny.onnx")


def test_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, page, plot = (tmp_path / name for name in ("p.json", "p.md", "p.html"))
    command = ["pipeline", TINY, "--batch", "8", "--prefetch", "2,0", "--image", "640x480"]
    command += ["--workers", "4", "--json", str(data), "-o", str(page), "--plot", str(plot)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    assert "JPEGs of 640×480, 72.0 KiB each" in text
    found = json.loads(data.read_text())
    assert [(r["path"], r["prefetch"]) for r in found["rows"]] == [
        ("DVPP", 0), ("DVPP", 2), ("CPU, 4 workers", 0), ("CPU, 4 workers", 2),
    ]  # fmt: skip
    assert all(f"{r['images_per_s']:,.0f}" in text for r in found["rows"])
    assert [r["bound"] for r in found["rows"]] == ["in turn", "JPEGD", "in turn", "CPU"]
    assert "image preprocessing 4 × faster" in page.read_text()
    svg = plot.read_text()
    boxes = parseString(svg[svg.index("<svg") :]).getElementsByTagName("rect")
    assert len(boxes) == 2 * (4 + 1) + 1


def test_a_chip_without_dvpp(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["pipeline", TINY, "--batch", "4", "--set", "dvpp=null", "--prefetch", "1"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "not described for this chip" in text and "nothing to hold the claim against" in text


def test_the_worked_example(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_pipeline, "EXAMPLE", (TINY, 4))
    cases = (("ascend910a", (640, 480)), ("ascend310", (64, 64)))
    monkeypatch.setattr(cli_pipeline, "EXAMPLE_CASES", cases)
    page, data = tmp_path / "p.md", tmp_path / "p.json"
    assert main(["pipeline", "-o", str(page), "--json", str(data)]) == 0
    capsys.readouterr()
    assert [s["chip"] for s in json.loads(data.read_text())] == ["ascend910a", "ascend310"]
    written = page.read_text()
    assert "images of 64×64, on ascend310" in written and written.count("| DVPP | image pre") == 2


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--workers", "4"], "--workers without a model"),
        (["bert-tiny"], "bert-tiny takes"),
        ([TINY, "--prefetch", "a"], "'a' is not a list such as 0,1,2,4"),
        ([TINY, "--image", "640"], "'640' is not WIDTHxHEIGHT"),
        ([TINY, "--image", "0x9"], "'0x9' is not WIDTHxHEIGHT"),
        ([TINY, "--workers", "0"], "is not a whole number of at least 1"),
        ([TINY, "--plot", "x.pdf"], "x.pdf"),
    ],
)
def test_errors_in_three_lines(
    words: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", *words]) == 2
    error = capsys.readouterr().err
    assert what in error and error.count("\n") == 3, error
