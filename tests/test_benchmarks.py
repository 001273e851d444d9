"""What `benchmarks/` computes: simulated times stay as near their references as the README says.

Simulated times are the same on every machine; nothing here measures wall time.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    """A script of benchmarks/, imported as when it is run."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module(request.param)


@pytest.mark.parametrize("script", ["accuracy"], indirect=True)
def test_near_closed_forms_and_measured_chips(script: ModuleType) -> None:
    figures = [*script.closed_forms(), *script.measured_chips()]
    assert len(figures) >= 7
    for figure in figures:
        assert abs(figure.off) <= figure.tolerance, figure


@pytest.mark.parametrize("script", ["accuracy"], indirect=True)
def test_distance_from_a_reference(script: ModuleType) -> None:
    def off(value: float) -> float:
        distance: float = script.Figure("", "", value, "", 1.0, 1.25, 0.1, "").off
        return distance

    assert [off(0.75), off(1.0), off(1.2), off(1.5)] == pytest.approx([-0.25, 0, 0, 0.2])


@pytest.mark.parametrize("script", ["run"], indirect=True)
def test_measures_a_process(script: ModuleType) -> None:
    work = "x = bytearray(100 << 20); print(len(x))"
    done = script.start([sys.executable, "-c", work])
    assert done.output == f"{100 << 20}\n"
    assert done.wall_s > 0 and done.peak_mib > 100
    with pytest.raises(SystemExit, match="ended with 3"):
        script.start([sys.executable, "-c", "raise SystemExit(3)"])


@pytest.mark.parametrize("script", ["tables"], indirect=True)
def test_renews_a_table_of_the_readme(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("a\n<!-- T -->\nold\n<!-- end -->\nb\n")
    sheet = script.Sheet("T", ["x", "y"], [["1", "2"]])
    for _ in range(2):
        script.publish([sheet], "note", tmp_path / "t.md", readme)
        table = "| x | y |\n| --- | --- |\n| 1 | 2 |\n\nnote\n\n"
        assert readme.read_text() == f"a\n<!-- T -->\n\n{table}<!-- end -->\nb\n"
    assert (tmp_path / "t.md").read_text() == f"## T\n\n{table}".rstrip() + "\n"
    with pytest.raises(SystemExit, match="has no <!-- U -->"):
        script.publish([script.Sheet("U", ["x"], [])], "", tmp_path / "u.md", readme)
