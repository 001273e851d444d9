"""`npusim search`: designs that no other beats, by Optuna."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from npusim.cli_shared import EXIT_INTERRUPTED, EXIT_OK, console, positive, progress_bars
from npusim.cli_sweep import OUT, add_experiment

if TYPE_CHECKING:
    from npusim.explore.sweep.search import Search


def search_command(args: argparse.Namespace) -> int:
    """Try designs, print the front, draw it."""
    from npusim.explore.sweep.search import Search
    from npusim.profiling.sweep_report import print_rows

    search = Search(args.experiment, _storage(args))
    folder = args.out or OUT / search.experiment.name
    try:
        _run(args, search)
    except KeyboardInterrupt:
        print(f"interrupted: {search.done} trials are kept; run it again to go on", file=sys.stderr)
        return EXIT_INTERRUPTED
    terminal = console()
    front = search.front
    terminal.print(f"{search.experiment.name}: {search.done} trials, {len(front)} on the front\n")
    print_rows(front, search.metrics, terminal, top=args.top)
    print("\nwritten: " + ", ".join(map(str, _write(search, folder))))
    return EXIT_OK


def _storage(args: argparse.Namespace) -> str | Path:
    from npusim.explore.sweep import load_experiment

    folder = args.out or OUT / load_experiment(args.experiment).name
    return args.storage or folder / "search.db"


def _run(args: argparse.Namespace, search: Search) -> None:
    """The trials, on several processes that share the storage if asked for."""
    context = multiprocessing.get_context("spawn")
    work = (args.experiment, _storage(args), args.trials)
    others = [context.Process(target=_work, args=work) for _ in range(args.jobs - 1)]
    for other in others:
        other.start()
    try:
        with progress_bars(sys.stderr.isatty()) as progress:
            search.run(args.trials, progress)
        for other in others:
            other.join()
    finally:
        for other in others:
            other.terminate()


def _work(experiment: str, storage: str | Path, trials: int | None) -> None:
    from npusim.explore.sweep.search import Search

    Search(experiment, storage).run(trials)


def _write(search: Search, folder: Path) -> list[Path]:
    """The rows as CSV, the front as a picture where it has two objectives."""
    from npusim.errors import UnsupportedError
    from npusim.explore.sweep.store import write_csv

    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "trials.csv", folder / "front.csv"]
    write_csv(search.rows, written[0])
    write_csv(search.front, written[1])
    try:
        figure = search.figure()
    except UnsupportedError as error:
        print(f"no plot: {error.what}; {error.fix}", file=sys.stderr)
        return written
    figure.savefig(folder / "front.png", dpi=120)
    return [*written, folder / "front.png"]


def add_search(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """The parser of the command."""
    parser = add_parser(
        "search",
        usage="npusim search EXPERIMENT [options]",
        allow_abbrev=False,
        help="search an experiment's designs for the best trade-offs",
        description="Try designs of an experiment with a `search` section; print those that no "
        "other beats in every objective. Run it again to go on.",
    )
    parser.set_defaults(command=search_command)
    add_experiment(parser)
    parser.add_argument("--trials", type=positive, metavar="N", help="in all (the experiment's)")
    parser.add_argument(
        "--storage", metavar="PATH|URL", help="of Optuna (default: search.db in the folder)"
    )
    parser.add_argument("--top", type=positive, default=30, metavar="N", help="rows printed (30)")
