"""The documentation's site builds without a warning, and has what the code has."""

from __future__ import annotations

import argparse
import html
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from npusim.chip.schema import keys
from npusim.cli import make_parser
from npusim.explore.sweep import METRICS
from npusim.explore.sweep.experiment import ExperimentFile
from npusim.frontends.workload import WorkloadFile

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built by this checkout's hooks."""
    folder = tmp_path_factory.mktemp("site")
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def page(site: Path, name: str) -> str:
    """What a page says, without tags."""
    return html.unescape(re.sub(r"<[^>]+>", "", (site / name).read_text(encoding="utf-8")))


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """All commands below a parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield command
                yield from commands(command)


def test_every_command_and_option(site: Path) -> None:
    text = page(site, "reference/cli.html")
    found = list(commands(make_parser()))
    assert len(found) > 15
    for command in found:
        assert command.prog in text
        for action in command._actions:
            assert all(o in text for o in action.option_strings if o not in ("-h", "--help"))


def test_every_key_of_chips_workloads_and_experiments(site: Path) -> None:
    text = page(site, "reference/chip.html")
    plain = [key for key in keys() if "*" not in key]
    assert len(plain) > 100 and not [key for key in plain if key not in text]
    text = page(site, "reference/workload.html")
    assert not [key for key in WorkloadFile.model_fields if key not in text]
    for name in ("experiments.html", "reference/experiment.html"):
        text = page(site, name)
        assert not [key for key in (*ExperimentFile.model_fields, *METRICS) if key not in text]
    assert "compile.reuse_memory" in text and "workloads.shapes" in text


def test_every_notebook_with_its_pictures(site: Path) -> None:
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
    for path in notebooks:
        made = (site / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8")
        pictures = re.findall(rf'src="({path.stem}-\d+\.png)"', made)
        assert len(pictures) >= 2 and "Exercises" in made
        assert all((site / "notebooks" / name).is_file() for name in pictures)


def test_pages_need_no_network(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|img)[^>]+src="(?:https?:)?//', text), path
        assert not re.search(r'<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="https?:', text)
        assert not re.search(r'<link[^>]+href="https?:[^>]+rel="(?:stylesheet|preconnect)"', text)
