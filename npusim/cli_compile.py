"""`npusim compile` and `npusim memory`: what the compiler does, and where it puts things."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim.cli_shared import EXIT_OK, add_model, console, positive
from npusim.cli_tiling import (
    add_tiling_cache,
    compile_with_tilings,
    refuse_unused_cache,
    searched,
)

if TYPE_CHECKING:
    from npusim.api import LoadedModel
    from npusim.compiler import CompileOptions, PassReport
    from npusim.ir import Graph
    from npusim.profiling.memory_report import MemoryPicture
    from npusim.program.executable import Lifetime

LEVELS = ("O0", "O1", "O2", "O3")


def compile_command(args: argparse.Namespace) -> int:
    """Compile a model; report the passes; write what is asked for."""
    from npusim.chip import load_chip
    from npusim.compiler import TILING_LEVEL, compile_watched
    from npusim.compiler.switches import fusion_result
    from npusim.profiling.compile_report import print_decisions, print_passes
    from npusim.profiling.files import write_json, write_text
    from npusim.profiling.tiling_report import print_tilings, tiling_json

    chip = load_chip(args.chip, args.set)
    model = _load(args)
    options, notes = compile_options(args, model.precision)
    dump = _Dump(args.dump_ir) if args.dump_ir else None
    found = compile_watched(model.graph, chip, options, dump)
    exe, gain = found.executable, None
    if options.level >= TILING_LEVEL:
        exe, gain = searched(args, exe, chip)
    terminal = console()
    heading = [
        ("model", f"{model.name}, batch {model.batch}, {len(model.graph.nodes)} operators"),
        ("chip", chip.name),
        ("options", f"{args.opt_level}, {options.precision}"
         + "".join(f", {name} off" for name in sorted(options.disabled))
         + (f", up to {options.streams} streams" if options.streams > 1 else "")
         + (", small channels" if options.small_channel else "")),
        ("result", f"{len(exe.tasks)} tasks, {exe.memory.peak_bytes / 1e6:.1f} MB"),
        *(("note", text) for text in (*notes, *exe.notes)),
    ]  # fmt: skip
    print_passes(found.passes, terminal, heading=heading)
    if args.explain_fusion:
        print_decisions(found.decisions, terminal, args.top)
    if gain is not None:
        print_tilings(gain, terminal, args.top)
    sys.stdout.flush()
    if args.fusion_result:
        write_text(args.fusion_result, json.dumps(fusion_result(found.passes), indent=4) + "\n")
    if args.json:
        data: dict[str, Any] = {
            "model": model.name, "chip": chip.name, "opt_level": args.opt_level,
            "precision": options.precision, "disabled": sorted(options.disabled),
            "streams": len({t.stream for t in exe.tasks}),
            "tasks": len(exe.tasks), "memory": asdict(exe.memory), "notes": exe.notes,
            "passes": [asdict(p) for p in found.passes],
            "fusions": [asdict(d) for d in found.decisions],
        }  # fmt: skip
        if gain is not None:
            data["tilings"] = tiling_json(gain)
        write_json(args.json, data)
    return EXIT_OK


def memory_command(args: argparse.Namespace) -> int:
    """Compile a model, time it, and show its memory plan over the run."""
    from npusim.profiling.memory_report import print_memory, write_memory_plot
    from npusim.profiling.replay_plot import check_plot

    if args.plot:
        check_plot(args.plot)
    picture = _memory_picture(args)
    print_memory(picture, console(), args.top)
    sys.stdout.flush()
    if args.plot:
        write_memory_plot(picture, args.plot)
    return EXIT_OK


def _memory_picture(args: argparse.Namespace) -> MemoryPicture:
    from npusim import api
    from npusim.chip import load_chip
    from npusim.profiling.memory_report import MemoryPicture, pieces_of

    chip = load_chip(args.chip, args.set)
    model = _load(args)
    options, _ = compile_options(args, model.precision)
    exe, _ = compile_with_tilings(args, model.graph, chip, options)
    separate = api.compile_graph(
        model.graph, load_chip(args.chip, [*args.set, "hbm.size=1048576GiB"]),
        options=replace(options, level=min(options.level, 2), reuse_memory=False),
    ).memory.activation_bytes  # fmt: skip
    timeline = api.run(exe, chip, timing_only=True).timeline
    at = {op.name: (timeline.us(op.start), timeline.us(op.end)) for op in timeline.ops}
    times = [at[task.name] for task in exe.tasks]
    plan = exe.memory
    first = min((x.address for x in plan.lifetimes), default=0)
    rows = [
        (x.names, x.address - first, x.nbytes, *_first_and_last(x, times)) for x in plan.lifetimes
    ]
    ops = [task.name for task in exe.tasks]
    starts, ends = [start for start, _ in times], [end for _, end in times]
    pieces = pieces_of(rows, starts, ends, ops)
    peak, alive = plan.peak()
    by_life = dict(zip(plan.lifetimes, pieces, strict=True))
    return MemoryPicture(
        model=f"{model.name}, batch {model.batch}, {options.precision}",
        chip=chip.name,
        hbm_bytes=chip.hbm.size,
        weight_bytes=plan.weight_bytes,
        activation_bytes=plan.activation_bytes,
        lower_bound=plan.lower_bound,
        separate_bytes=separate,
        pieces=pieces,
        peak=tuple(by_life[x] for x in alive),
        peak_op=ops[peak] if ops else "-",
        peak_us=starts[peak] if ops else 0.0,
        total_us=timeline.total_us,
    )


def _first_and_last(life: Lifetime, times: list[tuple[float, float]]) -> tuple[int, int]:
    """The tasks between which it is in use: in a partial order, by time."""
    starts = [i for i in life.users if life.first < i <= life.last]
    first = min([life.first, *starts], key=lambda i: times[i][0])
    last = max([life.last, *starts], key=lambda i: times[i][1])
    return first, last


def _load(args: argparse.Namespace) -> LoadedModel:
    from npusim import api

    return api.load_model(
        args.model,
        batch=args.batch,
        shapes=dict(args.shape) or None,
        seed=args.seed,
        precision=args.precision,
    )


def compile_options(
    args: argparse.Namespace, precision: str
) -> tuple[CompileOptions, tuple[str, ...]]:
    """The options of the command line, and what to tell the user about them."""
    from npusim.compiler import CompileOptions
    from npusim.compiler.mixlist import read_mixlist
    from npusim.compiler.switches import read_switches

    refuse_unused_cache(args)
    disabled = frozenset(args.disable_pass)
    notes: tuple[str, ...] = ()
    if args.fusion_switch_file:
        switches = read_switches(args.fusion_switch_file)
        disabled |= switches.disabled
        if switches.unknown:
            names = ", ".join(switches.unknown)
            notes = (f"{args.fusion_switch_file}: passes that npusim does not have: {names}",)
    level = LEVELS.index(args.opt_level)
    reuse = not args.disable_reuse_memory
    mixlist = read_mixlist(args.modify_mixlist) if args.modify_mixlist else None
    small = args.enable_small_channel
    options = CompileOptions(precision, level, disabled, reuse, mixlist, args.streams, small)
    return options, notes


class _Dump:
    """Writes the model and what every pass made of it: 00_model.txt, 01_PassName.txt, …"""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0

    def __call__(self, graph: Graph, report: PassReport | None) -> None:
        from npusim.frontends.onnx_dump import dump_onnx
        from npusim.ir.printer import format_graph
        from npusim.profiling.files import WriteError, write_text

        name = f"{self._number:02d}_{report.name if report else 'model'}"
        self._number += 1
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_text(self._folder / f"{name}.txt", format_graph(graph) + "\n")
            model = dump_onnx(graph).SerializeToString()
            (self._folder / f"{name}.onnx").write_bytes(model)
        except OSError as error:
            raise WriteError(self._folder / name, error) from None


def add_compile_options(group: argparse._ActionsContainer) -> None:
    """The options of the compiler, which `run` has too."""
    group.add_argument(
        "--opt-level", choices=LEVELS, default="O2",
        help="O0 only lowers, O1 cleans up, as CANN's --oo_level=O1, O2 fuses (default), "
        "O3 also simulates several tilings of every kernel and takes the fastest",
    )  # fmt: skip
    add_tiling_cache(group)
    group.add_argument(
        "--disable-pass", action="append", default=[], metavar="NAME",
        help="switch a pass off (repeatable)",
    )  # fmt: skip
    group.add_argument(
        "--disable-reuse-memory", action="store_true", help="every tensor has memory of its own"
    )
    group.add_argument(
        "--streams", type=positive, default=1, metavar="N",
        help="put parallel branches on up to N streams, where that pays (1)",
    )  # fmt: skip
    group.add_argument(
        "--enable-small-channel", action="store_true",
        help="images of at most 4 channels in blocks of 4, as ATC's --enable_small_channel=1",
    )  # fmt: skip
    group.add_argument(
        "--fusion-switch-file", type=Path, metavar="PATH", help="CANN's fusion_switch.cfg"
    )
    group.add_argument(
        "--modify-mixlist", type=Path, metavar="PATH",
        help="CANN's JSON of changes to the operator lists of allow_mix_precision",
    )  # fmt: skip


def add_compile(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """The parser of the command."""
    parser = add_parser(
        "compile",
        usage="npusim compile MODEL [options]",
        allow_abbrev=False,
        help="compile a model and show what every pass does",
        description="Compile a model for a chip: the passes, and what each of them changed.",
    )
    parser.set_defaults(command=compile_command)
    add_model(parser)
    add_compile_options(parser.add_argument_group("compiler"))
    out = parser.add_argument_group("results")
    out.add_argument(
        "--explain-fusion", action="store_true", help="the fusions taken and refused, and why"
    )
    out.add_argument("--top", type=positive, default=30, metavar="N", help="rows there (30)")
    out.add_argument(
        "--dump-ir", type=Path, metavar="DIR", help="the graph after every pass, as text and ONNX"
    )
    out.add_argument("--fusion-result", type=Path, metavar="PATH", help="CANN's fusion_result.json")
    out.add_argument("--json", type=Path, metavar="PATH", help="the passes and fusions as data")
    memory = add_parser(
        "memory",
        usage="npusim memory MODEL [options]",
        allow_abbrev=False,
        help="where a model's tensors lie in device memory, and when",
        description="The memory plan of a model over its run, and who is alive at the peak.",
    )
    memory.set_defaults(command=memory_command)
    add_model(memory)
    add_compile_options(memory.add_argument_group("compiler"))
    out = memory.add_argument_group("results")
    out.add_argument("--top", type=positive, default=15, metavar="N", help="tensors shown (15)")
    out.add_argument("--plot", type=Path, metavar="PATH", help="address over time, .png or .html")
