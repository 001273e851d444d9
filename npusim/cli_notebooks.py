"""`npusim notebooks`: the studies that come with npusim, copied to where they can be edited."""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

from npusim.cli_shared import EXIT_OK, UsageError

DEFAULT_FOLDER = Path("npusim-notebooks")


def notebooks_command(args: argparse.Namespace) -> int:
    """Copy them, list them, say how to open them."""
    from npusim.data import data_dir

    sources = sorted(data_dir("notebooks").glob("*.ipynb"))
    copy_notebooks(sources, args.folder, force=args.force)
    for path in sources:
        print(f"{path.name:32} {title(path)}")
    print(f"\n{len(sources)} notebooks in {args.folder}; open them with:")
    if importlib.util.find_spec("jupyterlab") is None:
        print("pip install 'npusim[notebooks]'")
    print(f"jupyter lab {args.folder}")
    return EXIT_OK


def copy_notebooks(sources: list[Path], folder: Path, *, force: bool) -> None:
    """Copy files to a folder, which is made if need be.

    Args:
        force: replace files that are there and differ.

    Raises:
        UsageError: such a file is there. WriteError: the folder cannot be written to.
    """
    from npusim.profiling.files import WriteError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        targets = [folder / path.name for path in sources]
        for source, target in zip(sources, targets, strict=True):
            if not force and target.exists() and target.read_bytes() != source.read_bytes():
                raise UsageError(
                    f"{target} is there and differs from the one that comes with npusim",
                    "a folder without changed notebooks",
                    "name another folder, or replace your changes with --force",
                )
        for source, target in zip(sources, targets, strict=True):
            target.write_bytes(source.read_bytes())
    except OSError as error:
        raise WriteError(folder, error) from None


def title(path: Path) -> str:
    """A notebook's heading, without its number."""
    first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"]
    return str(first[0]).strip().lstrip("# ").partition(" ")[2]


def add_notebooks(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """The parser of the command."""
    parser = add_parser(
        "notebooks",
        usage="npusim notebooks [DIR] [--force]",
        allow_abbrev=False,
        help="copy the notebooks to a folder, and say how to open them",
        description="Copy the notebooks that come with npusim to a folder.",
    )
    parser.set_defaults(command=notebooks_command)
    parser.add_argument(
        "folder", type=Path, nargs="?", default=DEFAULT_FOLDER, metavar="DIR",
        help=f"made if need be (default: {DEFAULT_FOLDER})",
    )  # fmt: skip
    parser.add_argument("--force", action="store_true", help="replace notebooks that were changed")
