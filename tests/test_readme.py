"""The code, chip and commands of the README and the guides work as they stand there."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from npusim import cli

TESTS = Path(__file__).resolve().parent
PAGES = ("README.md", "docs/run.md", "docs/extending.md", "docs/sanitizer.md")
README = "\n".join((TESTS.parent / page).read_text(encoding="utf-8") for page in PAGES)


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, over all pages."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """The `npusim …` lines of every shell block that has any; a later one may need an earlier."""
    found = [[s for s in b.splitlines() if s.startswith("npusim ")] for b in blocks("bash")]
    return [lines for lines in found if lines]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the README speaks of: its chip, a model, an .ini, a profile."""
    path = tmp_path_factory.mktemp("readme")
    for block in blocks("yaml"):
        (path / block.splitlines()[0].removeprefix("# ")).write_text(block, encoding="utf-8")
    shutil.copy(TESTS / "data" / "bert_torch_tiny.onnx", path / "model.onnx")
    shutil.copy(TESTS / "chip" / "ascend910a.ini", path / "Ascend910A.ini")
    figures = TESTS.parent / "configs" / "validation" / "ascend910b4.csv"
    shutil.copy(figures, path / "profile.csv")
    return path


def test_finds_what_it_looks_for(folder: Path) -> None:
    assert sum(map(len, commands())) > 20 and len(blocks("python")) > 2
    assert (folder / "my_chip.yaml").is_file()


@pytest.mark.parametrize("lines", commands(), ids=lambda lines: lines[0])
def test_commands(
    lines: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))  # what O3 finds
    for line in lines:
        assert cli.main(shlex.split(line, comments=True)[1:]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: str(code.count("\n")))
def test_python(code: str, folder: Path) -> None:
    """In a process of its own: the examples register operators and kernels."""
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", code], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_sanitizers_example(tmp_path: Path) -> None:
    """Its output is the one that the page shows."""
    page = (TESTS.parent / "docs" / "sanitizer.md").read_text(encoding="utf-8")
    code, output, *_ = re.findall(
        r"^```(?:python|text)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL
    )
    (tmp_path / "add_one.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "add_one.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == (output, "")


def test_paths_exist() -> None:
    paths = re.findall(r"`((?:npusim|benchmarks|configs|tests|workloads)/[\w/.]*)`", README)
    assert len(paths) > 15
    missing = [p for p in paths if not (TESTS.parent / p).exists()]
    assert not missing
