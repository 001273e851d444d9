"""The built wheel, by itself: an empty environment, an empty folder, no network.

The environment holds the wheel and what its metadata asks for, nothing else: the distributions
of the core dependencies are linked in from the environment that runs the tests, so the test
needs no package index. An undeclared import fails here, and so does data left out of the wheel.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
MAX_CORE_DEPENDENCIES = 8

#: Refuses every connection and name look-up, from the interpreter's start on.
NO_NETWORK = """\
import sys

def _refuse(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        raise RuntimeError(f"no network here: {event}")

sys.addaudithook(_refuse)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    done = subprocess.run(
        [*build, "--outdir", str(folder), str(ROOT)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("npusim-*.whl")
    return path


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel in it, and an empty folder to run in."""

    bin: Path
    site: Path
    folder: Path

    def run(self, program: str, *args: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in the empty folder."""
        environ = {"PATH": str(self.bin), "HOME": str(self.folder), "COLUMNS": "100"}
        return subprocess.run(
            [str(self.bin / program), *args],
            capture_output=True, text=True, cwd=self.folder, env=environ,
        )  # fmt: skip


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel installed in an empty environment that cannot reach a network."""
    root = tmp_path_factory.mktemp("environment")
    venv.create(root, with_pip=False, symlinks=True)
    site = next((root / "lib").glob("python3.*/site-packages"))
    pip = [sys.executable, "-m", "pip", "--python", str(root / "bin" / "python")]
    done = subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for name in closure(core_requirements(wheel)):
        link_distribution(name, site)
    (site / "no_network.py").write_text(NO_NETWORK)
    (site / "no_network.pth").write_text("import no_network\n")
    return Installed(root / "bin", site, tmp_path_factory.mktemp("empty"))


def metadata(wheel: Path) -> Message:
    """The wheel's METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode())


def core_requirements(wheel: Path) -> list[Requirement]:
    """What the wheel needs when no extra is asked for."""
    return needed(metadata(wheel).get_all("Requires-Dist", []))


def needed(requirements: list[str]) -> list[Requirement]:
    """Those that this interpreter needs, without extras."""
    parsed = [Requirement(r) for r in requirements]
    return [r for r in parsed if r.marker is None or r.marker.evaluate({"extra": ""})]


def closure(requirements: list[Requirement]) -> set[str]:
    """Names of the distributions that satisfy the requirements, and theirs in turn."""
    names: set[str] = set()
    todo = list(requirements)
    while todo:
        wanted = todo.pop()
        found = distribution(wanted.name)
        assert wanted.specifier.contains(found.version), f"{wanted}: {found.version} is installed"
        if (name := canonicalize_name(wanted.name)) not in names:
            names.add(name)
            todo += needed(found.requires or [])
    return names


def link_distribution(name: str, site: Path) -> None:
    """Make an installed distribution visible in another site-packages."""
    found = distribution(name)
    for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
        link = site / top
        if not link.exists():
            link.symlink_to(Path(str(found.locate_file(top))))


def test_few_core_dependencies(wheel: Path) -> None:
    names = [r.name for r in core_requirements(wheel)]
    assert "simpy" in names
    assert len(names) <= MAX_CORE_DEPENDENCIES, names


def test_data_and_licence_are_inside(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    shipped = [p for p in (ROOT / "configs").rglob("*.*") if p.suffix in (".yaml", ".csv")]
    shipped += (ROOT / "workloads").rglob("*.yaml")
    shipped += (ROOT / "notebooks").rglob("*.ipynb")
    assert len(shipped) > 20
    assert {f"npusim/_data/{p.relative_to(ROOT).as_posix()}" for p in shipped} <= inside
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in inside)
    assert not [name for name in inside if name.startswith(("tests/", "benchmarks/"))]


def test_environment_is_closed(installed: Installed) -> None:
    """The guards of this file work: no network, and only the core dependencies."""
    connect = "import socket; socket.create_connection(('127.0.0.1', 9))"
    refused = installed.run("python", "-c", connect)
    assert refused.returncode != 0 and "no network here" in refused.stderr
    where = installed.run("python", "-c", "import npusim; print(npusim.__file__)")
    assert Path(where.stdout.strip()).is_relative_to(installed.site)
    assert installed.run("python", "-c", "import pytest").returncode != 0


def test_runs_resnet50(installed: Installed) -> None:
    done = installed.run("npusim", "run", "resnet50", "--timing-only", "-q")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("resnet50 on ascend910a, fp16, batch 1: ")
    assert "bound by" in done.stdout
    assert os.listdir(installed.folder) == []


def test_lists_chips_and_workloads(installed: Installed) -> None:
    for kind, folder in (("chips", "configs/chips"), ("workloads", "workloads")):
        done = installed.run("npusim", kind)
        assert done.returncode == 0, done.stderr
        listed = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
        assert {path.stem for path in (ROOT / folder).glob("*.yaml")} <= listed


def test_validates_with_the_figures_inside(installed: Installed) -> None:
    done = installed.run("npusim", "validate")
    assert done.returncode == 0, done.stderr
    assert "ascend910-30c" in done.stdout and "roofline" in done.stdout
    plot = installed.run("npusim", "replay", "x.csv", "--plot", "x.png")  # without the extra
    assert plot.returncode == 2 and "npusim[plot]" in plot.stderr


def test_copies_the_notebooks_inside(installed: Installed, tmp_path: Path) -> None:
    done = installed.run("npusim", "notebooks", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "pip install 'npusim[notebooks]'" in done.stdout  # jupyterlab is not installed here
    names = {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert names and names == set(os.listdir(tmp_path))
