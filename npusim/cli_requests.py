"""`npusim run` of a workload that lists requests: one table, a row for each."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from npusim.cli_shared import EXIT_OK, UsageError, console

if TYPE_CHECKING:
    from npusim.api import LoadedModel
    from npusim.chip import ChipSpec
    from npusim.compiler import CompileOptions
    from npusim.requests import Request

#: Options of `npusim run` that are about a single run.
_SINGLE = ("check", "check_all", "trace", "trace_op", "out", "tile_level", "exec", "steps", "input")


def run_requests_command(
    args: argparse.Namespace, model: LoadedModel, chip: ChipSpec, options: CompileOptions
) -> int:
    """Run the workload's requests and report them."""
    from npusim.profiling.files import write_text
    from npusim.requests import run_requests

    for name in _SINGLE:
        if getattr(args, name):
            option = "--" + name.replace("_", "-")
            raise UsageError(
                f"{option} with workload {model.name}, which lists {len(model.requests)} requests",
                "options that suit a sequence of runs",
                f"leave out {option}, or run one of its shapes: {model.source} --shape …",
            )
    given = dict(args.shape)
    found = run_requests(
        args.model,
        [{**r, **given} for r in model.requests],
        chip,
        options,
        batch=args.batch,
        seed=args.seed,
        timing_only=args.timing_only,
        detail=args.detail,
    )
    _print(model, found)
    if args.json:
        write_text(args.json, json.dumps([_data(r) for r in found], indent=1) + "\n")
    return EXIT_OK


def _print(model: LoadedModel, found: list[Request]) -> None:
    from rich.text import Text

    from npusim.profiling.tables import lines, table
    from npusim.profiling.text import duration

    first, terminal = found[0].result, console()
    compiled = [r.compile_s for r in found if r.compile_s is not None]
    total = sum(r.result.timeline.total_us for r in found)
    samples = sum(r.result.batch for r in found)
    heading = [
        ("workload", f"{model.name}: {model.source}, {first.precision}"),
        ("chip", first.chip),
        ("requests", f"{len(found)}, of {len(compiled)} shapes"),
        ("simulated", f"{duration(total)}, {samples / total * 1e6:,.0f} samples/s, back to back"),
        ("compiled", f"{1e3 * sum(compiled):,.0f} ms of this machine's time"),
    ]
    lines(terminal, heading)
    shown = table("", "request", "shapes", ">compile ms", ">time µs", ">TFLOP/s", ">peak MiB")
    for i, r in enumerate(found):
        shapes = " ".join(f"{n}={','.join(map(str, s))}" for n, s in r.shapes.items())
        cells = (
            str(i),
            shapes,
            "cached" if r.compile_s is None else f"{1e3 * r.compile_s:,.0f}",
            f"{r.result.timeline.total_us:,.1f}",
            f"{r.result.achieved_tflops:.2f}",
            f"{r.result.memory.peak_bytes / 2**20:,.1f}",
        )
        shown.add_row(*map(Text, cells))
    terminal.print(shown)


def _data(request: Request) -> dict[str, object]:
    from npusim.profiling.json_export import result_json

    shapes = {name: list(dims) for name, dims in request.shapes.items()}
    return {"shapes": shapes, "compile_s": request.compile_s, "run": result_json(request.result)}
