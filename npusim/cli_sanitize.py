"""`--sanitize` on the command line: every kernel launch of a model, and the order of its tasks."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from npusim.cli_shared import progress_bars

if TYPE_CHECKING:
    from npusim.chip import ChipSpec
    from npusim.program.executable import Executable
    from npusim.sanitize import SanitizeReport, StreamSanitizer
    from npusim.timeline import RunResult


def add_sanitize(group: argparse._ActionsContainer) -> None:
    """The option."""
    group.add_argument(
        "--sanitize", action="store_true",
        help="look for races, flags that do not add up and misused memory, in kernels and streams",
    )  # fmt: skip


class Sanitizer:
    """`--sanitize`: kernels before the run, streams during it. Does nothing when not asked for.

    Attributes:
        streams: what the run has to tell (its `observer`); None when not asked for.
    """

    def __init__(self, args: argparse.Namespace, exe: Executable, chip: ChipSpec) -> None:
        self._kernels: SanitizeReport | None = None
        self.streams: StreamSanitizer | None = None
        if not args.sanitize:
            return
        from npusim import api

        with progress_bars(not args.quiet and sys.stderr.isatty()) as progress:
            self._kernels = api.sanitize(exe, chip, progress=progress)
        self.streams = api.stream_sanitizer(exe)
        print(self._kernels)

    @property
    def failed(self) -> bool:
        """Something was found."""
        return any(part is not None and part.findings for part in (self._kernels, self.streams))

    def report(self, result: RunResult) -> RunResult:
        """Print what the run showed; the result with all that was found, as data."""
        if self._kernels is None or self.streams is None:
            return result
        print(self.streams)
        data: dict[str, object] = {
            "kernels": self._kernels.as_dict(),
            "streams": self.streams.as_dict(),
        }
        return replace(result, sanitizer=data)
