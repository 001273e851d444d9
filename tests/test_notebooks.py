"""Every notebook runs afresh, and prints the figures that are kept in it.

    PYTHONPATH=. python tests/test_notebooks.py [NAME ...]

executes them (or those whose names begin so) and keeps what they give.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
IMAGE = "image/png"


def read(path: Path) -> nbformat.NotebookNode:
    """A notebook that is what its format says."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def execute(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook, executed in a folder by a kernel that imports this checkout."""
    notebook = read(path)
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where)
    given = os.environ.get("PYTHONPATH")
    paths = os.pathsep.join([str(ROOT), *([given] if given else [])])
    client.execute(env={**os.environ, "PYTHONPATH": paths})
    return notebook


def printed(notebook: nbformat.NotebookNode) -> list[str]:
    """What each code cell printed and how many pictures it drew."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            streams = [o for o in cell.outputs if o.output_type == "stream"]
            assert all(o.name == "stdout" for o in streams), cell.source  # no warnings
            pictures = sum(IMAGE in o.get("data", {}) for o in cell.outputs)
            found.append("".join(o.text for o in streams) + f"[{pictures} pictures]")
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_gives_what_it_keeps(path: Path, tmp_path: Path) -> None:
    assert printed(execute(path, tmp_path)) == printed(read(path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_as_readers_expect(path: Path) -> None:
    """A numbered title, pictures and figures kept, two exercises at the end."""
    notebook = read(path)
    assert notebook.cells[0].source.startswith(f"# {path.name[:2]} ")
    exercises = notebook.cells[-1].source
    assert "## Exercises" in exercises and re.findall(r"^(\d)\. ", exercises, re.M) == ["1", "2"]
    kept = "".join(printed(notebook))
    assert kept.count("[1 pictures]") >= 2 and re.search(r"\d", kept)
    assert str(ROOT) not in path.read_text(encoding="utf-8")


def test_nine_notebooks() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{n:02}" for n in range(1, 10)]


def keep(path: Path) -> None:
    """Execute a notebook and keep its outputs, without what changes from run to run."""
    notebook = execute(path, path.parent)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for chosen in NOTEBOOKS:
        if not sys.argv[1:] or chosen.name.startswith(tuple(sys.argv[1:])):
            keep(chosen)
            print(chosen.name)
