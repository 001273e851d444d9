"""`npusim compile`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npusim.cli import main


def test_reports_passes_and_writes_what_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, data, ir = (tmp_path / name for name in ("fusion_result.json", "c.json", "ir"))
    command = [
        "compile", "bert-tiny", "--explain-fusion", "--dump-ir", str(ir),
        "--fusion-result", str(result), "--json", str(data),
    ]  # fmt: skip
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "MatMulBiasAddFusionPass" in text and "Fusions looked at" in text
    assert max(map(len, text.splitlines())) <= 100
    found = json.loads(data.read_text())
    assert found["opt_level"] == "O2" and found["tasks"] > 10
    assert "ub_fusion" in json.loads(result.read_text())["session_and_graph_id_0_0"]
    dumped = sorted(p.name for p in ir.iterdir())
    assert dumped[:2] == ["00_model.onnx", "00_model.txt"]
    assert len(dumped) == 2 * (1 + sum(p["ran"] for p in found["passes"]))


def test_switches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    switches = tmp_path / "fusion_switch.cfg"
    switches.write_text("TbeEltwiseFusionPass:off\nSoftmaxFusionPass:off\n")
    command = ["compile", "bert-tiny", "--disable-pass", "MatMulBiasAddFusionPass"]
    assert main([*command, "--fusion-switch-file", str(switches)]) == 0
    text = capsys.readouterr().out
    assert "MatMulBiasAddFusionPass off, TbeEltwiseFusionPass off" in text
    assert "passes that npusim does not have: SoftmaxFusionPass" in " ".join(text.split())


def test_run_takes_the_same_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "bert-tiny", "--timing-only", "--opt-level", "O0"]) == 0
    assert "O0" in capsys.readouterr().out
    assert main(["run", "bert-tiny", "--timing-only", "--disable-pass", "Nothing"]) == 2
    assert "compiler pass 'Nothing'" in capsys.readouterr().err


def test_small_channels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "c.json"
    stem = ["resnet18", "--enable-small-channel", "--shape", "height=64", "--shape", "width=64"]
    assert main(["compile", *stem, "--explain-fusion", "--json", str(data)]) == 0
    assert "SmallChannel" in capsys.readouterr().out
    (found,) = (
        d for d in json.loads(data.read_text())["fusions"] if d["rewrite"] == "SmallChannel"
    )
    assert found["taken"] and "NC1HWC0" in found["reason"]
    assert main(["run", *stem, "--timing-only"]) == 0
    text = capsys.readouterr().out
    assert "small channel on" in " ".join(text.split())
    assert main(["run", *stem, "--timing-only", "--chip", "ascend910b2"]) == 0
    assert "no kernel for them on ascend910b2" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("kind", ["png", "html"])
def test_memory(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / f"memory.{kind}"
    assert main(["memory", "bert-tiny", "--plot", str(plot)]) == 0
    text = capsys.readouterr().out
    assert "Alive at the peak" in text and "reuse        saves" in text
    assert plot.stat().st_size > 2000
    assert main(["memory", "bert-tiny", "--plot", "x.pdf"]) == 2


def test_what_does_not_fit_says_where_and_what_helps(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["memory", "resnet50", "--batch", "256", "--set", "hbm.size=512MiB"]
    assert main(command) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "MiB too much at 'layer" in lines[0] and "are alive" in lines[0]
    assert "--batch" in lines[2]


def test_streams(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "c.json"
    command = ["compile", "bert-tiny", "--streams", "3", "--explain-fusion", "--json", str(data)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "up to 3 streams" in text and "Streams" in text
    found = json.loads(data.read_text())
    assert any(d["rewrite"] == "Streams" for d in found["fusions"])
    trace = tmp_path / "trace.json"
    run = ["run", "bert-tiny", "--batch", "1", "--streams", "3", "--trace", str(trace)]
    assert main([*run, "--chip", "ascend910b2"]) == 0
    text = capsys.readouterr().out
    assert "streams 3" in text and "waits for events" in text
    assert max(map(len, text.splitlines())) <= 100
    events = json.loads(trace.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"Stream 0", "Stream 1"} <= names
    assert main(["run", "bert-tiny", "--streams", "5000", "--timing-only"]) == 2
    assert "5000 streams on ascend910a" in capsys.readouterr().err
    assert main(["memory", "bert-tiny", "--streams", "3", "--chip", "ascend910b2"]) == 0


def test_o3_searches_tilings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "c.json"
    o3 = ["--opt-level", "O3", "--tiling-cache", str(tmp_path / "tilings"), "--chip", "ascend910b2"]
    assert main(["compile", "bert-tiny", *o3, "--json", str(data)]) == 0
    text = capsys.readouterr().out
    assert "Tilings searched" in text and "0 cached" in text
    assert max(map(len, text.splitlines())) <= 100
    found = json.loads(data.read_text())["tilings"]
    assert found["us_after"] < found["us_before"]
    assert main(["run", "bert-tiny", "--timing-only", *o3]) == 0
    text = capsys.readouterr().out
    assert "Tilings searched" in text and " 0 launches timed" in text
    assert f"{found['us_after']:.1f} µs" in text
    assert main(["run", "bert-tiny", "--timing-only", "-q", *o3]) == 0
    assert "tilings: " in capsys.readouterr().out
    assert main(["memory", "bert-tiny", *o3]) == 0


def test_a_tiling_cache_without_a_search(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "bert-tiny", "--timing-only", "--tiling-cache", "x"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and "--opt-level O2" in lines[0]
