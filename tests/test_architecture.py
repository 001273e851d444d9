"""The floors of the package: a folder imports only from folders below it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import npusim

ROOT = Path(npusim.__file__).parent
#: Folder → the folders of npusim that it may import from (itself always; errors and data too).
ALLOWED: dict[str, set[str]] = {
    "chip": set(),
    "ir": set(),
    "ops": {"ir"},
    "timeline": set(),
    "program": {"ir", "chip"},
    "kernels": {"program", "ops", "ir", "chip"},
    "models": {"ir", "ops"},
    "frontends": {"ir", "ops", "models"},
    "compiler": {"kernels", "program", "ops", "ir", "chip"},
    "machine": {"program", "chip", "timeline", "ops", "ir"},
    "sanitize": {"machine", "kernels", "program", "ir", "chip"},
    "runtime": {"machine", "program", "timeline", "chip", "ops", "ir"},
    "profiling": {"timeline", "chip"},
    "explore": {
        "profiling",
        "frontends",
        "models",
        "compiler",
        "kernels",
        "machine",
        "program",
        "ops",
        "ir",
        "chip",
        "timeline",
    },
    "acl": {
        "api",
        "runtime",
        "sanitize",
        "frontends",
        "compiler",
        "machine",
        "program",
        "ops",
        "ir",
        "chip",
        "timeline",
    },
}
EVERYWHERE = {"errors", "data", "limits"}


def imported_folders(path: Path) -> set[str]:
    """First-level names of npusim that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "npusim":
                names = [f"npusim.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        else:
            continue
        found |= {n.split(".")[1] for n in names if n.startswith("npusim.")}
    return found


def test_every_folder_has_a_floor() -> None:
    folders = {p.name for p in ROOT.iterdir() if (p / "__init__.py").is_file()}
    assert folders == set(ALLOWED)


@pytest.mark.parametrize("folder", sorted(ALLOWED))
def test_imports_go_down(folder: str) -> None:
    allowed = ALLOWED[folder] | EVERYWHERE | {folder, "__version__"}
    for path in (ROOT / folder).rglob("*.py"):
        above = imported_folders(path) - allowed
        assert not above, f"{path.relative_to(ROOT)} imports {sorted(above)}"


def test_the_machine_alone_knows_simpy() -> None:
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] != "machine":
            assert "import simpy" not in path.read_text(), path
