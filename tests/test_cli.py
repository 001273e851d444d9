"""The command line: what it prints, what it writes, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from npusim import api
from npusim.cli import main
from npusim.timeline import TensorCheck

INI = Path(__file__).parent / "chip" / "ascend910a.ini"


class FakeApi:
    """Stands in for the functions of npusim.api; keeps the arguments of each call."""

    def __init__(self, result: api.RunResult) -> None:
        self.result = result
        self.loads: list[dict] = []
        self.runs: list[dict] = []
        self.checks: list[dict] = []

    def load_model(self, source, **given):
        self.loads.append({"source": source, **given})
        return SimpleNamespace(graph=None, batch=1, seed=7, precision="fp16", requests=())

    def compile_graph(self, graph, chip, *, options):
        tasks = [SimpleNamespace(name=op.name) for op in self.result.timeline.ops]
        return SimpleNamespace(name="resnet50", tasks=tasks)

    def make_inputs(self, model):
        return {}

    def run(self, exe, chip, **given):
        self.runs.append(given)
        if given.get("progress"):
            given["progress"]("simulate", 1, 2)
        return self.result

    def check(self, model, exe, result, inputs, **given):
        self.checks.append(given)
        return result


@pytest.fixture
def fake(make_result, monkeypatch) -> FakeApi:
    fake = FakeApi(make_result(spans=True))
    for name in ("load_model", "compile_graph", "make_inputs", "run", "check"):
        monkeypatch.setattr(api, name, getattr(fake, name), raising=False)
    return fake


def assert_three_lines(text: str) -> None:
    lines = text.rstrip("\n").split("\n")
    assert [line.split(":")[0] for line in lines] == ["error", "allowed", "fix"], text


# -- run -----------------------------------------------------------------------------------


def test_run_passes_its_options_on(fake, capsys) -> None:
    line = (
        "run resnet50 --chip toy --set hbm.bandwidth=99GB/s --batch 4 --shape x=1,3 --shape y=2 "
        "--input s=1,2 --input r=0.5 --precision bf16 --seed 3 --tile-level --check-all "
        "--detail full --trace-op /fc/Gemm"
    )
    assert main(line.split()) == 0
    assert fake.loads == [
        {
            "source": "resnet50",
            "batch": 4,
            "shapes": {"x": (1, 3), "y": (2,)},
            "seed": 3,
            "precision": "bf16",
            "inputs": {"s": [1, 2], "r": [0.5]},
        }
    ]
    run = fake.runs[0]
    assert (run["tile_level"], run["timing_only"], run["detail"]) == (True, False, "full")
    assert (run["keep_tensors"], run["trace_ops"], run["progress"]) == (True, ["/fc/Gemm"], None)
    assert run["options"]["set"] == ["hbm.bandwidth=99GB/s"]
    assert run["options"]["level"] == "tile"
    assert fake.checks == [{"every_tensor": True}]
    assert "Slowest 6 of 6 ops" in capsys.readouterr().out


def test_quiet_run(fake, capsys) -> None:
    assert main(["run", "resnet50", "--timing-only", "-q"]) == 0
    assert fake.runs[0]["inputs"] is None
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_files(fake, tmp_path, capsys) -> None:
    out, single = tmp_path / "deep" / "out", tmp_path / "run.json"
    assert main(["run", "resnet50", "--out", str(out), "--json", str(single)]) == 0
    assert {path.name for path in out.iterdir()} == {"report.txt", "run.json", "trace.json"}
    assert json.loads(single.read_text())["workload"] == "resnet50"
    assert "Slowest" in (out / "report.txt").read_text()
    assert [run["trace_ops"] for run in fake.runs] == [[], ("/conv1/Conv",)]
    assert fake.runs[1]["timing_only"]


def test_named_trace_ops_need_no_second_run(fake, tmp_path) -> None:
    trace = tmp_path / "t.json"
    assert main(["run", "m", "--trace", str(trace), "--trace-op", "/conv1/Conv", "-q"]) == 0
    assert len(fake.runs) == 1
    assert "AI Core (/conv1/Conv)" in trace.read_text()


def test_a_failing_write_keeps_the_results_and_the_other_files(fake, tmp_path, capsys) -> None:
    trace = tmp_path / "trace.json"
    wrong = tmp_path / "no" / "run.json"
    assert main(["run", "m", "--json", str(wrong), "--trace", str(trace)]) == 2
    out, err = capsys.readouterr()
    assert "Slowest 6 of 6 ops" in out
    assert_three_lines(err)
    assert trace.exists()


def test_a_failed_check_is_exit_code_1(fake, capsys) -> None:
    fake.result.check["logits"] = TensorCheck(1.0, 1.0, 0.5)
    assert main(["run", "resnet50", "--check"]) == 1
    out, err = capsys.readouterr()
    assert "NOT within the limit" in out
    assert err.startswith("check FAILED: logits")


def test_interrupt_is_exit_code_130(fake, monkeypatch, capsys) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "run", interrupted)
    assert main(["run", "resnet50"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    "line",
    [
        "run",
        "frobnicate",
        "chips --foo",
        "run m --shape x",
        "run m --shape x=1,,2",
        "run m --batch 0",
        "run m --precision fp8",
        "run m --time",
        "run m --timing-only --check",
        "run m --timing-only --tile-level",
        "run m --trace-op conv1",
        "run m --set hbm.bandwith=3",
        "run m --set hbm.bandwidth",
        "run m --chip ascend91a",
        "chip show no/such.yaml",
        "chip import no_such.ini",
        "chip import tests",
    ],
)
def test_user_errors_are_three_lines_and_exit_code_2(fake, capsys, line: str) -> None:
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert_three_lines(err)


# -- run, for real -------------------------------------------------------------------------


def test_unknown_workload(capsys) -> None:
    assert main(["run", "resnet5O"]) == 2
    err = capsys.readouterr().err
    assert_three_lines(err)
    assert "resnet50" in err


@pytest.mark.parametrize("content", [b"", b"no onnx model", b"\x08\x07"])
def test_corrupt_onnx(capsys, tmp_path, content: bytes) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    assert main(["run", str(path)]) == 2
    assert_three_lines(capsys.readouterr().err)


# -- the other commands --------------------------------------------------------------------


def test_lists_fit_100_columns(capsys) -> None:
    for line, word in (
        ("chips", "ascend910a"),
        ("workloads", "resnet50"),
        ("ops", "MatMul"),
        ("chip show ascend910a", "hbm.bandwidth"),
        ("chip show toy --sources", "assumed"),
    ):
        assert main(line.split()) == 0
        out = capsys.readouterr().out
        assert word in out
        assert max(map(len, out.splitlines())) <= 100


def test_chip_show_with_a_changed_key(capsys) -> None:
    assert main(["chip", "show", "toy", "--set", "core.ub.size=32KiB"]) == 0
    row = next(r for r in capsys.readouterr().out.splitlines() if r.startswith("core.ub.size"))
    assert row.split()[1:] == ["32", "KiB"]


def test_chip_import(capsys, tmp_path) -> None:
    assert main(["chip", "import", str(INI)]) == 0
    text = capsys.readouterr().out
    path = tmp_path / "out.yaml"
    assert main(["chip", "import", str(INI), "-o", str(path)]) == 0
    assert path.read_text() == text
    assert "32 cores" in capsys.readouterr().out
    assert main(["chip", "show", str(path)]) == 0
    capsys.readouterr()
    assert main(["chip", "import", str(INI), "-o", str(tmp_path / "no" / "out.yaml")]) == 2
    assert_three_lines(capsys.readouterr().err)


def test_help_and_version_import_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from npusim.cli import main\n"
        "try: main(['--version'])\n"
        "except SystemExit as done: assert done.code == 0\n"
        "print(*{'numpy', 'rich', 'onnx', 'pydantic', 'simpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["npusim 0.1.0", ""]


def test_a_closed_pipe_is_no_traceback() -> None:
    code = "import sys; from npusim.cli import main; sys.exit(main(['chip', 'show', 'toy']))"
    command = f'"{sys.executable}" -c "{code}" | true; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
