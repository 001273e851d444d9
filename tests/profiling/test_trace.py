"""The Perfetto trace: names, tracks that do not overlap, counters."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from npusim.errors import AccountingError
from npusim.profiling.trace import DEVICE_PID, write_trace
from npusim.timeline import RunResult, Span


def events(result: RunResult, folder: Path) -> list[dict]:
    path = folder / "trace.json"
    write_trace(result, path)
    return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def names(found: list[dict], kind: str) -> dict[tuple[int, int], str]:
    meta = [e for e in found if e["name"] == f"{kind}_name"]
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in meta}


@pytest.mark.parametrize("clock", [0.68e9, 0.9e9, 1e9, 1.8e9])
@pytest.mark.parametrize("streams", [1, 2])
def test_tracks_are_named_and_never_overlap(make_result, tmp_path, clock, streams) -> None:
    found = events(make_result(clock=clock, streams=streams, spans=True), tmp_path)
    processes, threads = names(found, "process"), names(found, "thread")
    assert set(processes.values()) == {"Device (ascend910a)", "AI Core (/conv1/Conv)"}
    free: dict[tuple[int, int], int] = {}
    for e in (e for e in found if e["ph"] == "X"):
        track = e["pid"], e["tid"]
        start, end = round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000)
        assert track in threads and (e["pid"], 0) in processes
        assert e["tid"] not in (0, e["pid"])
        assert free.get(track, 0) <= start <= end
        free[track] = end
    assert len(free) == streams + 5
    assert set(free) == set(threads)


def test_tasks_carry_what_explains_them(make_result, tmp_path) -> None:
    result = make_result()
    tasks = [e for e in events(result, tmp_path) if e["ph"] == "X"]
    assert [e["name"] for e in tasks] == [op.name for op in result.timeline.ops]
    args = tasks[0]["args"]
    assert (args["kernel"], args["block_dim"], args["bound"]) == ("conv2d", 30, "mte1")
    assert args["bytes_hbm"] == result.timeline.ops[0].bytes_hbm


def test_waits_are_slices_and_events_arrows(make_result, tmp_path) -> None:
    result = make_result(streams=2)
    maker, *_ = [op for op in result.timeline.ops if op.stream == 0]
    ops = [
        replace(op, start=op.start + 900, end=op.end + 900, waited=600, queued=300,
                after=(maker.name,)) if op.name == "/maxpool/MaxPool" else op
        for op in result.timeline.ops if op.stream == 0 or op.name == "/maxpool/MaxPool"
    ]  # fmt: skip
    found = events(replace(result, timeline=replace(result.timeline, ops=tuple(ops))), tmp_path)
    waits = [(e["name"], e["dur"], e["tid"]) for e in found if e.get("args", {}).get("before")]
    assert waits == [("EVENT_WAIT", 0.667, 2), ("wait for cores", 0.333, 2)]
    start, end = (e for e in found if e["ph"] in "sf")
    assert (start["ph"], start["tid"], end["ph"], end["tid"]) == ("s", 1, "f", 2)
    assert start["id"] == end["id"] and end["ts"] == 1.0


def test_counters_are_the_rate_of_what_runs_and_end_at_zero(make_result, tmp_path) -> None:
    result = make_result(streams=2)
    found = [e for e in events(result, tmp_path) if e["ph"] == "C" and e["name"] == "HBM"]
    assert [e["ts"] for e in found] == sorted(e["ts"] for e in found)
    assert found[-1]["args"] == {"GB/s": 0}
    moved = sum(a["args"]["GB/s"] * (b["ts"] - a["ts"]) * 1e3 for a, b in pairwise(found))
    assert moved == pytest.approx(sum(op.bytes_hbm for op in result.timeline.ops), rel=1e-3)
    assert {e["pid"] for e in found} == {DEVICE_PID}


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ((Span("cube", "a", 3200, 3210), Span("cube", "b", 3209, 3220)), "b starts at 3209"),
        ((Span("cube", "a", 44_390, 44_401),), "lasts from 44390 to 44401, the op from 0 to 44400"),
    ],
)
def test_wrong_spans_are_refused(make_result, tmp_path, spans, message) -> None:
    result = make_result()
    first, *others = result.timeline.ops
    wrong = replace(result.timeline, ops=(replace(first, spans=spans), *others))
    with pytest.raises(AccountingError, match=message):
        write_trace(replace(result, timeline=wrong), tmp_path / "trace.json")
