"""One point: build the chip, compile, run, measure; and the row that says what came of it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import npusim
from npusim.chip.load import build_chip
from npusim.chip.reuse import Reuse
from npusim.chip.source import Leaves, chip_path, read_leaves
from npusim.chip.spec import ChipSpec
from npusim.compiler import CompileOptions, compile_graph
from npusim.data import data_dir
from npusim.errors import NpusimError
from npusim.explore.sweep.metrics import METRICS, Measured
from npusim.explore.sweep.points import Point
from npusim.frontends.workload import Workload, find_workload, load_workload
from npusim.ir import Graph
from npusim.machine.host import HostPlan
from npusim.machine.run import run_executable

#: Folders whose code results hang on; reports and command lines do not change them.
_MAKES_RESULTS = (
    "chip", "ir", "ops", "program", "timeline", "kernels", "frontends", "models", "compiler",
    "machine", "explore/sweep",
)  # fmt: skip
#: A row: columns by name.
Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A point, and the metrics to take of it."""

    key: str
    point: Point
    metrics: tuple[str, ...]


class Evaluator:
    """Runs points, one after the other. What points have in common is computed once.

    Args:
        fresh: compute everything anew for every point.
    """

    def __init__(self, fresh: bool = False) -> None:
        self.reuse = None if fresh else Reuse()
        self._graphs: dict[tuple[Any, ...], tuple[Workload, Graph]] = {}
        self._leaves: dict[str, Leaves] = {}

    def row(self, job: Job) -> Row:
        """The row of a point; an error that a user can act on is a row too."""
        started = time.perf_counter()
        row: Row = {"key": job.key, "status": "ok", "error": "", **columns_of(job.point)}
        row |= dict.fromkeys(job.metrics)
        row |= {"chip_hash": "", "code": code_version()}
        try:
            chip = self._chip(job.point)
            row["chip_hash"] = chip_hash(chip)
            measured = self._measure(job.point, chip)
            for name in job.metrics:
                row[name] = METRICS[name].compute(measured)
        except NpusimError as error:
            row["status"], row["error"] = "failed", " | ".join(str(error).splitlines())
        except Exception as error:  # a defect of npusim: told, and the other points go on
            what = " ".join(f"{type(error).__name__}: {error}".split())
            row["status"], row["error"] = "failed", f"error: a defect of npusim: {what}"
        row["wall_s"] = round(time.perf_counter() - started, 4)
        return row

    def _chip(self, point: Point) -> ChipSpec:
        name = point.get("chip")
        if name not in self._leaves:
            self._leaves[name] = read_leaves(chip_path(name))
        sets = [f"{key}={json.dumps(value)}" for key, value in point.chip_keys.items()]
        return build_chip(self._leaves[name], sets)

    def _measure(self, point: Point, chip: ChipSpec) -> Measured:
        what = tuple(point.get(n) for n in ("workload", "batch", "shapes", "precision", "repeat"))
        if what not in self._graphs:
            name, batch, shapes, precision, seed = what
            self._graphs[what] = load_workload(
                name, batch=batch, shapes=dict(shapes) if shapes else None,
                precision=precision, seed=seed,
            )  # fmt: skip
        work, graph = self._graphs[what]
        options = CompileOptions(
            work.precision,
            point.get("level", 2),
            frozenset(point.get("disabled", ())),
            point.get("reuse_memory", True),
            streams=point.get("streams", 1),
            small_channel=point.get("small_channel", False),
        )
        plan = HostPlan(point.get("exec"), point.get("steps", 1), point.get("sink_size", 1))
        reuse = self.reuse
        if reuse is None:
            exe = compile_graph(graph, chip, options)
        else:
            exe = reuse.get(
                ("executable", what, options),
                chip,
                lambda seen: compile_graph(graph, seen, options, reuse),
            )
        timeline = run_executable(exe, chip, host=plan, keep="summary", reuse=reuse).timeline
        return Measured(chip, exe, timeline, work.batch or 1)


def columns_of(point: Point) -> Row:
    """The settings of a point as columns: lists as text."""
    row: Row = {}
    for name, value in point.settings:
        if name == "shapes":
            row[name] = " ".join(f"{n}={','.join(map(str, dims))}" for n, dims in value)
        elif isinstance(value, tuple):
            row[name] = " ".join(map(str, value)) or "none"
        else:
            row[name] = value
    return row


class Keys:
    """Content keys: what makes a point the same as one that has run."""

    def __init__(self, metrics: Sequence[str]) -> None:
        self._common = [code_version(), list(metrics)]
        self._parts: dict[str, str] = {}

    def key(self, point: Point) -> str:
        """By the point's settings, its workload's and chip's files, the metrics and the code."""
        work, chip = point.get("workload"), point.get("chip")
        parts = [self._part("w", work, _workload_text), self._part("c", chip, _chip_text)]
        return _digest([*self._common, *parts, point.settings])[:16]

    def _part(self, kind: str, name: str, text: Any) -> str:
        place = f"{kind}:{name}"
        if place not in self._parts:
            self._parts[place] = _digest(text(name))
        return self._parts[place]


def _workload_text(name: str) -> object:
    work = find_workload(name)
    content = hashlib.sha256(Path(work.source).read_bytes()).hexdigest() if work.is_onnx else ""
    return [repr(work), content]


def _chip_text(name: str) -> object:
    return {key: repr(leaf.value) for key, leaf in read_leaves(chip_path(name)).items()}


def chip_hash(chip: ChipSpec) -> str:
    """Twelve hexadecimal digits of a chip's values, however they were given."""
    return _digest(chip.model_dump(exclude={"sources", "description", "name"}))[:12]


@lru_cache(maxsize=1)
def code_version() -> str:
    """The version, and twelve hexadecimal digits of the code and the proxies that make results."""
    found = hashlib.sha256()
    root = Path(npusim.__file__).parent
    paths = [path for folder in _MAKES_RESULTS for path in sorted((root / folder).rglob("*.py"))]
    for path in paths:
        found.update(path.relative_to(root).as_posix().encode())
        found.update(path.read_bytes())
    found.update((data_dir("configs") / "proxies.yaml").read_bytes())
    return f"{npusim.__version__}+{found.hexdigest()[:12]}"


def _digest(content: object) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def failed_row(job: Job, reason: str) -> Row:
    """The row of a point that no worker lived to finish."""
    row: Row = {"key": job.key, "status": "failed", "error": reason, **columns_of(job.point)}
    row |= dict.fromkeys(job.metrics)
    return {**row, "chip_hash": "", "code": code_version(), "wall_s": None}


def columns(jobs: Sequence[Job]) -> list[str]:
    """All columns of the rows of these points."""
    found: dict[str, None] = {}
    for job in jobs:
        found |= dict.fromkeys(columns_of(job.point))
    metrics = jobs[0].metrics if jobs else ()
    return ["key", "status", "error", *found, *metrics, "chip_hash", "code", "wall_s"]
