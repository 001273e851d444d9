"""Searching designs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from npusim.errors import UnsupportedError
from npusim.explore.sweep import ExperimentError
from npusim.explore.sweep.search import Search

DESIGNS: dict[str, Any] = {
    "name": "designs",
    "workloads": ["gemm-1024"],
    "sweep": {
        "cores.count, cores.vector_count": [8, 16, 32],
        "clock": {"uniform": [0.8e9, 1.2e9], "multiple_of": 1e8},
        "hbm.bandwidth": {"log_uniform": ["0.3 TB/s", "2.4 TB/s"]},
        "l2.size": {"choice": ["8 MiB", "32 MiB"]},
    },
    "constraints": ["clock < '1.15 GHz'"],
    "metrics": ["cycles"],
    "search": {"objectives": {"latency_us": "min", "area_mm2": "min"}, "trials": 8},
}


def beats(a: dict[str, Any], b: dict[str, Any]) -> bool:
    both = ("latency_us", "area_mm2")
    return all(a[n] <= b[n] for n in both) and any(a[n] < b[n] for n in both)


def test_the_front_and_going_on(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    first = Search(DESIGNS, path)
    first.run(5)
    assert first.done == 5
    search = Search(DESIGNS, path)
    told: list[int] = []
    search.run(progress=lambda stage, done, total: told.append(done))
    assert search.done == 8 and told == [6, 7, 8]
    rows, front = search.rows, search.front
    assert 0 < len(rows) <= 8 and all(r["clock"] < 1.15e9 for r in rows)
    assert all(r["clock"] % 1e8 == 0 and r["cores.count"] == r["cores.vector_count"] for r in rows)
    assert {r["key"] for r in front} == {
        r["key"] for r in rows if not any(beats(other, r) for other in rows)
    }
    assert front == sorted(front, key=lambda r: r["latency_us"])
    axes = search.figure().axes[0]
    assert axes.get_xlabel() == "area (mm²)" and len(axes.lines[0].get_xdata()) == len(front)


def test_one_objective_to_make_large() -> None:
    search = Search({**DESIGNS, "search": {"objectives": {"throughput": "max"}, "trials": 3}})
    search.run()
    best = max(r["throughput"] for r in search.rows)
    assert [r["throughput"] for r in search.front] == [best]
    with pytest.raises(UnsupportedError, match="one objective"):
        search.figure()


def test_what_cannot_be_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExperimentError, match="nothing to search for"):
        Search({"workloads": ["gemm-1024"]})
    with pytest.raises(ExperimentError, match="2 values of chip"):
        Search({**DESIGNS, "chips": ["ascend910a", "ascend910b1"]})
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UnsupportedError, match="npusim\\[search\\]"):
        Search(DESIGNS)
