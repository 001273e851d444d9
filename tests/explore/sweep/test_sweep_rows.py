"""Running points: exact reuse, rows on disk, resuming, workers that die."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import distributed
import pytest

from npusim.chip import load_chip
from npusim.errors import UnsupportedError
from npusim.explore.sweep import ExperimentError, Sweep, engines, evaluate
from npusim.explore.sweep.dask_engine import rows_of
from npusim.explore.sweep.evaluate import Evaluator, Job, chip_hash
from npusim.explore.sweep.store import RowStore, read_rows

METRICS = ["latency_us", "cycles", "energy_mj", "hbm_mib", "memory_mib", "tasks", "area_mm2"]
SMALL: dict[str, Any] = {
    "workloads": ["gemm-1024"],
    "sweep": {"hbm.bandwidth": ["0.3 TB/s", "1.2 TB/s"], "core.ub.size": ["128 KiB", "256 KiB"]},
    "metrics": METRICS,
}


def bare(row: dict[str, Any]) -> dict[str, Any]:
    """A row without the time it took."""
    return {k: v for k, v in row.items() if k != "wall_s"}


def test_reuse_is_exact() -> None:
    """Every metric of every point is that of a run from scratch, whatever ran before it."""
    sweep = Sweep(
        {
            "workloads": ["bert-tiny"],
            "chips": ["ascend910a", "ascend910b4"],
            "compile": {"streams": [1, 2]},
            "sweep": {"hbm.bandwidth, clock": [["0.6 TB/s", "1 GHz"], ["0.3 TB/s", "0.5 GHz"]],
                      "core.ub.size, l2.size": [["192 KiB", "4 MiB"], ["256 KiB", "32 MiB"]]},
            "metrics": METRICS,
        }
    )  # fmt: skip
    jobs = sweep.plan()
    evaluator = Evaluator()
    rows = [bare(evaluator.row(job)) for job in jobs]
    assert evaluator.reuse is not None and evaluator.reuse.hits > 4 * len(jobs)
    assert {row["status"] for row in rows} == {"ok"}
    for number in range(0, len(jobs), 3):
        assert bare(Evaluator(fresh=True).row(jobs[number])) == rows[number]


def test_small_channels_are_an_axis() -> None:
    sizes = {"height": [64], "width": [64]}
    sweep = Sweep(
        {
            "workloads": [{"name": "resnet18", "shapes": sizes}],
            "chips": ["ascend310p3"],
            "compile": {"small_channel": [False, True]},
        }
    )
    evaluator = Evaluator()
    plain, small = (evaluator.row(job) for job in sweep.plan())
    assert [plain["small_channel"], small["small_channel"]] == [False, True]
    assert small["latency_us"] < plain["latency_us"]


def test_half_the_clock_and_bandwidth_is_as_many_cycles_of_a_kernel() -> None:
    """A launch sees bytes per cycle only: it is simulated once for both."""
    keys = {"sweep": {"hbm.bandwidth, l2.bandwidth, clock": [[1e12, 2e12, 1e9], [5e11, 1e12, 5e8]]}}
    evaluator = Evaluator()
    for job in Sweep({**SMALL, **keys, "compile": {"level": 0}}).plan():
        evaluator.row(job)
    assert evaluator.reuse is not None
    assert evaluator.reuse.hits >= 1


def test_rows() -> None:
    sweep = Sweep(SMALL)
    rows = list(sweep.run())
    assert sweep.count == len(rows) == 4 and sweep.rows == rows
    chip = load_chip("ascend910a", ["hbm.bandwidth=0.3TB/s", "core.ub.size=128KiB"])
    assert rows[0]["chip_hash"] == chip_hash(chip) != rows[1]["chip_hash"]
    assert all(row["code"].startswith("0.1.0+") for row in rows)
    assert len({row["key"] for row in rows}) == 4
    frame = sweep.frame()
    assert list(frame["cycles"]) == [row["cycles"] for row in rows]
    other = sweep.to_polars()
    assert other["cycles"].to_list() == [row["cycles"] for row in rows]
    assert other.columns == list(frame.columns)
    assert all(a["energy_mj"] == rows[0]["energy_mj"] > 0 for a in rows)


def test_a_defect_is_a_row_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(evaluate, "compile_graph", broken)
    errors = {row["error"] for row in Sweep(SMALL).run()}
    assert errors == {"error: a defect of npusim: ZeroDivisionError: division by zero"}


def test_a_search_is_no_sweep() -> None:
    with pytest.raises(ExperimentError, match="use `npusim search chip-search`"):
        Sweep("chip-search")


def test_keys_follow_content(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("extends: ascend910a\nclock: 0.9 GHz\n")
    own = {**SMALL, "chips": [str(tmp_path / "c.yaml")]}
    before = [job.key for job in Sweep(own).plan()]
    assert before == [job.key for job in Sweep(own).plan()]
    (tmp_path / "c.yaml").write_text("extends: ascend910a\nclock: 0.8 GHz\n")
    after = [job.key for job in Sweep(own).plan()]
    other = [job.key for job in Sweep({**own, "metrics": ["cycles"]}).plan()]
    assert len({*before, *after, *other}) == 12


def test_a_failed_point_is_a_row() -> None:
    sweep = Sweep({**SMALL, "sweep": {"core.ub.size": [32, "256 KiB", 33]}})
    rows = {row["core.ub.size"]: row for row in sweep.run()}
    assert rows[262144]["status"] == "ok" and rows[262144]["cycles"] > 0
    for size in (32, 33):
        assert rows[size]["status"] == "failed" and rows[size]["cycles"] is None
        assert "fix: " in rows[size]["error"] and "\n" not in rows[size]["error"]


def test_resume_runs_what_is_left(tmp_path: Path) -> None:
    """Interrupted after two rows, with half a line written; a failed row runs again."""
    whole = [bare(row) for row in Sweep(SMALL).run()]
    first = Sweep(SMALL, out=tmp_path)
    run = first.run()
    next(run), next(run)
    run.close()
    path = tmp_path / "rows.csv"
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    failed = lines[2].replace(",ok,", ",failed,")
    path.write_text("".join([lines[0], lines[1], failed, "abc,ok,,gem"]))
    with pytest.raises(ExperimentError, match="is there already"):
        list(Sweep(SMALL, out=tmp_path).run())
    again = Sweep(SMALL, out=tmp_path, resume=True)
    assert len(list(again.run())) == 3
    assert [bare(r) for r in again.ordered()] == whole
    assert sorted(r["key"] for r in read_rows(path)) == sorted(r["key"] for r in whole)
    assert not list(Sweep(SMALL, out=tmp_path, resume=True).run())
    import pyarrow.parquet as pq

    table = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [r["cycles"] for r in sorted(table, key=lambda r: r["key"])] == [
        r["cycles"] for r in sorted(whole, key=lambda r: r["key"])
    ]
    with pytest.raises(ExperimentError, match="other columns"):
        RowStore(tmp_path, ["key", "status"], resume=True)


def _dies_once(job: Job) -> dict[str, Any]:
    """A worker that is killed at one point, the first time it comes to it."""
    mark = Path(os.environ["NPUSIM_TEST_MARK"])
    if job.point.get("core.ub.size") == 262144 and not mark.exists():
        mark.write_text("died")
        os.kill(os.getpid(), signal.SIGKILL)
    return engines.worker().row(job)


def _dies(job: Job) -> dict[str, Any]:
    """A worker that is killed at some points, always."""
    if job.point.get("core.ub.size") == 262144:
        os.kill(os.getpid(), signal.SIGKILL)
    return engines.worker().row(job)


def by_key(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["key"]: bare(row) for row in rows}


def test_a_killed_worker_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPUSIM_TEST_MARK", str(tmp_path / "died"))
    jobs = Sweep(SMALL).plan()
    rows = by_key(engines.run_local(jobs, 2, _dies_once))
    assert (tmp_path / "died").exists()
    assert rows == by_key(engines.run_here(jobs, 1))


def test_points_that_kill_every_worker_are_failed_rows() -> None:
    jobs = Sweep(SMALL).plan()
    rows = list(engines.run_local(jobs, 2, _dies))
    found = {row["core.ub.size"]: row for row in rows}
    assert len(rows) == 4 and found[131072]["status"] == "ok"
    assert found[262144]["status"] == "failed" and "worker died" in found[262144]["error"]


def test_a_cluster_of_two_workers_one_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPUSIM_TEST_MARK", str(tmp_path / "died"))
    jobs = Sweep(SMALL).plan()
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None,
            silence_logs=50,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):  # fmt: skip
        rows = by_key(rows_of(client, jobs, _dies_once))
        assert rows == by_key(Sweep(SMALL, engine="dask", cluster=cluster.scheduler_address).run())
    assert (tmp_path / "died").exists()
    assert rows == by_key(engines.run_here(jobs, 1))


def test_idle_workers_take_from_the_longest_queue() -> None:
    jobs = Sweep(SMALL).plan()
    lanes = [engines._Lane(jobs, engines.run_job), engines._Lane([], engines.run_job)]
    engines._share_out(lanes[1], lanes)
    assert [list(lane.waiting) for lane in lanes] == [jobs[:2], jobs[2:]]


def test_engines_that_there_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match="engine 'slurm'"):
        Sweep(SMALL, engine="slurm")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UnsupportedError, match="npusim\\[cluster\\]"):
        Sweep(SMALL, engine="dask")


def test_figures() -> None:
    plots = [
        {"x": "hbm.bandwidth", "y": "latency_us", "by": "core.ub.size", "log": "x"},
        {"x": "core.ub.size", "y": "cycles", "by": "hbm.bandwidth", "kind": "bar"},
        {"x": "hbm.bandwidth", "y": "cycles", "by": "core.ub.size", "kind": "heatmap"},
        {"x": "area_mm2", "y": "latency_us", "kind": "scatter", "log": "xy", "title": "T"},
    ]
    sweep = Sweep({**SMALL, "plots": plots})
    list(sweep.run())
    line, bar, heat, scatter = (figure.axes[0] for figure in sweep.figures())
    assert [t.get_text() for t in line.get_xticklabels()] == ["300 GB/s", "1.2 TB/s"]
    assert [t.get_text() for t in line.get_legend().get_texts()] == ["128 KiB", "256 KiB"]
    assert line.get_ylabel() == "latency (µs)" and line.get_xlabel() == "hbm.bandwidth"
    assert len(bar.patches) == 4 and [t.get_text() for t in bar.get_xticklabels()] == [
        "128 KiB", "256 KiB",
    ]  # fmt: skip
    assert heat.images[0].get_array().shape == (2, 2)
    assert scatter.get_title() == "T" and scatter.get_yscale() == "log"
    with pytest.raises(UnsupportedError, match="no row has both"):
        Sweep({**SMALL, "plots": plots}).figures()
