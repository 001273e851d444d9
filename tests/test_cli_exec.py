"""`npusim run --exec …`: what it prints and writes, options that contradict, Ctrl-C."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from npusim.cli import main

RUN = ["run", "bert-tiny", "--timing-only"]


def test_eager_mode_tells_host_and_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--exec", "eager", "--steps", "2"]) == 0
    out = capsys.readouterr().out
    for text in ("eager, op by op, 2 steps", "host-bound", "nothing queued: the host", "gap"):
        assert text in out


def test_the_numbers_of_several_steps_are_those_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--exec", "graph", "--sink-size", "3", "--check", "-q"]
    assert main(["run", "bert-tiny", *options]) == 0
    out = capsys.readouterr().out
    assert "graph, 3 steps a launch, 3 steps" in out
    assert "check passed" in out


def test_json_and_trace_have_the_host(tmp_path: Path) -> None:
    files = ["--json", str(tmp_path / "run.json"), "--trace", str(tmp_path / "trace.json")]
    assert main([*RUN, "--exec", "eager", *files, "-q"]) == 0
    run = json.loads((tmp_path / "run.json").read_text())
    host = run["host"]
    parts = host["busy_us"] + host["queue_full_us"] + host["waiting_us"]
    assert parts == pytest.approx(run["total_time_us"])
    idle = sum(host["bubbles_us"].values())
    assert host["device_busy_us"] + idle == pytest.approx(run["total_time_us"])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {"Host", "Device (ascend910a)"} <= names


def test_a_summary_keeps_sums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    options = ["--steps", "30", "--timeline", "summary", "--json", str(path)]
    assert main([*RUN, *options]) == 0
    assert "By operator type" in capsys.readouterr().out
    run = json.loads(path.read_text())
    assert run["ops"] == []
    assert run["steps"] == 30
    assert all(totals["count"] % 30 == 0 for totals in run["totals"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sink-size", "4"], "sink size 4 without a graph"),
        (["--exec", "eager", "--sink-size", "4"], "sink size 4 without a graph"),
        (["--timeline", "summary", "--trace", "t.json"], "a trace needs every op"),
    ],
)
def test_contradictions_are_errors(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 3


def test_ctrl_c_leaves_the_timeline_so_far(tmp_path: Path) -> None:
    """The signal comes while the hundredth task ends."""
    path = tmp_path / "run.json"
    code = (
        "import os, signal, sys\n"
        "from npusim import cli\n"
        "from npusim.machine import run\n"
        "taken = run.KeepAll.add\n"
        "def add(self, record):\n"
        "    taken(self, record)\n"
        "    if self.count == 100:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "run.KeepAll.add = add\n"
        f"sys.exit(cli.main({[*RUN, '--steps', '100000', '--json', str(path)]!r}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert "marked as partial" in done.stderr
    run = json.loads(path.read_text())
    assert run["partial"] is True
    assert len(run["ops"]) >= 100
