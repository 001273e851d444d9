"""Two runs beside each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npusim.cli import main
from npusim.profiling.run_diff import OpTime, align, explain


def op(name: str, us: float = 10.0, bound: str = "cube", **pipes: float) -> OpTime:
    return OpTime(name, "Conv", us, bound, 0, pipes)


def names(before: list[OpTime], after: list[OpTime]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [
        (p.before.name if p.before else "", p.after.name if p.after else "", p.merged)
        for p in align(before, after)
    ]


def test_alignment() -> None:
    a = [op("in"), op("conv"), op("relu"), op("add"), op("pool"), op("out")]
    b = [op("in"), op("conv"), op("pool"), op("cast"), op("out")]
    assert names(a, b) == [
        ("in", "in", ()),
        ("conv", "conv", ("relu", "add")),
        ("relu", "", ()),
        ("add", "", ()),
        ("pool", "pool", ()),
        ("", "cast", ()),
        ("out", "out", ()),
    ]
    assert names([op("x")], [op("y")]) == [("x", "", ()), ("", "y", ())]


def test_every_op_is_there_once() -> None:
    a = [op(n) for n in "abcxde"]
    b = [op(n) for n in "daybec"]  # another order
    pairs = align(a, b)
    assert sorted(p.before.name for p in pairs if p.before) == sorted("abcxde")
    assert sorted(p.after.name for p in pairs if p.after) == sorted("daybec")


def test_the_sentence() -> None:
    pair = align([op("c", 10, "cube", mte2=6.1)], [op("c", 8, "HBM", mte2=7.44)])[0]
    assert explain(pair) == (
        "c went from 10.0 µs to 8.00 µs; its MTE2 from 61.0 % to 93.0 % busy; "
        "its bound from cube to HBM"
    )
    assert "only in the second run: 10.0 µs" in explain(align([], [op("n")])[0])


def test_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / f"{level}.json" for level in ("O0", "O2")]
    for path in paths:
        command = ["run", "bert-tiny", "--timing-only", "-q", "--opt-level", path.stem]
        assert main([*command, "--json", str(path)]) == 0
    capsys.readouterr()
    out = tmp_path / "diff.json"
    assert main(["diff", *map(str, paths), "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert "What changed most" in text and "only in the first" in text
    data = json.loads(out.read_text())
    runs = [json.loads(p.read_text()) for p in paths]
    change = sum(o["change_us"] for o in data["ops"])
    took = [sum(o["duration_us"] for o in run["ops"]) for run in runs]
    assert change == pytest.approx(took[1] - took[0])


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"ops": 3}'])
def test_other_files_are_errors(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert main(["diff", str(path), str(path)]) == 2
    assert main(["diff", str(tmp_path / "none.json"), str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 6 and "is no run of npusim" in lines[0]
