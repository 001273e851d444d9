"""`npusim replay`, `validate`, `calibrate`: recorded profiles beside what npusim predicts."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim.cli_shared import EXIT_OK, UsageError, add_set, console, positive, progress_bars

if TYPE_CHECKING:
    from npusim.frontends.recorded import RecordedOp


def replay_command(args: argparse.Namespace) -> int:
    """Read a profile, time its rows on a chip, report."""
    from npusim.chip import load_chip
    from npusim.explore.replay import replay
    from npusim.explore.replay.workers import default_jobs
    from npusim.frontends.recorded import read_profile
    from npusim.profiling.files import write_text
    from npusim.profiling.replay_plot import check_plot, write_plot
    from npusim.profiling.replay_report import print_replay, print_replay_quiet, replay_json

    if args.plot:
        check_plot(args.plot)
    chip = load_chip(args.chip, args.set)
    ops = read_profile(args.profile)
    chosen = _of_chip(ops, chip.name)
    with progress_bars(not args.quiet and sys.stderr.isatty()) as progress:
        how: dict[str, Any] = {
            "in_sequence": not args.isolated,
            "jobs": args.jobs or default_jobs(),
            "progress": progress,
        }
        result = replay(chosen, chip, **how)
        rows = result.plain(chip)
        plain_chip = load_chip(args.chip)
        unchanged = replay(chosen, plain_chip, **how).plain(plain_chip) if args.set else []
    if args.quiet:
        print_replay_quiet(rows, console(), unchanged)
    else:
        left_out = len(ops) - len(chosen)
        heading = [
            ("profile", f"{args.profile}: {len(chosen)} rows"
             + (f" of this chip, {left_out} of others left out" if left_out else "")),
            ("chip", " ".join([chip.name, *(f"--set {s}" for s in args.set)])),
            ("mode", f"{result.mode}, L2 {'cold' if args.isolated else 'carried over'}"),
        ]  # fmt: skip
        print_replay(rows, console(), heading=heading, unchanged=unchanged, top=args.top)
    sys.stdout.flush()
    if args.json:
        data = replay_json(
            rows, chip=chip.name, mode=result.mode, changes=args.set, unchanged=unchanged
        )
        write_text(
            args.json, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        )
    if args.plot:
        write_plot(rows, args.plot, f"{args.profile.name} on {chip.name}")
    return EXIT_OK


def validate_command(args: argparse.Namespace) -> int:
    """Replay all shipped figures, or a user's files, each on its chip; report the errors."""
    from npusim.explore.kernel_constants import kernel_constants
    from npusim.explore.replay.workers import default_jobs
    from npusim.explore.validation import validate
    from npusim.profiling.files import write_text
    from npusim.profiling.validation_report import (
        accuracy_page,
        print_validation,
        validation_json,
    )

    with progress_bars(sys.stderr.isatty()) as progress:
        found = validate(
            args.profile, chip=args.chip, jobs=args.jobs or default_jobs(), progress=progress
        )
    left_out = {"left_out": found.left_out, "models_left_out": found.models_left_out}
    print_validation(found.chips, console(), models=found.models, **left_out)
    sys.stdout.flush()
    if args.output:
        constants = [
            (f"{c.module}.{c.name}", c.value, c.comment) for c in kernel_constants() if c.timed
        ]
        write_text(args.output, accuracy_page(found.chips, found.models, constants))
    if args.json:
        data = validation_json(found.chips, found.models, **left_out)
        write_text(
            args.json, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        )
    return EXIT_OK


def calibrate_command(args: argparse.Namespace) -> int:
    """Fit keys of a chip to a profile, print old and new, write a chip."""
    from rich.text import Text

    from npusim.chip import load_chip
    from npusim.explore.calibrate import calibrate, calibrated_yaml
    from npusim.explore.replay.workers import default_jobs
    from npusim.frontends.recorded import read_profile
    from npusim.profiling.files import write_text
    from npusim.profiling.tables import table
    from npusim.profiling.text import percent

    ops = _of_chip(read_profile(args.data), load_chip(args.chip).name)
    if args.types:
        ops = [op for op in ops if op.op_type in args.types]
    with progress_bars(sys.stderr.isatty()) as progress:
        found = calibrate(
            ops, args.chip, args.free, jobs=args.jobs or default_jobs(), progress=progress
        )
    rows = table(f"{found.chip}: fitted to {found.rows} rows of {args.data.name}",
                 "key", ">old", ">new", ">change", ">sensitivity")  # fmt: skip
    for key in found.keys:
        cells = (
            key.key, f"{key.old:.4g}", f"{key.new:.4g}", f"{key.new / key.old - 1:+.1%}",
            f"{key.sensitivity:+.2f}",
        )  # fmt: skip
        rows.add_row(*map(Text, cells))
    rows.caption = (
        f"error {percent(found.error_before)} before, {percent(found.error_after)} after; "
        "base units; sensitivity: % of the summed time per % of the key"
    )
    console().print(rows)
    if args.output:
        write_text(args.output, calibrated_yaml(found, args.chip, args.data.name))
    return EXIT_OK


