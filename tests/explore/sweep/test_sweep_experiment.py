"""Experiment files: what they describe, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npusim.explore.sweep import ExperimentError, list_experiments, load_experiment
from npusim.explore.sweep.expressions import Expression
from npusim.explore.sweep.points import Points

GEMM: dict[str, Any] = {"workloads": ["gemm-1024"]}


def points(**keys: Any) -> list[dict[str, Any]]:
    """The settings of all points."""
    return [dict(p.settings) for p in Points(load_experiment({**GEMM, **keys}))]


def column(name: str, **keys: Any) -> list[Any]:
    return [p.get(name) for p in points(**keys)]


def test_all_lists_are_axes() -> None:
    found = points(
        workloads=["gemm-1024", {"name": "bert-tiny", "batch": [1, 2], "shapes": {"seq": [32]}}],
        chips=["ascend910a", "ascend910b1"],
        compile={
            "precision": ["fp16", "fp32"],
            "disabled": [[], ["GeluFusionPass", "CastRemovePass"]],
        },
        run={"exec": "graph", "steps": 4, "sink_size": [1, 2]},
        sweep={"core.ub.size": ["128 KiB", 262144]},
        repeats=2,
    )
    assert len(found) == 3 * 2 * 2 * 2 * 2 * 2 * 2
    assert len({tuple(p.items()) for p in found}) == len(found)
    assert {p["core.ub.size"] for p in found} == {131072, 262144}
    assert {(p["workload"], p.get("batch")) for p in found} == {
        ("gemm-1024", None), ("bert-tiny", 1), ("bert-tiny", 2),
    }  # fmt: skip
    assert {p["repeat"] for p in found} == {0, 1} and {p["exec"] for p in found} == {"graph"}


def test_ranges() -> None:
    linear = {"clock": {"range": ["0.8 GHz", "1.2 GHz"], "steps": 3}}
    assert column("clock", sweep=linear) == [0.8e9, 1e9, 1.2e9]
    ratio = {"hbm.bandwidth": {"log_range": ["0.3 TB/s", "1.2 TB/s"], "steps": 3}}
    assert column("hbm.bandwidth", sweep=ratio) == [0.3e12, 0.6e12, 1.2e12]
    whole = {"core.ub.size": {"log_range": [1000, 8000], "steps": 4, "multiple_of": 512}}
    assert column("core.ub.size", sweep=whole) == [1024, 2048, 4096, 8192]


def test_zipped_keys() -> None:
    own = points(sweep={"core.l0a.size, core.l0b.size": [["32 KiB", "64 KiB"], ["64 KiB", 65536]]})
    pairs = [(p["core.l0a.size"], p["core.l0b.size"]) for p in own]
    assert pairs == [(32768, 65536), (65536, 65536)]
    shared = points(sweep={"core.l0a.size, core.l0b.size": ["32 KiB"]})
    assert [(p["core.l0a.size"], p["core.l0b.size"]) for p in shared] == [(32768, 32768)]


def test_random_samples() -> None:
    drawn = {
        "sweep": {"clock": {"uniform": [1e9, 2e9]}, "cores.count": {"choice": [8, 16]},
                  "hbm.bandwidth": {"log_uniform": ["1 TB/s", "2 TB/s"]},
                  "core.l1.size": {"normal": ["1 MiB", "64 KiB"], "multiple_of": "32 KiB"},
                  "core.ub.size": ["128 KiB", "256 KiB"]},
        "samples": 5,
    }  # fmt: skip
    found = points(**drawn, seed=3)
    assert len(found) == 5 * 2 and found == points(**drawn, seed=3) != points(**drawn, seed=4)
    assert len({p["clock"] for p in found}) == 5 and all(1e9 <= p["clock"] <= 2e9 for p in found)
    assert all(p["core.l1.size"] % 32768 == 0 for p in found)
    grid = {"clock": {"range": [1e9, 2e9], "steps": 11}, "cores.count": [8, 16, 32]}
    some, every = points(sweep=grid, samples=7), points(sweep=grid)
    assert len(some) == 7 and all(p in every for p in some)


def test_constraints() -> None:
    sweep = {"core.l0a.size": ["32 KiB", "512 KiB", "1 MiB"]}
    assert column("core.l0a.size", sweep=sweep, constraints=["l0a*2 <= l1"]) == [32768, 524288]
    both = ["l0a > '32 KiB' and not l0a == l1"]
    assert column("core.l0a.size", sweep=sweep, constraints=both) == [524288]
    chips = {"chips": ["ascend910a", "ascend910b1"]}
    assert column("chip", **chips, constraints=["core.cube.k.float32 == 4"]) == ["ascend910b1"]
    assert column("chip", **chips, constraints=["chip == 'ascend910a'"]) == ["ascend910a"]


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "l1.__class__", "(lambda: 1)()", "[1]", "l1 ** 9", "l1 if 1 else 2",
     "hbn > 1", "1 +", "f'{l1}'", "l1 in (1, 2)", "b'x' == l1", "x" * 3 + ".y.z", "(1).real"],
)  # fmt: skip
def test_a_constraint_is_no_program(text: str) -> None:
    with pytest.raises(ExperimentError) as error:
        Expression(text, {})
    assert str(error.value).count("\n") == 2


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        ({"sweeps": {}}, ["unknown key sweeps", "did you mean sweep?"]),
        ({"compile": {"precison": "fp16"}}, ["unknown key compile.precison", "precision?"]),
        ({"workloads": [{"name": "bert-tiny", "bach": 1}]}, ["bach", "did you mean batch?"]),
        ({"workloads": ["resnet5"]}, ["resnet5", "did you mean resnet50?"]),
        ({"workloads": []}, ["workloads = []", "at least 1"]),
        ({"workloads": None}, ["workloads = None"]),
        ({"chips": ["ascend910x"]}, ["ascend910x", "did you mean"]),
        ({"compile": {"precision": ["fp17"]}}, ["fp17"]),
        ({"compile": {"disabled": ["GeluFusion"]}}, ["GeluFusion"]),
        ({"metrics": ["latency"]}, ["metric 'latency'", "did you mean latency_us?"]),
        ({"sweep": {"hbm.bandwith": [1]}}, ["hbm.bandwith", "did you mean hbm.bandwidth?"]),
        ({"sweep": {"clock": []}}, ["sweep.clock is empty", "range"]),
        ({"sweep": {"clock": ["1 GHx"]}}, ["1 GHx", "GHz"]),
        ({"sweep": {"cores.count": [1.5]}}, ["1.5", "a whole number"]),
        ({"sweep": {"core": [1]}}, ["sweep.core is a section"]),
        ({"sweep": {"clock": {"rnge": [1, 2]}}}, ["unknown key rnge", "did you mean range?"]),
        ({"sweep": {"clock": {"range": [1e9]}}}, ["range", "two values"]),
        ({"sweep": {"clock": {"range": [1e9, 2e9], "steps": 1}}}, ["steps = 1"]),
        ({"sweep": {"clock": {"uniform": [1e9, 2e9]}}}, ["without `samples`"]),
        ({"sweep": {"hbm.latency": {"log_range": [0, 9], "steps": 3}}}, ["ends above 0"]),
        ({"sweep": {"core.l0a.size, core.l0b.size": [[1, 2, 3]]}}, ["has 3 values", "2, one for"]),
        ({"sweep": {"clock": [1e9], "clock, l2.size": [[1e9, 1024]]}}, ["clock twice"]),
        ({"plots": [{"x": "clock", "y": "latency_us"}]}, ["column 'clock'"]),
        ({"run": {"exec": "lazy"}}, ["run.exec", "eager"]),
        ({"repeats": 0}, ["repeats = 0"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_anything_runs(keys: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ExperimentError) as error:
        load_experiment({**GEMM, **keys})
    text = str(error.value)
    assert text.count("\n") == 2 and all(part in text for part in parts), text


def test_impossible_constraints() -> None:
    with pytest.raises(ExperimentError, match="no point of 2 fulfils"):
        points(sweep={"core.ub.size": ["1 MiB", "2 MiB"]}, constraints=["ub <= l1", "ub < l1"])


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "\udcff"])
def test_files_that_are_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ExperimentError, match=r"e\.yaml"):
        load_experiment(path)
    with pytest.raises(ExperimentError, match="No such file"):
        load_experiment(tmp_path / "none.yaml")
    with pytest.raises(ExperimentError, match="no experiment named"):
        load_experiment("none")


@pytest.mark.parametrize("experiment", list_experiments(), ids=lambda e: e.name)
def test_shipped_experiments(experiment: Any) -> None:
    assert len(experiment.description) > 100, "a paragraph says what it shows"
    assert experiment.file.plots or experiment.file.search
    assert next(iter(Points(experiment)))
