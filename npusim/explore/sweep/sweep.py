"""`Sweep`: an experiment's points, run by an engine, rows kept as they finish."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim.errors import UnsupportedError
from npusim.explore.sweep.engines import Engine, run_local
from npusim.explore.sweep.errors import ExperimentError
from npusim.explore.sweep.evaluate import Evaluator, Job, Keys, Row, columns
from npusim.explore.sweep.experiment import Experiment, as_list, load_experiment
from npusim.explore.sweep.metrics import METRICS
from npusim.explore.sweep.points import Points
from npusim.explore.sweep.store import RowStore, write_parquet
from npusim.profiling.sweep_plot import PlotSpec, sweep_figure

if TYPE_CHECKING:
    import pandas
    import polars
    from matplotlib.figure import Figure

Progress = Callable[[str, int, int], None]  #: stage, done, total
#: Points above which the user is asked first.
MANY = 100_000
_TRIED = 3  #: points that are run to estimate the time of all


class Sweep:
    """A study over chips, compile options and workloads.

        for row in Sweep("hbm-bandwidth", jobs=2).run():
            print(row["hbm.bandwidth"], row["latency_us"])

    Args:
        experiment: a shipped experiment's name, the path of a YAML file, or its keys as a dict.
        jobs: worker processes.
        engine: "local" (this machine), or "dask" (a cluster; `npusim[cluster]`).
        out: folder for rows.csv and rows.parquet; None keeps rows in memory only.
        resume: go on in a folder that has rows already: points that are there are not run again.
        cluster: address of a Dask scheduler; None starts `jobs` workers here.

    Attributes:
        rows: of the run so far, those that were there before among them.

    Raises:
        ExperimentError: a wrong experiment. UnsupportedError: an engine that there is not.
    """

    def __init__(
        self,
        experiment: str | Path | Mapping[str, Any] | Experiment,
        *,
        jobs: int = 1,
        engine: str = "local",
        out: str | Path | None = None,
        resume: bool = False,
        cluster: str | None = None,
    ) -> None:
        given = experiment
        self.experiment = given if isinstance(given, Experiment) else load_experiment(given)
        _refuse_search(self.experiment)
        self.rows: list[Row] = []
        self._jobs, self._resume = jobs, resume
        self._out = None if out is None else Path(out)
        self._engine = _engine(engine, cluster)
        self._points = Points(self.experiment)
        self._planned: list[Job] | None = None

    @property
    def count(self) -> int:
        """Runs, at most: combinations times repeats; constraints may leave fewer."""
        return self._points.count * self.experiment.file.repeats

    def plan(self) -> list[Job]:
        """Every point with its content key.

        Raises:
            ExperimentError: the constraints leave no point.
        """
        if self._planned is None:
            metrics = tuple(self.experiment.file.metrics)
            keys = Keys(metrics)
            self._planned = [Job(keys.key(p), p, metrics) for p in self._points]
        return self._planned

    def estimate(self) -> float:
        """Seconds that all points will take, by the first few of them."""
        metrics = tuple(self.experiment.file.metrics)
        evaluator, tried = Evaluator(), 0
        started = time.perf_counter()
        for point in self._points:
            evaluator.row(Job("", point, metrics))
            tried += 1
            if tried == _TRIED:
                break
        seconds = (time.perf_counter() - started) / tried
        return seconds * self.count / self._jobs

    def run(self, progress: Progress | None = None) -> Iterator[Row]:
        """Run the points; gives each row as it finishes.

        Args:
            progress: called with ("points", done, of how many) after each.
        """
        jobs = self.plan()
        if self._out is None:
            yield from self._rows(jobs, len(jobs), progress)
            return
        with RowStore(self._out, columns(jobs), self._resume) as store:
            known = [store.done[job.key] for job in jobs if job.key in store.done]
            self.rows.extend(known)
            left = [job for job in jobs if job.key not in store.done]
            yield from self._rows(left, len(jobs), progress, store)
        write_parquet(self.rows, self._out / "rows.parquet")

    def _rows(
        self,
        jobs: Sequence[Job],
        total: int,
        progress: Progress | None,
        store: RowStore | None = None,
    ) -> Iterator[Row]:
        if progress is not None:
            progress("points", len(self.rows), total)
        if not jobs:
            return
        for row in self._engine(jobs, self._jobs):
            if store is not None:
                store.add(row)
            self.rows.append(row)
            if progress is not None:
                progress("points", len(self.rows), total)
            yield row

    def frame(self) -> pandas.DataFrame:
        """The rows as a pandas frame, in the order of the points.

        Raises:
            UnsupportedError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise UnsupportedError(
                "a frame without pandas", "pandas", "pip install 'npusim[sweep]'"
            ) from None
        return pandas.DataFrame(self.ordered())

    def to_polars(self) -> polars.DataFrame:
        """The rows as a polars frame, in the order of the points.

        Raises:
            UnsupportedError: polars is not installed.
        """
        try:
            import polars
        except ImportError:
            raise UnsupportedError(
                "a frame without polars", "polars", "pip install polars, or use frame() of pandas"
            ) from None
        return polars.DataFrame(self.ordered(), infer_schema_length=None)

    def ordered(self) -> list[Row]:
        """The rows in the order of the points."""
        place = {job.key: n for n, job in enumerate(self.plan())}
        return sorted(self.rows, key=lambda row: place.get(row["key"], len(place)))

    def figures(self) -> list[Figure]:
        """A matplotlib figure for each plot of the experiment.

        Raises:
            UnsupportedError: matplotlib is not installed.
        """
        units = {name: m.unit for name, m in METRICS.items()}
        rows = self.ordered()
        return [
            sweep_figure(
                rows, PlotSpec(**{**p.model_dump(), "by": tuple(as_list(p.by))}, units=units)
            )
            for p in self.experiment.file.plots
        ]


def _refuse_search(experiment: Experiment) -> None:
    """A search's distributions have no points of their own."""
    if any(axis.draw for axis in experiment.swept) and experiment.file.samples is None:
        raise ExperimentError(
            f"{experiment.source}: a sweep of distributions without `samples`",
            "samples: how many draws to make; a search needs none",
            f"use `npusim search {experiment.name}`, or add `samples: 100`",
        )


def _engine(name: str, cluster: str | None) -> Engine:
    if name == "local":
        return run_local
    if name == "dask":
        from npusim.explore.sweep.dask_engine import dask_engine

        return dask_engine(cluster)
    raise UnsupportedError(f"engine {name!r}", "local, dask", "use one of these")
