"""The command line: `npusim run resnet50 --check`, `npusim chips`, …

A thin face. Heavy modules are imported inside the commands, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import functools
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import npusim
from npusim.cli_ablate import add_ablate
from npusim.cli_check import add_check, print_problems
from npusim.cli_compile import add_compile, add_compile_options, compile_options
from npusim.cli_diff import add_diff
from npusim.cli_exec import add_exec, exec_options, host_plan, save_partial
from npusim.cli_notebooks import add_notebooks
from npusim.cli_overlap import add_overlap
from npusim.cli_pipeline import add_pipeline
from npusim.cli_precision import add_precision
from npusim.cli_replay import add_replay
from npusim.cli_requests import run_requests_command
from npusim.cli_sanitize import Sanitizer, add_sanitize
from npusim.cli_search import add_search
from npusim.cli_shared import (
    EXIT_CHECK_FAILED,
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    EXIT_OK,
    UsageError,
    add_input,
    add_model,
    add_set,
    console,
    positive,
    progress_bars,
)
from npusim.cli_sweep import add_sweep
from npusim.cli_tiling import compile_with_tilings
from npusim.errors import NpusimError, UnsupportedNodesError, nearest

if TYPE_CHECKING:
    from rich.table import Table

    from npusim.api import RunResult
    from npusim.chip import ChipSpec
    from npusim.program.executable import Executable


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0, 1 (a check failed), 2 (error), 130 (Ctrl-C)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # "µs" on a terminal that knows only ASCII
    try:
        args = make_parser().parse_args(argv)
        command: Callable[[argparse.Namespace], int] = args.command
        code = command(args)
        sys.stdout.flush()  # a reader that has gone shows here, not at the interpreter's end
        return code
    except NpusimError as error:
        print(error, file=sys.stderr)
        if isinstance(error, UnsupportedNodesError) and len(error.problems) > 1:
            print_problems(error.problems, console(sys.stderr))
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `npusim chips | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


# -- run -----------------------------------------------------------------------------------


def _run(args: argparse.Namespace) -> int:
    """Load, compile, run, check, report."""
    from npusim import api
    from npusim.chip import load_chip
    from npusim.profiling.files import write_results
    from npusim.profiling.report import check_line, print_quiet, print_report
    from npusim.profiling.summary import failed_outputs
    from npusim.profiling.tiling_report import print_gain

    checking = args.check or args.check_all
    _refuse_timing_only(args, checking)
    chip = load_chip(args.chip, args.set)
    model = api.load_model(
        args.model,
        batch=args.batch,
        shapes=dict(args.shape) or None,
        seed=args.seed,
        precision=args.precision,
        inputs=dict(args.input) or None,
    )
    options, notes = compile_options(args, model.precision)
    if model.requests:
        return run_requests_command(args, model, chip, options)
    exe, gain = compile_with_tilings(args, model.graph, chip, options)
    if notes:
        exe.notes.extend(notes)
    _refuse_unknown_ops(args.trace_op, exe)
    plan = host_plan(args)
    inputs = None if args.timing_only else api.make_inputs(model)
    sanitizer = Sanitizer(args, exe, chip)
    try:
        with progress_bars(not args.quiet and sys.stderr.isatty()) as progress:
            result = api.run(
                exe,
                chip,
                inputs=inputs,
                timing_only=args.timing_only,
                tile_level=args.tile_level,
                detail=args.detail,
                batch=model.batch,
                trace_ops=args.trace_op,
                keep_tensors=args.check_all,
                progress=progress,
                options=_options(args),
                host=plan,
                keep=args.timeline,
                observer=sanitizer.streams,
            )
            if checking:
                result = api.check(model, exe, result, inputs or {}, every_tensor=args.check_all)
    except api.RunInterrupted as stop:
        return save_partial(stop.result, args)
    result = sanitizer.report(result)
    terminal = console()
    if args.quiet:
        print_quiet(result, terminal)
    else:
        print_report(result, terminal, top=args.top)
    if gain is not None:
        print_gain(gain, terminal, args.top, quiet=args.quiet)
    sys.stdout.flush()  # whatever happens to the files
    write_results(
        result,
        traced=functools.cache(lambda: _with_spans(args, result, exe, chip)),
        json_path=args.json,
        trace_path=args.trace,
        folder=args.out,
        top=args.top,
    )
    if failed_outputs(result):
        print(check_line(result), file=sys.stderr)
        return EXIT_CHECK_FAILED
    return EXIT_CHECK_FAILED if sanitizer.failed else EXIT_OK


def _refuse_timing_only(args: argparse.Namespace, checking: bool) -> None:
    for given, option in ((args.tile_level, "--tile-level"), (checking, "--check")):
        if args.timing_only and given:
            raise UsageError(
                f"{option} with --timing-only: nothing is computed then",
                "one of the two",
                f"leave out --timing-only or {option}",
            )


def _refuse_unknown_ops(names: Sequence[str], exe: Executable) -> None:
    tasks = [task.name for task in exe.tasks]
    for name in names:
        if name not in tasks:
            near = nearest(name, tasks)
            raise UsageError(
                f"--trace-op {name}: {exe.name} has no such op",
                f"the names of its {len(tasks)} ops, as `npusim run` reports them",
                f"did you mean {near}?" if near else f"for example {', '.join(tasks[:3])}",
            )


def _options(args: argparse.Namespace) -> dict[str, object]:
    """What the report states about the run beside chip, model, batch and precision."""
    level = "timing only" if args.timing_only else "tile" if args.tile_level else "operator"
    options: dict[str, object] = {"detail": args.detail, "level": level}
    if args.set:
        options["set"] = list(args.set)
    if args.opt_level != "O2":
        options["opt level"] = args.opt_level
    if args.streams != 1:
        options["streams"] = args.streams
    if args.enable_small_channel:
        options["small channel"] = True
    if args.disable_pass:
        options["disabled passes"] = list(args.disable_pass)
    if args.modify_mixlist:
        options["mixlist"] = str(args.modify_mixlist)
    options |= exec_options(args)
    if args.shape:
        options["shape"] = [f"{name}={','.join(map(str, dims))}" for name, dims in args.shape]
    return options


def _with_spans(
    args: argparse.Namespace, result: RunResult, exe: Executable, chip: ChipSpec
) -> RunResult:
    """The run with pipe spans: as it is when --trace-op named ops, else timed once more.

    Which op is the slowest is known only after a run; the second one computes nothing.
    """
    from npusim import api
    from npusim.profiling.summary import slowest

    on_cores = [op for op in slowest(result.timeline, len(result.timeline.ops)) if op.pipes]
    if args.trace_op or not on_cores:
        return result
    return api.run(
        exe,
        chip,
        timing_only=True,
        detail=args.detail,
        batch=result.batch,
        trace_ops=(on_cores[0].name,),
        options=result.options,
        host=host_plan(args),
    )


# -- chips, workloads, operators -----------------------------------------------------------


def _chips(args: argparse.Namespace) -> int:
    """One line per shipped chip."""
    from npusim.chip import list_chips, load_chip
    from npusim.profiling.text import quantity, size

    table = _table("chip", ">cores", ">GHz", ">fp16 TFLOP/s", ">HBM GB/s", ">L2", ">UB", ">L1")
    for name in list_chips():
        chip = load_chip(name)
        cores = str(chip.cores.count)
        table.add_row(
            name,
            f"{cores}+{chip.cores.vector_count}" if chip.cores.split else cores,
            f"{chip.clock / 1e9:g}",
            quantity(chip.cube_flops("float16") / 1e12),
            quantity(chip.hbm.bandwidth / 1e9),
            size(chip.l2.size),
            size(chip.core.ub.size),
            size(chip.core.l1.size),
        )
    console().print(table)
    return EXIT_OK


def _chip_show(args: argparse.Namespace) -> int:
    """Every value of a chip."""
    from rich.text import Text

    from npusim.chip import chip_rows, load_chip

    chip = load_chip(args.name, args.set)
    table = _table("key", "value", *(("grade", "source") if args.sources else ()))
    for row in chip_rows(chip):
        if row.key not in ("name", "description"):
            table.add_row(*map(Text, row if args.sources else row[:2]))
    console().print(Text(f"{chip.name}: {chip.description}\n"), table)
    return EXIT_OK


def _chip_import(args: argparse.Namespace) -> int:
    """A CANN platform_config .ini as chip YAML, on standard output or into a file."""
    from npusim.chip import dump_chip_yaml, import_ini, load_chip
    from npusim.profiling.files import write_text

    text = dump_chip_yaml(import_ini(args.file))
    if args.output is None:
        sys.stdout.write(text)
        return EXIT_OK
    write_text(args.output, text)
    chip = load_chip(args.output)
    print(f"{args.output}: {chip.name}, {chip.cores.count} cores, {chip.clock / 1e9:g} GHz")
    return EXIT_OK


def _workloads(args: argparse.Namespace) -> int:
    """The shipped workloads, and the built-in models they and `npusim run` can name."""
    from rich.text import Text

    from npusim.frontends.workload import list_workloads
    from npusim.models import list_models

    terminal = console()
    table = _table("workload", "model", "precision", "description")
    for work in list_workloads():
        table.add_row(work.name, work.source, work.precision, Text(work.description))
    terminal.print(table, "")
    table = _table("built-in model", "options", "description")
    for model in list_models():
        options = " ".join(f"{key}={value}" for key, value in model.options.items())
        table.add_row(model.name, options, Text(model.description))
    terminal.print(table)
    return EXIT_OK


def _ops(args: argparse.Namespace) -> int:
    """Every operator: what runs it, and how many cases of ONNX's suite pass."""
    from npusim.conformance import conformance, runs_on
    from npusim.ops import operator_names

    known = conformance()
    table = _table("operator", "runs on", ">ONNX cases")
    for name in sorted({*operator_names(), *(n for n, c in known.operators.items() if c.passed)}):
        count = known.operators.get(name)
        table.add_row(name, runs_on(name), str(count) if count else "")
    console().print(table)
    groups = ", ".join(f"{group} {count}" for group, count in known.kinds.items())
    print(f"\n{known.suite}, cases that pass (no other is wrong: all are unsupported):\n{groups}")
    return EXIT_OK


