"""`Experiment`: a study as a YAML file describes it, checked before anything runs.

    description: what it shows
    workloads: [resnet50, {name: bert-base, batch: [1, 8], shapes: {seq: [128]}}]
    chips: [ascend910a, ascend910b1]
    compile: {precision: [fp16, fp32], level: 2, disabled: [[], [ConvEpilogueFusion]], streams: 1}
    run: {exec: graph, steps: 10, sink_size: [1, 10]}
    sweep: {hbm.bandwidth: {log_range: [0.3 TB/s, 4.8 TB/s], steps: 5}}
    constraints: ["l0a*2 <= l1"]
    metrics: [latency_us, energy_mj]
    plots: [{x: hbm.bandwidth, y: latency_us, by: workload}]

Everything that may be a list is an axis: the points are all combinations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from npusim.chip.load import build_chip
from npusim.chip.source import chip_path, read_leaves
from npusim.compiler import CompileOptions
from npusim.compiler.rewrite import check_switches
from npusim.data import data_dir
from npusim.errors import NpusimError, nearest
from npusim.explore.sweep.errors import ExperimentError
from npusim.explore.sweep.expressions import Expression
from npusim.explore.sweep.metrics import METRICS
from npusim.explore.sweep.values import Swept, swept
from npusim.frontends.workload import find_workload

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Count = Annotated[int, Field(strict=True, ge=1)]
Shapes = dict[str, tuple[Count, ...]]
Exec = Literal["eager", "graph"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WorkloadChoice(_Strict):
    """A workload, with sizes that replace its own; lists are axes."""

    name: str = Field(description="a workload, a built-in model, or the path of a file")
    batch: Count | list[Count] | None = Field(default=None, description="samples at once")
    shapes: Shapes | list[Shapes] | None = Field(
        default=None,
        description="shapes of inputs, or sizes by their names, as `--shape` takes them",
    )


class CompileChoice(_Strict):
    """Options of the compiler, as `npusim run` has them."""

    precision: str | list[str] | None = Field(
        default=None, description="a precision mode; left out: the workload's"
    )
    level: int | list[int] = Field(default=2, description="optimisation level, 0 to 3")
    disabled: list[str] | list[list[str]] = Field(
        default=[], description="passes that do not run; a list of such lists is an axis"
    )
    streams: Count | list[Count] = Field(default=1, description="streams that branches may run on")
    reuse_memory: bool | list[bool] = Field(
        default=True, description="whether tensors that live at different times share memory"
    )
    small_channel: bool | list[bool] = Field(
        default=False, description="images of at most 4 channels in blocks of 4"
    )


class RunChoice(_Strict):
    """What the host does, as in `npusim run --exec`."""

    exec: Exec | list[Exec] | None = Field(
        default=None, description="how the host launches; left out: the device alone"
    )
    steps: Count | list[Count] = Field(default=1, description="executions of the model")
    sink_size: Count | list[Count] = Field(
        default=1, description="steps that the host hands over at once"
    )


class PlotChoice(_Strict):
    """A plot of the rows."""

    x: str = Field(description="a column: a chip key, a setting or a metric")
    y: str = Field(description="a column of numbers")
    by: str | list[str] = Field(
        default=[], description="columns: a line or a group of bars for each value"
    )
    kind: Literal["line", "bar", "scatter", "heatmap"] = Field(
        default="line", description="what is drawn"
    )
    log: Literal["", "x", "y", "xy"] = Field(default="", description="logarithmic axes")
    title: str = Field(default="", description="above the plot")
    relative: bool = Field(default=False, description="divide each line by its first point")


class SearchChoice(_Strict):
    """What `npusim search` looks for."""

    objectives: dict[str, Literal["min", "max"]] = Field(
        min_length=1, description='metrics to make small ("min") or large ("max")'
    )
    trials: Count = Field(default=100, description="points to try")


class ExperimentFile(_Strict):
    """The keys of an experiment file."""

    name: str = Field(default="", description="left out: the file's name")
    description: str = Field(default="", description="what it shows")
    workloads: list[str | WorkloadChoice] = Field(
        min_length=1, description="names, or sections with sizes"
    )
    chips: list[str] = Field(
        default=["ascend910a"], min_length=1, description="names, or paths of chip files"
    )
    compile: CompileChoice = Field(default=CompileChoice(), description="options of the compiler")
    run: RunChoice = Field(default=RunChoice(), description="what the host does")
    sweep: dict[str, Any] = Field(
        default={}, description="chip keys, each with a list, a range or a distribution"
    )
    samples: Count | None = Field(default=None, description="points that are drawn at random")
    seed: Annotated[int, Field(strict=True, ge=0)] = Field(
        default=0, description="of what is drawn"
    )
    constraints: list[str] = Field(default=[], description="expressions that a point must fulfil")
    repeats: Count = Field(default=1, description="runs of each point")
    metrics: list[str] = Field(
        default=["latency_us"], min_length=1, description="columns that are computed"
    )
    plots: list[PlotChoice] = Field(default=[], description="pictures to draw from the rows")
    search: SearchChoice | None = Field(default=None, description="what `npusim search` looks for")


@dataclass(frozen=True)
class Experiment:
    """A checked experiment.

    Attributes:
        source: where it came from, for messages.
        swept: the axes of chip keys; constraints: what points must fulfil.
    """

    name: str
    source: str
    file: ExperimentFile
    swept: tuple[Swept, ...]
    constraints: tuple[Expression, ...]

    @property
    def description(self) -> str:
        """What it shows."""
        return " ".join(self.file.description.split())

    @property
    def workloads(self) -> tuple[WorkloadChoice, ...]:
        """The workloads, each with its sizes."""
        given = self.file.workloads
        return tuple(WorkloadChoice(name=w) if isinstance(w, str) else w for w in given)


#: Settings of a point that are no chip keys.
SETTINGS = (
    "workload", "batch", "shapes", "chip", "precision", "level", "disabled", "streams",
    "reuse_memory", "small_channel", "exec", "steps", "sink_size", "repeat",
)  # fmt: skip


def list_experiments() -> list[Experiment]:
    """The shipped experiments, by name."""
    return [
        load_experiment(path) for path in sorted(data_dir("configs/experiments").glob("*.yaml"))
    ]


def load_experiment(spec: str | Path | Mapping[str, Any]) -> Experiment:
    """Read and check an experiment: a shipped one's name, a YAML file, or its keys.

    Raises:
        ExperimentError: an unknown key or name, a wrong value, an empty axis.
    """
    if isinstance(spec, Mapping):
        return _checked("experiment", "experiment", dict(spec))
    path = _path(spec)
    return _checked(path.stem, str(path.name), _read(path))


def _path(spec: str | Path) -> Path:
    text = str(spec)
    if isinstance(spec, Path) or text.endswith((".yaml", ".yml")):
        return Path(spec)
    folder = data_dir("configs/experiments")
    names = sorted(p.stem for p in folder.glob("*.yaml"))
    if text in names:
        return folder / f"{text}.yaml"
    near = nearest(text, names)
    raise ExperimentError(
        f"no experiment named {text!r}", f"{', '.join(names)}, or the path of a YAML file",
        f"did you mean {near}?" if near else "use one of these, or a path with .yaml",
    )  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ExperimentError(
            f"experiment {path}: {reason}", "a readable YAML file", "check the path"
        ) from None
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ExperimentError(
            f"experiment {path}: {reason}", "valid YAML", "fix the syntax"
        ) from None
    if not isinstance(content, dict):
        keys = ", ".join(ExperimentFile.model_fields)
        raise ExperimentError(f"experiment {path}: no keys", keys, "write `key: value` lines")
    return content


def _checked(name: str, where: str, content: dict[str, Any]) -> Experiment:
    try:
        file = ExperimentFile.model_validate(content)
    except ValidationError as error:
        raise _explain(where, error) from None
    axes = tuple(swept(where, key, value) for key, value in file.sweep.items())
    _check_sweep(where, file, axes)
    _check_names(where, file)
    columns = (*SETTINGS, *(key for axis in axes for key in axis.keys), *file.metrics)
    for plot in file.plots:
        for column in (plot.x, plot.y, *as_list(plot.by)):
            _known(f"{where}: plots: column", column, columns)
    constraints = tuple(Expression(text, dict.fromkeys(SETTINGS)) for text in file.constraints)
    return Experiment(file.name or name, where, file, axes, constraints)


def _explain(where: str, error: ValidationError) -> ExperimentError:
    """The first complaint of pydantic, in our three lines."""
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    place = [str(part) for part in first["loc"] if not str(part).startswith(("function", "list["))]
    key = ".".join(p for p in place if p not in ("str", "int", "bool", "WorkloadChoice"))
    if first["type"] == "extra_forbidden":
        keys = list(_section(place[:-1]).model_fields)
        near = nearest(place[-1], keys)
        return ExperimentError(
            f"{where}: unknown key {key}", ", ".join(keys),
            f"did you mean {near}?" if near else f"remove {key}",
        )  # fmt: skip
    if first["type"] == "missing":
        return ExperimentError(
            f"{where}: {key} is missing", "an experiment names its workloads, at least",
            f"add `{key}: …`",
        )  # fmt: skip
    reason = first["msg"].removeprefix("Input should be ")
    return ExperimentError(f"{where}: {key} = {first['input']!r}", reason, f"correct {key}")


def _section(place: list[str]) -> type[BaseModel]:
    sections: dict[str, type[BaseModel]] = {
        "workloads": WorkloadChoice, "compile": CompileChoice, "run": RunChoice,
        "plots": PlotChoice, "search": SearchChoice,
    }  # fmt: skip
    return sections.get(place[0], ExperimentFile) if place else ExperimentFile


def _check_sweep(where: str, file: ExperimentFile, axes: tuple[Swept, ...]) -> None:
    keys = [key for axis in axes for key in axis.keys]
    for key in keys:
        if keys.count(key) > 1:
            raise ExperimentError(
                f"{where}: sweep has {key} twice", "each key once", f"leave one {key} out"
            )
    if any(axis.draw for axis in axes) and file.samples is None and file.search is None:
        raise ExperimentError(
            f"{where}: a distribution without `samples`", "samples: how many draws to make",
            "add `samples: 100`, or use a list or a range",
        )  # fmt: skip


def _check_names(where: str, file: ExperimentFile) -> None:
    """Workloads, chips, precisions, passes and metrics all exist."""
    try:
        for work in file.workloads:
            find_workload(work if isinstance(work, str) else work.name)
        for chip in file.chips:
            build_chip(read_leaves(chip_path(chip)))
        precisions = file.compile.precision
        for name in precisions if isinstance(precisions, list) else [precisions or "fp16"]:
            _ = CompileOptions(name).mode
        for chosen in as_list(file.compile.disabled, nested=True):
            check_switches(CompileOptions(disabled=frozenset(chosen)))
    except NpusimError as error:
        raise ExperimentError(f"{where}: {error.what}", error.allowed, error.fix) from None
    for metric in (*file.metrics, *(file.search.objectives if file.search else ())):
        _known(f"{where}: metric", metric, METRICS)


def _known(what: str, name: str, names: Mapping[str, object] | tuple[str, ...]) -> None:
    if name not in names:
        near = nearest(name, names)
        raise ExperimentError(
            f"{what} {name!r}", ", ".join(names),
            f"did you mean {near}?" if near else "use one of these",
        )  # fmt: skip


def as_list(value: Any, nested: bool = False) -> list[Any]:
    """The values of an axis: a list as it is, anything else alone.

    `nested`: a value is itself a list; a list of lists is the axis.
    """
    if nested:
        return value if value and isinstance(value[0], list) else [value]
    return value if isinstance(value, list) else [value]
