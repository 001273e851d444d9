"""The scripts of `examples/` run, and show what they say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_three_streams(capsys: pytest.CaptureFixture[str]) -> None:
    """Overlap saves time; the missing event saves a little more and spoils the results."""
    runpy.run_path(str(EXAMPLES / "three_streams.py"), run_name="__main__")
    one, three, without = (line.split() for line in capsys.readouterr().out.splitlines())
    assert one[-1] == three[-1] == "right" and without[-1] == "WRONG"
    assert float(three[2]) < 0.6 * float(one[2])
    assert float(without[4]) < float(three[2])


def test_every_example_is_run_here() -> None:
    assert [path.name for path in sorted(EXAMPLES.glob("*.py"))] == ["three_streams.py"]
