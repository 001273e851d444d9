"""How the host runs a model: `--exec`, `--sink-size`, `--steps`, `--timeline`; and Ctrl-C."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from npusim.cli_shared import EXIT_INTERRUPTED, UsageError, positive

if TYPE_CHECKING:
    from npusim.machine.host import HostPlan
    from npusim.timeline import RunResult


def add_exec(group: argparse._ActionsContainer) -> None:
    """The options."""
    group.add_argument(
        "--exec", choices=("eager", "graph"),
        help="the host enqueues op by op, or launches the whole graph (default: no host)",
    )  # fmt: skip
    group.add_argument(
        "--steps", type=positive, metavar="N", help="run the model N times (default: one launch)"
    )
    group.add_argument(
        "--sink-size", type=positive, default=1, metavar="N",
        help="steps that one launch of a graph runs (1)",
    )  # fmt: skip
    group.add_argument(
        "--timeline", choices=("full", "summary"), default="full",
        help="keep every op, or their sums: memory that does not grow with the run",
    )  # fmt: skip


def host_plan(args: argparse.Namespace) -> HostPlan:
    """What the options ask for.

    Raises:
        UsageError: options that contradict each other.
    """
    from npusim.machine.host import HostPlan

    if args.timeline == "summary" and (args.trace or args.trace_op):
        raise UsageError(
            "--timeline summary with --trace: a trace needs every op",
            "one of the two",
            "leave out --trace and --trace-op, or --timeline summary",
        )
    return HostPlan(args.exec, args.steps or args.sink_size, args.sink_size)


def exec_options(args: argparse.Namespace) -> dict[str, object]:
    """What the report states about them."""
    options: dict[str, object] = {}
    if args.exec:
        options["exec"] = args.exec
    if args.steps:
        options["steps"] = args.steps
    if args.sink_size > 1:
        options["sink size"] = args.sink_size
    if args.timeline != "full":
        options["timeline"] = args.timeline
    return options


def save_partial(result: RunResult, args: argparse.Namespace) -> int:
    """After Ctrl-C: write what there is, say where; gives the exit code.

    It goes to --json or --out where given, else to `npusim-partial.json` here.
    """
    from npusim.profiling.files import write_results

    path: Path | None = args.json
    if path is None and args.out is None:
        path = Path("npusim-partial.json")
    write_results(result, traced=lambda: result, json_path=path, folder=args.out)
    print(
        f"interrupted after {result.timeline.tasks} tasks, at {result.timeline.total_us:.1f} µs; "
        f"the timeline so far is in {path or args.out}, marked as partial",
        file=sys.stderr,
    )
    return EXIT_INTERRUPTED
