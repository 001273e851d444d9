"""The points of an experiment: all combinations of its axes that its constraints allow."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from math import prod
from typing import Any

from npusim.chip.load import build_chip
from npusim.chip.source import chip_path, read_leaves
from npusim.chip.spec import ChipSpec
from npusim.explore.sweep.errors import ExperimentError
from npusim.explore.sweep.experiment import SETTINGS, Experiment, WorkloadChoice, as_list
from npusim.explore.sweep.values import Swept

#: A setting of a point: hashable, in base units.
Setting = tuple[str, Any]


@dataclass(frozen=True)
class Point:
    """One run: settings by name, in the order of `SETTINGS`, then chip keys as they are swept."""

    settings: tuple[Setting, ...]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a setting."""
        return dict(self.settings).get(name, default)

    @property
    def chip_keys(self) -> dict[str, Any]:
        """The chip keys that are set, in base units."""
        return {k: v for k, v in self.settings if k not in SETTINGS}


_Axis = Sequence[Mapping[str, Any]]


class Points:
    """The points of an experiment.

    Attributes:
        count: combinations, before constraints and repeats.

    Raises:
        ExperimentError: while iterating: a constraint that refuses every point.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        file = experiment.file
        rng = random.Random(file.seed)
        self._axes = [_workloads(experiment.workloads), [{"chip": c} for c in file.chips]]
        self._axes += _options(file.compile.precision, "precision", keep_none=False)
        self._axes += _options(file.compile.level, "level")
        passes = as_list(file.compile.disabled, nested=True)
        self._axes.append([{"disabled": tuple(sorted(names))} for names in passes])
        self._axes += _options(file.compile.streams, "streams")
        self._axes += _options(file.compile.reuse_memory, "reuse_memory")
        self._axes += _options(file.compile.small_channel, "small_channel")
        self._axes += _options(file.run.exec, "exec", keep_none=False)
        self._axes += _options(file.run.steps, "steps")
        self._axes += _options(file.run.sink_size, "sink_size")
        self._fixed = len(self._axes)
        for axis in experiment.swept:
            if not axis.draw:
                self._axes.append([dict(zip(axis.keys, row, strict=True)) for row in axis.rows])
        drawn = [axis for axis in experiment.swept if axis.draw]
        self._random = bool(file.samples) and not drawn
        if drawn and file.samples:
            self._axes.append([_sample(drawn, rng) for _ in range(file.samples)])
        whole = prod(len(axis) for axis in self._axes)
        self.count = min(whole, file.samples or whole) if self._random else whole
        self._whole = whole
        self._bases: dict[str, ChipSpec] = {}

    def __iter__(self) -> Iterator[Point]:
        file = self._experiment.file
        allowed = 0
        for settings in self._combinations():
            if not self._allowed(settings):
                continue
            allowed += 1
            for repeat in range(file.repeats):
                chosen = settings if file.repeats == 1 else {**settings, "repeat": repeat}
                yield Point(_ordered(chosen))
        if not allowed:
            raise self._impossible()

    def only_base(self) -> dict[str, Any]:
        """The settings that all points share beside swept keys, for a search.

        Raises:
            ExperimentError: there are several.
        """
        for axis in self._axes[: self._fixed]:
            if len(axis) > 1:
                name = next(iter(axis[0]))
                raise ExperimentError(
                    f"{self._experiment.source}: a search with {len(axis)} values of {name}",
                    "one workload, chip and set of options; swept chip keys are searched",
                    f"keep one {name}, or use `npusim sweep`",
                )
        return reduce(lambda a, b: {**a, **b}, (axis[0] for axis in self._axes[: self._fixed]), {})

    def allowed(self, point: Point) -> bool:
        """Whether the constraints allow a point."""
        return self._allowed(dict(point.settings))

    def _allowed(self, settings: Mapping[str, Any]) -> bool:
        names = partial(self._value, settings)
        return all(c.holds(names) for c in self._experiment.constraints)

    def _combinations(self) -> Iterator[dict[str, Any]]:
        if not self._random:
            for parts in itertools.product(*self._axes):
                yield reduce(lambda a, b: {**a, **b}, parts, {})
            return
        file = self._experiment.file
        numbers = random.Random(file.seed).sample(range(self._whole), self.count)
        for number in sorted(numbers):
            found: dict[str, Any] = {}
            for axis in reversed(self._axes):
                number, place = divmod(number, len(axis))
                found = {**axis[place], **found}
            yield found

    def _value(self, settings: Mapping[str, Any], name: str) -> Any:
        """A chip key or setting of a point, for constraints."""
        if name in settings:
            return settings[name]
        if name in SETTINGS:
            return None
        chip = settings["chip"]
        if chip not in self._bases:
            self._bases[chip] = build_chip(read_leaves(chip_path(chip)))
        return value_at(self._bases[chip], name)

    def _impossible(self) -> ExperimentError:
        texts = [c.text for c in self._experiment.constraints]
        return ExperimentError(
            f"{self._experiment.source}: no point of {self.count} fulfils the constraints "
            + ", ".join(repr(t) for t in texts),
            "constraints that leave at least one point",
            "loosen a constraint, or sweep values that fulfil it",
        )


def value_at(chip: ChipSpec, key: str) -> Any:
    """The value of a dotted key; None where a chip has no such part."""
    value: Any = chip
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else getattr(value, part, None)
    return value


def _workloads(choices: Sequence[WorkloadChoice]) -> list[dict[str, Any]]:
    found = []
    for choice in choices:
        for batch in as_list(choice.batch):
            for shapes in as_list(choice.shapes):
                one: dict[str, Any] = {"workload": choice.name}
                if batch is not None:
                    one["batch"] = batch
                if shapes is not None:
                    one["shapes"] = tuple(sorted((n, tuple(d)) for n, d in shapes.items()))
                found.append(one)
    return found


def _sample(drawn: Sequence[Swept], rng: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for axis in drawn:
        assert axis.draw is not None, "only those are drawn"
        found |= dict.fromkeys(axis.keys, axis.draw.sample(rng))
    return found


def _options(given: Any, name: str, keep_none: bool = True) -> list[list[dict[str, Any]]]:
    values = as_list(given)
    return [[{name: v} if v is not None or keep_none else {} for v in values]]


def _ordered(settings: Mapping[str, Any]) -> tuple[Setting, ...]:
    first = [(name, settings[name]) for name in SETTINGS if name in settings]
    return (*first, *((k, v) for k, v in settings.items() if k not in SETTINGS))
