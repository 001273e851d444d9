"""`--opt-level O3` on the command line: compile as O2 does, then search tilings."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from npusim.cli_shared import UsageError, progress_bars

if TYPE_CHECKING:
    from npusim.chip import ChipSpec
    from npusim.compiler import CompileOptions
    from npusim.ir import Graph
    from npusim.program.executable import Executable
    from npusim.timeline.tiled import TilingGain


def compile_with_tilings(
    args: argparse.Namespace, graph: Graph, chip: ChipSpec, options: CompileOptions
) -> tuple[Executable, TilingGain | None]:
    """The executable, and what O3's search gained; None at other levels."""
    from npusim import api
    from npusim.compiler import TILING_LEVEL

    if options.level < TILING_LEVEL:
        return api.compile_graph(graph, chip, options=options), None
    exe = api.compile_graph(graph, chip, options=replace(options, level=TILING_LEVEL - 1))
    return searched(args, exe, chip)


def searched(
    args: argparse.Namespace, exe: Executable, chip: ChipSpec
) -> tuple[Executable, TilingGain]:
    """An executable with the tilings that a search found."""
    from npusim import api

    with progress_bars(not getattr(args, "quiet", False) and sys.stderr.isatty()) as progress:
        found = api.search_tilings(exe, chip, cache=args.tiling_cache, progress=progress)
    return replace(found.executable, notes=[*exe.notes, *found.gain.notes]), found.gain


def add_tiling_cache(group: argparse._ActionsContainer) -> None:
    """The option of the search's cache."""
    group.add_argument(
        "--tiling-cache", type=Path, metavar="DIR",
        help="where O3 keeps the tilings it found (default: npusim/tilings in the user's cache)",
    )  # fmt: skip


def refuse_unused_cache(args: argparse.Namespace) -> None:
    """A cache of a search that is not made is a mistake.

    Raises:
        UsageError: --tiling-cache without --opt-level O3.
    """
    if args.tiling_cache is not None and args.opt_level != "O3":
        raise UsageError(
            f"--tiling-cache with --opt-level {args.opt_level}: no tilings are searched",
            "--opt-level O3 --tiling-cache DIR",
            "add --opt-level O3, or leave out --tiling-cache",
        )
