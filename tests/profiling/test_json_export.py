"""The JSON of a run: its keys are a promise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from npusim.profiling.files import json_text
from npusim.profiling.json_export import result_json
from npusim.timeline import TensorCheck

TOP = [
    "npusim_version", "chip", "workload", "batch", "precision", "options", "total_cycles",
    "total_time_us", "throughput_per_s", "achieved_tflops", "achieved_gbps", "steps", "partial",
    "run_by", "ops", "totals", "host", "memory",
    "check", "sanitizer", "simulator",
]  # fmt: skip
OP = [
    "name", "op_type", "kernel", "core_type", "block_dim", "start_us", "duration_us", "bound",
    "bound_share", "roofline_us", "flops", "bytes_hbm", "bytes_l2", "pipes",
    "stream", "waited_us", "queued_us", "starved_us", "step",
]  # fmt: skip
PIPES = ["cube", "vector", "scalar", "mte1", "mte2", "mte3", "fixp"]


def test_keys(make_result) -> None:
    data = result_json(make_result(check={"logits": TensorCheck(1e-3, 1e-2, 0.9999)}))
    assert list(data) == TOP
    assert all(list(op) == OP for op in data["ops"])
    assert list(data["ops"][0]["pipes"]) == PIPES
    assert list(data["memory"]) == ["peak_bytes", "weight_bytes", "activation_bytes"]
    assert data["check"] == {"logits": {"max_abs_err": 1e-3, "max_rel_err": 1e-2, "cosine": 0.9999}}
    assert list(data["simulator"]) == ["wall_s", "events", "events_per_s", "computing_s"]


def test_values(make_result) -> None:
    result = make_result()
    data = result_json(result)
    first = data["ops"][0]
    assert first["duration_us"] == pytest.approx(44_400 / 0.9e3)
    assert first["pipes"]["cube"] == pytest.approx(19_700 / 0.9e3)
    assert first["pipes"]["fixp"] == 0.0
    assert data["throughput_per_s"] == pytest.approx(1e6 / data["total_time_us"])
    assert json.loads(json_text(result)) == data


def test_only_plain_types(make_result) -> None:
    options = {
        "n": np.int64(3),
        "x": np.float32(0.5),
        "dims": (1, 2),
        "file": Path("a/b"),
        "on": True,
    }
    check = {"logits": TensorCheck(float("inf"), float("nan"), 1.0)}
    result = replace(make_result(check=check), options=options)
    data = json.loads(json_text(result))
    assert data["options"] == {"n": 3, "x": 0.5, "dims": [1, 2], "file": "a/b", "on": True}
    assert data["check"]["logits"] == {"max_abs_err": None, "max_rel_err": None, "cosine": 1.0}


def test_what_json_cannot_hold_is_refused(make_result) -> None:
    with pytest.raises(TypeError, match="has no form in JSON"):
        result_json(replace(make_result(), options={"f": object()}))