def _of_chip(ops: Sequence[RecordedOp], chip: str) -> list[RecordedOp]:
    """The rows that ran on the chip; a profile that names no device is taken as the chip's.

    A variant, "ascend910b4-fitted", takes the rows of the chip that it is a variant of.

    Raises:
        UsageError: all rows are of other devices.
    """
    from npusim.frontends.recorded import chip_of

    def fits(device: str) -> bool:
        known = chip_of(device) or device
        return not device or known == chip or chip.startswith(f"{known}-")

    chosen = [op for op in ops if fits(op.device)]
    if not chosen and ops:
        others = sorted({chip_of(op.device) or op.device for op in ops})
        raise UsageError(
            f"no row of the profile ran on {chip}",
            f"--chip {' | '.join(others[:6])}",
            "name the chip that the profile was recorded on",
        )
    if not chosen:
        raise UsageError("the profile has no operators", "at least one row", "record it again")
    return chosen


def add_replay(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """The parsers of the three commands."""
    replay = add_parser(
        "replay",
        usage="npusim replay FILE|FOLDER [options]",
        allow_abbrev=False,
        help="time a profile that a real chip recorded, and compare",
        description="Replay op_summary_*.csv, kernel_details.csv or a table of operator times.",
    )
    replay.set_defaults(command=replay_command)
    replay.add_argument("profile", type=Path, metavar="FILE|FOLDER", help="the recorded profile")
    replay.add_argument(
        "--chip", default="ascend910a", metavar="NAME|PATH", help="chip (default: ascend910a)"
    )
    add_set(replay)
    replay.add_argument("--isolated", action="store_true", help="every op finds L2 cold")
    replay.add_argument("--jobs", type=positive, metavar="N", help="processes (default: cores)")
    replay.add_argument("--top", type=positive, default=15, metavar="N", help="rows a table (15)")
    replay.add_argument("-q", "--quiet", action="store_true", help="one line a net")
    replay.add_argument("--json", type=Path, metavar="PATH", help="all rows as data")
    replay.add_argument("--plot", type=Path, metavar="PATH", help="scatter plot, .png or .html")
    validate = add_parser(
        "validate",
        usage="npusim validate [FILE|FOLDER] [options]",
        allow_abbrev=False,
        help="the errors against published figures of real chips",
        description="Replay the shipped figures, or those of a file, each on its chip.",
    )
    validate.set_defaults(command=validate_command)
    validate.add_argument(
        "profile", type=Path, nargs="?", metavar="FILE|FOLDER", help="default: shipped figures"
    )
    validate.add_argument(
        "--chip", default="ascend910-30c", metavar="NAME",
        help="of files that name no device (default: ascend910-30c)",
    )  # fmt: skip
    validate.add_argument("--jobs", type=positive, metavar="N", help="processes (default: cores)")
    validate.add_argument("--json", type=Path, metavar="PATH", help="all errors and rows as data")
    validate.add_argument(
        "-o", "--output", type=Path, metavar="PATH.md", help="write the accuracy page"
    )
    fit = add_parser(
        "calibrate",
        usage="npusim calibrate --data FILE --free KEYS [options]",
        allow_abbrev=False,
        help="fit constants of a chip to recorded times",
        description="Least-squares fit of chosen chip keys; needs npusim[calibrate].",
    )
    fit.set_defaults(command=calibrate_command)
    fit.add_argument("--data", type=Path, required=True, metavar="FILE|FOLDER", help="a profile")
    fit.add_argument(
        "--free", type=_names, required=True, metavar="KEYS",
        help="keys to fit, with commas between: hbm.bandwidth,scheduler.launch",
    )  # fmt: skip
    fit.add_argument(
        "--chip", default="ascend910-30c", metavar="NAME|PATH",
        help="where the fit starts (default: ascend910-30c)",
    )  # fmt: skip
    fit.add_argument("--types", type=_names, metavar="TYPES", help="fit to these op types only")
    fit.add_argument("--jobs", type=positive, metavar="N", help="processes (default: cores)")
    fit.add_argument("-o", "--output", type=Path, metavar="CHIP.yaml", help="write the fitted chip")


def _names(text: str) -> list[str]:
    """ "a,b" → ["a", "b"]; each once."""
    return list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
