"""`npusim replay` and `npusim validate`: what they print, write and refuse."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from npusim.cli import main
from npusim.timeline.replayed import ReplayedOp

COMPACT = (
    "net,op_type,block_dim,inputs,outputs,count,median_us\n"
    'vit,MatMul,8,"ND:fp16:256,64;ND:fp16:64,128","ND:fp16:256,128",3,7.5\n'
    'vit,NoSuchOp,8,"ND:fp16:256,64","ND:fp16:256,64",1,22.5\n'
    'bert,MatMul,8,"ND:fp16:128,64;ND:fp16:64,128","ND:fp16:128,128",1,6\n'
)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.csv"
    path.write_text(COMPACT)
    return path


def assert_refused(capsys, *argv: str) -> str:
    """The command ends with 2 and three lines; they are given back."""
    assert main(argv) == 2
    text = capsys.readouterr().err
    assert [line.split(":")[0] for line in text.splitlines()] == ["error", "allowed", "fix"], text
    return text


def test_report_and_json(profile: Path, tmp_path: Path, capsys) -> None:
    target = tmp_path / "out.json"
    line = f"replay {profile} --chip ascend910-30c --json {target}"
    assert main(line.split()) == 0
    out = capsys.readouterr().out
    assert "in sequence" in out and max(map(len, out.splitlines())) <= 100
    assert "NoSuchOp" in out and "44.1 %" in out  # 22.5 of 51 µs
    data = json.loads(target.read_text())
    rows = data["rows"]
    assert [r["op_type"] for r in rows] == ["MatMul", "NoSuchOp", "MatMul"]
    assert {"net", "count", "measured_us", "predicted_us", "bound", "block_dim"} <= set(rows[0])
    assert rows[0]["predicted_us"] > 0 and rows[0]["reason"] is None
    assert rows[1]["predicted_us"] is None and rows[1]["reason"] == "unknown operator type"
    assert data["nets"]["vit"]["coverage"] == pytest.approx(0.5)


def test_what_if(profile: Path, tmp_path: Path, capsys) -> None:
    target = tmp_path / "out.json"
    line = f"replay {profile} --chip ascend910-30c --set scheduler.launch=100us --json {target}"
    assert main([*line.split(), "-q"]) == 0
    assert "the unchanged chip" in capsys.readouterr().out
    row = json.loads(target.read_text())["rows"][0]
    assert row["predicted_us"] > row["unchanged_us"] + 90
    assert main(line.split()) == 0
    assert "speed-up" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", [".png", ".html"])
def test_plot(profile: Path, tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"plot{suffix}"
    assert main(["replay", str(profile), "--chip", "ascend910-30c", "--plot", str(target)]) == 0
    data = target.read_bytes()
    if suffix == ".png":
        assert data.startswith(b"\x89PNG")
    else:
        assert data.count(b"<circle") == 3 and b"MatMul (2)" in data  # two rows, one legend entry


def test_plot_that_cannot_be(profile: Path, monkeypatch, capsys) -> None:
    assert_refused(capsys, "replay", str(profile), "--plot", "x.pdf")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "npusim[plot]" in assert_refused(capsys, "replay", str(profile), "--plot", "x.png")


def test_a_profile_of_another_chip(tmp_path: Path, capsys) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "op,shape,dtype,device,duration_us\n"
        'MatMul,"64,64;64,64 -> 64,64",FLOAT16;FLOAT16,Ascend910B4 (20 AIC/40 AIV),5\n'
    )
    assert "ascend910b4" in assert_refused(capsys, "replay", str(path), "--chip", "toy")
    assert main(["replay", str(path), "--chip", "ascend910b4", "-q"]) == 0
    assert "1 of 1 rows" in capsys.readouterr().out
    variant = tmp_path / "chip.yaml"
    variant.write_text("name: ascend910b4-fitted\ndescription: x\nextends: ascend910b4\n")
    assert main(["replay", str(path), "--chip", str(variant), "-q"]) == 0


def test_broken_or_missing_profiles(tmp_path: Path, capsys) -> None:
    assert_refused(capsys, "replay", str(tmp_path / "no.csv"))
    assert_refused(capsys, "validate", str(tmp_path))
    empty = tmp_path / "empty.csv"
    empty.write_text(COMPACT.splitlines()[0] + "\n")
    assert "no operators" in assert_refused(capsys, "replay", str(empty))


def test_validate_a_file(profile: Path, tmp_path: Path, capsys) -> None:
    page = tmp_path / "accuracy.md"
    assert main(["validate", str(profile), "-o", str(page)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    apart = next(line for line in out.splitlines() if line.startswith("matmul of BERT"))
    total = next(line for line in out.splitlines() if line.startswith("all"))
    assert apart.split()[3] == "1" and total.split()[1] == "2"  # BERT's product is set apart
    assert "## ascend910-30c" in page.read_text()


def test_plot_of_extreme_rows(tmp_path: Path) -> None:
    from npusim.profiling.replay_plot import write_plot

    def row(op_type: str, measured: float, predicted: float | None) -> ReplayedOp:
        return ReplayedOp("n", "", op_type, 1, measured, predicted, "", "HBM", 1.0, 1, 1.0)

    many = [row(f"T{i}", 0.02 * 10**i, 3.0) for i in range(10)]
    target = tmp_path / "p.html"
    write_plot([*many, row("none", 1.0, None)], target, "a <title>")
    text = target.read_text()
    assert "2 other types (2)" in text and "a &lt;title&gt;" in text and "none" not in text
    write_plot([], target, "nothing")
    assert "<svg" in target.read_text()
