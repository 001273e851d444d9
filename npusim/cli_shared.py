"""What the commands share: exit codes, errors, the console, progress bars, options."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any

from npusim.errors import NpusimError

if TYPE_CHECKING:
    from rich.console import Console

    from npusim.api import LoadedModel, Progress

DEFAULT_CHIP = "ascend910a"
EXIT_OK, EXIT_CHECK_FAILED, EXIT_ERROR, EXIT_INTERRUPTED = 0, 1, 2, 130


class UsageError(NpusimError):
    """The command line itself is wrong."""


@contextlib.contextmanager
def progress_bars(shown: bool) -> Iterator[Progress | None]:
    """A progress callback that draws bars on stderr while the block runs; None when not shown."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    with Bars(console=Console(stderr=True), transient=True) as bars:
        stages: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages[stage] = bars.add_task(stage)
            bars.update(stages[stage], completed=done, total=total)

        yield report


def console(file: IO[str] | None = None) -> Console:
    """Where results go (default: standard output): plain, `REPORT_WIDTH` wide when no terminal."""
    from rich.console import Console

    from npusim.profiling.report import REPORT_WIDTH

    found = Console(highlight=False, file=file)
    if not found.is_terminal:
        found.width = REPORT_WIDTH
    return found


def loaded_model(args: argparse.Namespace) -> LoadedModel:
    """The model that the options of `add_model` name.

    Raises:
        ModelError: unknown name, unreadable file, shapes that do not fit.
    """
    from npusim import api

    return api.load_model(
        args.model, batch=args.batch, shapes=dict(args.shape) or None, seed=args.seed,
        precision=args.precision,
    )  # fmt: skip


def refuse_without_model(
    args: argparse.Namespace, command: str, page: str, options: Iterable[str]
) -> None:
    """A worked example stands as it is.

    Raises:
        UsageError: an option that belongs to a model.
    """
    for option in options:
        if getattr(args, option):
            raise UsageError(
                f"--{option} without a model",
                f"npusim {command} MODEL [options], or npusim {command} -o {page} alone",
                f"name a model, or leave out --{option}",
            )


def add_set(parser: argparse._ActionsContainer) -> None:
    """The option that changes a key of the chip."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="change a key of the chip, e.g. hbm.bandwidth=2.4TB/s (repeatable)",
    )  # fmt: skip


def positive(text: str) -> int:
    """A whole number of at least 1."""
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


#: CANN's `--precision_mode` values (`npusim.compiler.precision_modes.MODES`, not imported here).
PRECISION_MODES = (
    "must_keep_origin_dtype",
    "allow_fp32_to_bf16",
    "allow_fp32_to_fp16",
    "allow_mix_precision_bf16",
    "allow_mix_precision",
    "allow_mix_precision_fp16",
    "force_fp16",
)


def _add_precision(group: argparse._ActionsContainer) -> None:
    """The type that float32 operators compute in: npusim's short names, or CANN's modes."""
    one = group.add_mutually_exclusive_group()
    one.add_argument(
        "--precision", choices=("fp32", "fp16", "bf16"), help="default: the workload's, else fp16"
    )
    one.add_argument(
        "--precision-mode", dest="precision", choices=PRECISION_MODES, metavar="MODE",
        help="CANN's: " + ", ".join(PRECISION_MODES),
    )  # fmt: skip


def add_model(
    parser: argparse.ArgumentParser, precision: bool = True, *, optional: bool = False
) -> None:
    """What to compile or run: the model, its sizes, the chip, and the precision if wanted.

    `optional`: the command has something to do without a model; model and chip are None then.
    """
    parser.add_argument(
        "model", metavar="MODEL", help="a workload's name, a workload .yaml, or an .onnx file",
        nargs="?" if optional else None,
    )  # fmt: skip
    what = parser.add_argument_group("what to run")
    what.add_argument(
        "--chip", default=None if optional else DEFAULT_CHIP, metavar="NAME|PATH",
        help=f"chip (default: {DEFAULT_CHIP})",
    )  # fmt: skip
    add_set(what)
    what.add_argument("--batch", type=positive, metavar="N", help="samples at once")
    what.add_argument(
        "--shape", type=_shape, action="append", default=[], metavar="NAME=1,3,224,224",
        help="shape of an input (repeatable)",
    )  # fmt: skip
    if precision:
        _add_precision(what)
    what.add_argument("--seed", type=int, metavar="N", help="of weights and inputs")


def add_input(parser: argparse._ActionsContainer) -> None:
    """The option that gives elements of inputs."""
    parser.add_argument(
        "--input", type=_input, action="append", default=[], metavar="NAME=1,2|FILE.npy",
        help="elements of an input, instead of random ones (repeatable)",
    )  # fmt: skip


def _input(text: str) -> tuple[str, Any]:
    """The input and its elements: a list of numbers, or the array in a .npy file."""
    name, _, value = text.partition("=")
    if not name or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=1,2,3 or NAME=FILE.npy")
    if value.endswith(".npy"):
        import numpy as np

        try:
            return name, np.load(value, allow_pickle=False)
        except (OSError, ValueError) as e:
            raise argparse.ArgumentTypeError(f"{value} cannot be read: {e}") from None
    try:
        numbers = [float(part) for part in value.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is not a list of numbers") from None
    whole = all(n.is_integer() for n in numbers)
    return name, [int(n) for n in numbers] if whole else numbers


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    """The input and its dims: x=1,3,224,224 gives ("x", (1, 3, 224, 224))."""
    name, _, dims = text.rpartition("=")
    parts: Iterable[str] = dims.split(",") if dims else ()
    if not name or not all(part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=1,3,224,224")
    return name, tuple(int(part) for part in parts)
