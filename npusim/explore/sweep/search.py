"""`Search`: designs that no other beats in every objective, looked for by Optuna.

Every swept key is a parameter: a list is a choice, a range or a distribution an interval. Trials
are kept in a storage of Optuna's (an SQLite file, or any URL that it takes): several processes
may search at one time, and a search goes on where it stopped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from npusim.errors import UnsupportedError
from npusim.explore.sweep.errors import ExperimentError
from npusim.explore.sweep.evaluate import Evaluator, Job, Keys, Row
from npusim.explore.sweep.experiment import Experiment, load_experiment
from npusim.explore.sweep.metrics import METRICS
from npusim.explore.sweep.points import Point, Points
from npusim.explore.sweep.values import Swept
from npusim.profiling.sweep_plot import pareto_figure

if TYPE_CHECKING:
    import optuna
    from matplotlib.figure import Figure

Progress = Callable[[str, int, int], None]
_DIRECTIONS: dict[str, Literal["minimize", "maximize"]] = {"min": "minimize", "max": "maximize"}
_ROW = "row"  #: where a trial keeps its row


class Search:
    """A search over the designs of an experiment with a `search` section.

    Args:
        experiment: a shipped experiment's name, the path of a YAML file, or its keys as a dict.
        storage: path of an SQLite file, a URL of Optuna's, or None: in memory.

    Raises:
        ExperimentError: no `search` section, or axes that a search cannot vary.
        UnsupportedError: Optuna is not installed.
    """

    def __init__(
        self,
        experiment: str | Path | Mapping[str, Any] | Experiment,
        storage: str | Path | None = None,
    ) -> None:
        given = experiment
        self.experiment = given if isinstance(given, Experiment) else load_experiment(given)
        chosen = self.experiment.file.search
        if chosen is None:
            raise ExperimentError(
                f"{self.experiment.source}: nothing to search for",
                "search: {objectives: {latency_us: min, area_mm2: min}, trials: 100}",
                "add a `search` section, or use `npusim sweep`",
            )
        self.objectives = dict(chosen.objectives)
        self.metrics = tuple(dict.fromkeys([*self.objectives, *self.experiment.file.metrics]))
        self._points = Points(self.experiment)
        self._base = self._points.only_base()
        self._study = self._open(storage)
        self._keys = Keys(self.metrics)

    def _open(self, storage: str | Path | None) -> optuna.Study:
        try:
            import optuna
        except ImportError:
            raise UnsupportedError(
                "a search without Optuna", "optuna", "pip install 'npusim[search]'"
            ) from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        text = None if storage is None else str(storage)
        if text is not None and "://" not in text:
            Path(text).parent.mkdir(parents=True, exist_ok=True)
            text = f"sqlite:///{text}"
        several = len(self.objectives) > 1
        seed = self.experiment.file.seed
        samplers = optuna.samplers
        sampler = samplers.NSGAIISampler(seed=seed) if several else samplers.TPESampler(seed=seed)
        return optuna.create_study(
            storage=text,
            study_name=self.experiment.name,
            directions=[_DIRECTIONS[way] for way in self.objectives.values()],
            sampler=sampler,
            load_if_exists=True,
        )

    @property
    def done(self) -> int:
        """Trials so far, those of other processes on the same storage among them."""
        return len(self._study.trials)

    def run(self, trials: int | None = None, progress: Progress | None = None) -> None:
        """Try designs until there are `trials` in all (default: the experiment's).

        A design that fails, or that the constraints refuse, is a failed trial; the search goes on.
        """

        assert self.experiment.file.search is not None
        total = trials or self.experiment.file.search.trials
        evaluator = Evaluator()

        def objective(trial: optuna.Trial) -> tuple[float, ...]:
            point = self._point(trial)
            if not self._points.allowed(point):
                trial.set_user_attr("refused", True)
                raise _RefusedError
            row = evaluator.row(Job(self._keys.key(point), point, self.metrics))
            trial.set_user_attr(_ROW, row)
            if row["status"] != "ok":
                raise _RefusedError
            return tuple(float(row[name]) for name in self.objectives)

        while self.done < total:
            self._study.optimize(objective, n_trials=1, catch=(_RefusedError,))
            if progress is not None:
                progress("trials", self.done, total)

    @property
    def rows(self) -> list[Row]:
        """The rows of all trials that ran."""
        return [t.user_attrs[_ROW] for t in self._study.trials if _ROW in t.user_attrs]

    @property
    def front(self) -> list[Row]:
        """The designs that no other beats in every objective, the first objective's best first."""
        found = {t.user_attrs[_ROW]["key"]: t.user_attrs[_ROW] for t in self._study.best_trials}
        name, way = next(iter(self.objectives.items()))
        return sorted(found.values(), key=lambda row: row[name], reverse=way == "max")

    def figure(self) -> Figure:
        """All designs and the front, over the first two objectives.

        Raises:
            UnsupportedError: matplotlib is not installed, or there is one objective only.
        """
        if len(self.objectives) < 2:
            raise UnsupportedError("a front of one objective", "two or more", "add an objective")
        y, x = list(self.objectives)[:2]
        units = {name: m.unit for name, m in METRICS.items()}
        good = [row for row in self.rows if row["status"] == "ok"]
        return pareto_figure(good, self.front, x, y, units)

    def _point(self, trial: optuna.Trial) -> Point:
        settings = dict(self._base)
        for axis in self.experiment.swept:
            settings |= dict(zip(axis.keys, _suggest(trial, axis), strict=True))
        return Point(tuple(settings.items()))


class _RefusedError(Exception):
    """A design without values."""


def _suggest(trial: optuna.Trial, axis: Swept) -> tuple[Any, ...]:
    """A value for every key of an axis."""
    name = ", ".join(axis.keys)
    draw = axis.draw
    if draw is None:
        number = trial.suggest_categorical(name, list(range(len(axis.rows))))
        return axis.rows[number]
    if draw.kind == "choice":
        value = draw.values[trial.suggest_categorical(name, list(range(len(draw.values))))]
    elif draw.kind == "normal":
        value = draw.sample(random.Random(trial.number))
    else:
        logarithmic = draw.kind == "log_uniform"
        value = draw.fit(trial.suggest_float(name, draw.low, draw.high, log=logarithmic))
    return (value,) * len(axis.keys)