def _table(*columns: str) -> Table:
    """An empty table; a column that starts with ">" is right-justified."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(
            column.removeprefix(">"),
            justify="right" if column.startswith(">") else "left",
            overflow="fold",
        )
    return table


# -- the parser ----------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """argparse, with errors in our three lines."""

    def error(self, message: str) -> NoReturn:
        usage = " ".join(self.format_usage().split()).removeprefix("usage: ")
        raise UsageError(message, usage, f"see `{self.prog} --help`")


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _Parser(
        prog="npusim",
        description="A cycle-approximate, functional simulator of Ascend NPUs.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"npusim {npusim.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_run(commands)
    add_check(commands.add_parser)
    add_compile(commands.add_parser)
    add_ablate(commands.add_parser)
    add_diff(commands.add_parser)
    add_notebooks(commands.add_parser)
    add_overlap(commands.add_parser)
    add_pipeline(commands.add_parser)
    add_precision(commands.add_parser)
    add_replay(commands.add_parser)
    add_sweep(commands.add_parser)
    add_search(commands.add_parser)
    chips = commands.add_parser("chips", help="list the shipped chips")
    chips.set_defaults(command=_chips)
    _add_chip(commands)
    workloads = commands.add_parser("workloads", help="list the workloads and built-in models")
    workloads.set_defaults(command=_workloads)
    ops = commands.add_parser("ops", help="list the operators and their kernels")
    ops.set_defaults(command=_ops)
    return parser


def _add_run(commands: argparse._SubParsersAction[_Parser]) -> None:
    run = commands.add_parser(
        "run",
        usage="npusim run MODEL [options]",
        allow_abbrev=False,
        help="compile, execute and time a model",
        description="Compile a model for a chip, execute it, time it, and report.",
    )
    run.set_defaults(command=_run)
    add_model(run)
    add_input(run)
    add_compile_options(run.add_argument_group("compiler"))
    how = run.add_argument_group("how")
    how.add_argument("--timing-only", action="store_true", help="compute no numbers")
    how.add_argument(
        "--tile-level", action="store_true", help="every instruction moves and computes real bytes"
    )
    how.add_argument("--check", action="store_true", help="compare the outputs with a reference")
    how.add_argument(
        "--check-all", action="store_true", help="compare every intermediate tensor too"
    )
    add_sanitize(how)
    how.add_argument(
        "--detail", choices=("fast", "full"), default="fast",
        help="fast: identical launches once (default); full: every launch in place",
    )  # fmt: skip
    add_exec(how)
    _add_outputs(run)


def _add_outputs(run: argparse.ArgumentParser) -> None:
    out = run.add_argument_group("results")
    out.add_argument("--top", type=positive, default=15, metavar="N", help="ops in the table (15)")
    out.add_argument("-q", "--quiet", action="store_true", help="two or three lines only")
    out.add_argument("--json", type=Path, metavar="PATH", help="the results as data")
    out.add_argument("--trace", type=Path, metavar="PATH", help="a Chrome/Perfetto trace")
    out.add_argument(
        "--trace-op", action="append", default=[], metavar="NAME",
        help="op whose core pipes are traced (repeatable; default: the slowest)",
    )  # fmt: skip
    out.add_argument(
        "--out", type=Path, metavar="DIR", help="write report.txt, run.json and trace.json there"
    )


def _add_chip(commands: argparse._SubParsersAction[_Parser]) -> None:
    chip = commands.add_parser("chip", help="show a chip, or import one from CANN's .ini")
    actions = chip.add_subparsers(title="actions", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="every value of a chip")
    show.add_argument("name", metavar="NAME|PATH")
    show.add_argument("--sources", action="store_true", help="with grade and source of each number")
    add_set(show)
    show.set_defaults(command=_chip_show)
    load = actions.add_parser("import", help="a CANN platform_config .ini as chip YAML")
    load.add_argument("file", type=Path, metavar="FILE.ini")
    load.add_argument("-o", "--output", type=Path, metavar="OUT.yaml", help="default: print it")
    load.set_defaults(command=_chip_import)


if __name__ == "__main__":
    sys.exit(main())
