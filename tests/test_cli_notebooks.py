"""`npusim notebooks`: copies, and never over a user's changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from npusim.cli import main
from npusim.data import data_dir

NAMES = sorted(path.name for path in data_dir("notebooks").glob("*.ipynb"))


def test_copies_all_and_says_how_to_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["notebooks"]) == 0
    folder = tmp_path / "npusim-notebooks"
    assert sorted(path.name for path in folder.iterdir()) == NAMES
    out = capsys.readouterr().out
    assert all(name in out for name in NAMES) and "First steps" in out
    assert out.endswith("jupyter lab npusim-notebooks\n")
    assert main(["notebooks"]) == 0  # the same again: nothing is lost


def test_keeps_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, last = tmp_path / NAMES[0], tmp_path / NAMES[-1]
    last.write_text("mine")
    assert main(["notebooks", str(tmp_path)]) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 3 and str(last) in error[0] and "--force" in error[2]
    assert last.read_text() == "mine" and not first.exists()
    assert main(["notebooks", str(tmp_path), "--force"]) == 0
    assert last.read_bytes() == (data_dir("notebooks") / NAMES[-1]).read_bytes()


def test_a_file_in_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["notebooks", str(tmp_path / "file")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3
