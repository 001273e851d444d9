"""`npusim sweep` and `npusim experiments`: many runs from one YAML file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from npusim.cli_shared import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    UsageError,
    console,
    positive,
    progress_bars,
)

if TYPE_CHECKING:
    from npusim.explore.sweep import Experiment, Sweep

OUT = Path("sweeps")


def sweep_command(args: argparse.Namespace) -> int:
    """Run the points, keep the rows, draw the plots, print the table."""
    from npusim.explore.sweep import Sweep, load_experiment
    from npusim.profiling.sweep_report import print_rows

    experiment = load_experiment(args.experiment)
    folder = args.out or OUT / experiment.name
    sweep = Sweep(
        experiment, jobs=args.jobs, engine=args.engine, out=folder, resume=args.resume,
        cluster=args.cluster,
    )  # fmt: skip
    refuse_many(sweep, args.yes)
    total = len(sweep.plan())
    print(f"{experiment.name}: {total} points, into {folder}", file=sys.stderr)
    try:
        with progress_bars(sys.stderr.isatty()) as progress:
            for _ in sweep.run(progress):
                pass
    except KeyboardInterrupt:
        again = f"npusim sweep {args.experiment} --out {folder} --resume"
        print(f"interrupted: {len(sweep.rows)} of {total} points; go on: {again}", file=sys.stderr)
        return EXIT_INTERRUPTED
    terminal = console()
    print_rows(sweep.ordered(), experiment.file.metrics, terminal, top=args.top)
    written = [folder / "rows.csv", *_plots(sweep, folder)]
    parquet = folder / "rows.parquet"
    written += [parquet] if parquet.exists() else []
    print("\nwritten: " + ", ".join(map(str, written)))
    return EXIT_OK


def refuse_many(sweep: Sweep, yes: bool) -> None:
    """Ask before a sweep that takes long.

    Raises:
        UsageError: more points than `MANY`, and nobody said yes.
    """
    from npusim.explore.sweep.sweep import MANY
    from npusim.profiling.text import duration

    if yes or sweep.count <= MANY:
        return
    raise UsageError(
        f"{sweep.experiment.name} has {sweep.count} points, about "
        f"{duration(sweep.estimate() * 1e6)} of work",
        f"up to {MANY} points without --yes",
        "add --yes, sweep fewer values, or draw some: `samples: 1000`",
    )


def _plots(sweep: Sweep, folder: Path) -> list[Path]:
    """Draw the experiment's plots; none where matplotlib is missing."""
    from npusim.errors import UnsupportedError

    try:
        figures = sweep.figures()
    except UnsupportedError as error:
        print(f"no plots: {error.what}; {error.fix}", file=sys.stderr)
        return []
    paths = []
    for number, figure in enumerate(figures, 1):
        path = folder / f"plot{number}.png"
        figure.savefig(path, dpi=120)
        paths.append(path)
    return paths


def experiments_command(args: argparse.Namespace) -> int:
    """The shipped experiments: what each shows."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from npusim.explore.sweep import list_experiments

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("experiment", no_wrap=True)
    table.add_column("points", justify="right")
    table.add_column("what it shows")
    for experiment in list_experiments():
        table.add_row(experiment.name, _size(experiment), Text(experiment.description))
    console().print(table)
    return EXIT_OK


def _size(experiment: Experiment) -> str:
    from npusim.explore.sweep.points import Points

    search = experiment.file.search
    if search is not None:
        return f"{search.trials} trials"
    return str(Points(experiment).count * experiment.file.repeats)


def add_sweep(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """The parsers of the commands."""
    parser = add_parser(
        "sweep",
        usage="npusim sweep EXPERIMENT [options]",
        allow_abbrev=False,
        help="run an experiment: many chips, workloads and options",
        description="Run all points of an experiment. Rows are kept as they finish: after a crash "
        "or Ctrl-C, --resume goes on.",
    )
    parser.set_defaults(command=sweep_command)
    add_experiment(parser)
    parser.add_argument(
        "--engine", choices=("local", "dask"), default="local",
        help="local: processes here (default); dask: a cluster",
    )  # fmt: skip
    parser.add_argument(
        "--cluster", metavar="ADDRESS", help="Dask scheduler; without it, dask starts -j workers"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the rows that are there")
    parser.add_argument("--yes", action="store_true", help="do not ask, however many the points")
    parser.add_argument("--top", type=positive, default=30, metavar="N", help="rows printed (30)")
    listing = add_parser("experiments", help="list the shipped experiments")
    listing.set_defaults(command=experiments_command)


def add_experiment(parser: argparse.ArgumentParser) -> None:
    """What both commands take: the experiment, workers, the folder."""
    parser.add_argument(
        "experiment", metavar="EXPERIMENT", help="an experiment's name, or its .yaml"
    )
    parser.add_argument(
        "-j", "--jobs", type=positive, default=1, metavar="N", help="points at a time (1)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help=f"folder of the results ({OUT}/NAME)"
    )
