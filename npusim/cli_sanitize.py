"""`--sanitize` on the command line: check every kernel launch of a model before it runs."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from npusim.cli_shared import progress_bars

if TYPE_CHECKING:
    from npusim.chip import ChipSpec
    from npusim.program.executable import Executable
    from npusim.sanitize import SanitizeReport


def add_sanitize(group: argparse._ActionsContainer) -> None:
    """The option."""
    group.add_argument(
        "--sanitize", action="store_true",
        help="look for races, flags that do not add up and misused buffers in every kernel",
    )  # fmt: skip


def sanitized(args: argparse.Namespace, exe: Executable, chip: ChipSpec) -> SanitizeReport | None:
    """What the sanitizer found, printed; None when it was not asked for."""
    if not args.sanitize:
        return None
    from npusim import api

    with progress_bars(not args.quiet and sys.stderr.isatty()) as progress:
        report = api.sanitize(exe, chip, progress=progress)
    print(report)
    return report
