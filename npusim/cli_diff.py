"""`npusim diff`: two runs beside each other."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from npusim.cli_shared import EXIT_OK, console, positive


def diff_command(args: argparse.Namespace) -> int:
    """Compare two runs op by op."""
    from npusim.profiling.files import write_json
    from npusim.profiling.run_diff import align, diff_json, load_run, print_diff

    before, after = load_run(args.before), load_run(args.after)
    pairs = align(before.ops, after.ops)
    print_diff(before, after, pairs, console(), args.top)
    sys.stdout.flush()
    if args.json:
        data = diff_json(before, after, pairs)
        write_json(args.json, data)
    return EXIT_OK


def add_diff(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """The parser of the command."""
    parser = add_parser(
        "diff",
        usage="npusim diff A.json B.json [options]",
        allow_abbrev=False,
        help="compare two runs op by op",
        description="Two runs (files of `npusim run --json`), op by op: what changed, and why.",
    )
    parser.set_defaults(command=diff_command)
    parser.add_argument("before", type=Path, metavar="A.json", help="the first run")
    parser.add_argument("after", type=Path, metavar="B.json", help="the second run")
    parser.add_argument("--top", type=positive, default=15, metavar="N", help="ops shown (15)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="the comparison as data")
