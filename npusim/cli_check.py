"""`npusim check`: what of a model is unsupported, and where the rest would run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from npusim.cli_shared import EXIT_CHECK_FAILED, EXIT_OK, add_input, add_model, console

if TYPE_CHECKING:
    from rich.console import Console

    from npusim.frontends.onnx_importer import Problem
    from npusim.model_check import ModelCheck


def check_command(args: argparse.Namespace) -> int:
    """Check a model without running it."""
    from npusim.chip import load_chip
    from npusim.compiler import CompileOptions
    from npusim.model_check import check_model

    chip = load_chip(args.chip, args.set)
    options = CompileOptions(args.precision or "fp16")
    found = check_model(
        args.model,
        chip,
        options,
        batch=args.batch,
        shapes=dict(args.shape) or None,
        inputs=dict(args.input) or None,
    )
    terminal = console()
    if found.problems:
        print_problems(found.problems, terminal)
    if found.refusal is not None:
        print(f"{found.refusal}\n")
    _print_shares(found, chip.name, terminal)
    return EXIT_OK if found.passed else EXIT_CHECK_FAILED


def print_problems(problems: Sequence[Problem], terminal: Console) -> None:
    """Every node that cannot be run: what, why, and what could be instead."""
    from rich.text import Text

    from npusim.profiling.tables import table

    many = "1 node" if len(problems) == 1 else f"{len(problems)} nodes"
    shown = table(f"{many} cannot be run", "node", "operator", ">opset", "why", "supported instead")
    for p in problems:
        operator = f"{p.domain}.{p.op_type}" if p.domain else p.op_type
        cells = (p.name, operator, str(p.opset), p.error.what, f"{p.error.allowed}; {p.error.fix}")
        shown.add_row(*map(Text, cells))
    terminal.print(shown, "")


def _print_shares(found: ModelCheck, chip: str, terminal: Console) -> None:
    from rich.text import Text

    from npusim.profiling.tables import table
    from npusim.profiling.text import percent

    rest = "the nodes that can be run" if found.problems else "all nodes"
    print(f"{found.name}: {rest} ({found.nodes}), compiled for {chip}")
    if found.executable is None:
        return
    shown = table("", "unit", ">tasks", ">of tasks", ">of FLOPs", ">of bytes written")
    shares = found.shares()
    totals = [max(sum(s[i] for s in shares.values()), 1) for i in range(3)]
    for unit, (tasks, flops, size) in shares.items():
        parts = (percent(n / total) for n, total in zip((tasks, flops, size), totals, strict=True))
        shown.add_row(*map(Text, (unit, str(tasks), *parts)))
    terminal.print(shown)
    for note in found.executable.notes:
        terminal.print(Text(f"note  {note}"))


def add_check(add: Callable[..., Any]) -> None:
    """The command's parser."""
    parser = add(
        "check",
        usage="npusim check MODEL [options]",
        allow_abbrev=False,
        help="list what of a model is unsupported, without running it",
        description="List every node that npusim cannot run, and where the others would run.",
        epilog="exit code 1 when a node cannot be run",
    )
    parser.set_defaults(command=check_command)
    add_model(parser)
    add_input(parser)
