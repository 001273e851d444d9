"""`npusim precision`: a model in every precision mode of a chip; where the error comes from."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim.cli_compile import add_compile_options, compile_options
from npusim.cli_shared import EXIT_OK, add_model, console, progress_bars

if TYPE_CHECKING:
    import numpy as np

    from npusim.api import LoadedModel, RunResult
    from npusim.chip import ChipSpec
    from npusim.compiler import CompileOptions
    from npusim.compiler.precision_modes import PrecisionMode
    from npusim.profiling.precision_report import ModeReport, TensorError
    from npusim.program.executable import Executable


def precision_command(args: argparse.Namespace) -> int:
    """Compile, run and compare a model in the modes that a chip can do."""
    import numpy as np

    from npusim import api
    from npusim.chip import load_chip
    from npusim.profiling.files import write_json
    from npusim.profiling.precision_report import mode_notes, print_modes

    chip = load_chip(args.chip, args.set)
    model = api.load_model(
        args.model,
        batch=args.batch,
        shapes=dict(args.shape) or None,
        seed=args.seed,
        precision="fp32",
    )
    options, notes = compile_options(args, "fp32")
    with progress_bars(sys.stderr.isatty()) as progress:
        modes = compare_modes(model, chip, options, progress)
    narrow = {t.dtype.value for t in model.graph.tensors.values() if t.dtype.is_float}
    if narrow - {"float32"}:
        others = ", ".join(sorted(narrow - {"float32"}))
        notes = (*notes, f"the model's own {others} stay: modes change float32 only")
    heading = [
        ("model", f"{model.name}, batch {model.batch}, {len(model.graph.nodes)} operators"),
        ("chip", chip.name),
        ("reference", f"numpy {np.__version__} in the model's types, on the same inputs"),
        *(("note", text) for text in (*notes, *mode_notes(modes))),
    ]
    print_modes(modes, console(), heading=heading, every_tensor=args.tensors)
    sys.stdout.flush()
    if args.json:
        data = {"model": model.name, "batch": model.batch, "chip": chip.name,
                "modes": [_as_data(m) for m in modes]}  # fmt: skip
        write_json(args.json, data)
    return EXIT_OK


def compare_modes(
    model: LoadedModel,
    chip: ChipSpec,
    options: CompileOptions,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[ModeReport]:
    """A model in every mode that the chip can do, the widest first.

    Args:
        options: of the compiler; a mixlist counts in the mixed modes only.
    """
    from npusim import api
    from npusim.compiler.precision_modes import Rule, modes_of
    from npusim.frontends.reference import evaluate

    inputs = api.make_inputs(model)
    reference = evaluate(model.graph, inputs, keep=True)
    modes = modes_of(chip)
    found: list[tuple[ModeReport, Executable]] = []
    for done, mode in enumerate(modes):
        if progress is not None:
            progress("modes", done, len(modes))
        mixlist = options.mixlist if mode.rule is Rule.MIX else None
        asked = replace(options, precision=mode.name, mixlist=mixlist)
        exe = api.compile_graph(model.graph, chip, options=asked)
        twin = next((m for m, e in found if not m.same_as and _same_tasks(e, exe)), None)
        if twin is None:
            result = api.run(exe, chip, inputs=inputs, batch=model.batch, keep_tensors=True)
            found.append((_report(mode, exe, result, reference), exe))
        else:
            report = replace(
                twin,
                mode=mode.cann_name,
                label=mode.label,
                narrow=mode.narrow.value,
                same_as=twin.mode,
                notes=tuple(exe.notes),
            )
            found.append((report, exe))
    return [m for m, _ in found]


def _same_tasks(a: Executable, b: Executable) -> bool:
    """Whether two executables do the same on the same bytes."""
    pairs = zip(a.tasks, b.tasks, strict=False)
    return (
        len(a.tasks) == len(b.tasks)
        and a.buffers == b.buffers
        and all(
            (s.op_type, s.call, s.inputs, s.outputs) == (t.op_type, t.call, t.inputs, t.outputs)
            for s, t in pairs
        )
    )


def _report(
    mode: PrecisionMode, exe: Executable, result: RunResult, reference: Mapping[str, np.ndarray]
) -> ModeReport:
    from npusim.ops.cann_fused import operators_in
    from npusim.profiling.precision_report import ModeReport

    casts = sum(operators_in(t.node).count("Cast") for t in exe.tasks)
    computing = [t for t in exe.tasks if t.op_type not in ("Cast", "TransData")]
    return ModeReport(
        mode=mode.cann_name,
        label=mode.label,
        narrow=mode.narrow.value,
        same_as="",
        us=result.seconds * 1e6,
        weight_bytes=exe.memory.weight_bytes,
        activation_bytes=exe.memory.activation_bytes,
        casts=casts,
        wide=sum(t.compute_dtype.value == "float32" for t in computing),
        tasks=len(computing),
        tensors=tuple(_errors(exe, result, reference)),
        notes=tuple(exe.notes),
    )


def _errors(
    exe: Executable, result: RunResult, reference: Mapping[str, np.ndarray]
) -> list[TensorError]:
    """The float tensors that tasks made and numpy too, in execution order."""
    from npusim import api
    from npusim.ops.cann_fused import operators_in
    from npusim.profiling.precision_report import TensorError

    found = []
    values = {**result.tensors, **result.outputs}
    for task in exe.tasks:
        kind = "+".join(operators_in(task.node))
        for name in task.outputs:
            want = reference.get(name)
            if want is None or want.dtype.kind in "iub" or want.shape != values[name].shape:
                continue
            error = api.compare(values[name], want).max_rel_err
            found.append(TensorError(name, task.name, kind, error, name in exe.outputs))
    return found


def _as_data(m: ModeReport) -> dict[str, Any]:
    jump = m.jump
    return {
        **asdict(m),
        "worst": None if m.worst is None else asdict(m.worst),
        "worst_output": None if m.worst_output is None else asdict(m.worst_output),
        "jump": None if jump is None else asdict(jump),
    }


def add_precision(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """The parser of the command."""
    parser = add_parser(
        "precision",
        usage="npusim precision MODEL [options]",
        allow_abbrev=False,
        help="a model in every precision mode of a chip: time, memory, Casts, errors",
        description="Run a model in the precision modes that a chip can do, against fp32 numpy.",
    )
    parser.set_defaults(command=precision_command)
    add_model(parser, precision=False)
    add_compile_options(parser.add_argument_group("compiler"))
    out = parser.add_argument_group("results")
    out.add_argument("--tensors", action="store_true", help="the error of every tensor, as a table")
    out.add_argument("--json", type=Path, metavar="PATH", help="the modes and all errors as data")
