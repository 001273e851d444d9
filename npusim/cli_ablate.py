"""`npusim ablate`: the model compiled with one more step of the compiler at a time."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from npusim.cli_shared import (
    DEFAULT_CHIP,
    EXIT_CHECK_FAILED,
    EXIT_OK,
    add_model,
    console,
    loaded_model,
    progress_bars,
    refuse_without_model,
)
from npusim.cli_tiling import add_tiling_cache

if TYPE_CHECKING:
    from npusim.api import LoadedModel, Progress
    from npusim.chip import ChipSpec
    from npusim.explore.ablation import Check
    from npusim.program.executable import Executable
    from npusim.timeline.ablated import Ablation, Claim, PrecisionGain

#: The worked example of docs/ablation.md: model, batch, chips.
EXAMPLE = (("resnet50", 256), ("bert-large", 32))
EXAMPLE_CHIPS = ("ascend910a", "ascend910b2")
#: Models of less work are checked without being asked (a second or two a row).
SMALL_FLOPS = 5e9


def ablate_command(args: argparse.Namespace) -> int:
    """Compile and time the rows, check them, print and write them."""
    from npusim.explore.ablation import ORDER
    from npusim.explore.precision_gain import TEXT
    from npusim.profiling.ablation_plot import write_ablation_plot
    from npusim.profiling.ablation_report import ablation_json, ablation_page, print_ablation
    from npusim.profiling.files import write_json, write_text
    from npusim.profiling.replay_plot import check_plot
    from npusim.profiling.tables import print_claims

    if args.plot:
        check_plot(args.plot)
    with progress_bars(sys.stderr.isatty()) as progress:
        found = [_one(args, progress)] if args.model else _example(args, progress)
        gains = [] if args.model or not args.output else _gains()
    terminal = console()
    for a, claims in found:
        print_ablation(a, terminal)
        print_claims(claims, terminal)
    sys.stdout.flush()
    if args.output:
        write_text(args.output, ablation_page(found, _command(args), ORDER, gains, TEXT))
    if args.json:
        data = [ablation_json(a, claims) for a, claims in found]
        write_json(args.json, data[0] if args.model else data)
    if args.plot:
        write_ablation_plot(found[0][0], args.plot)
    failed = [f"{a.model}, {r.step}" for a, _ in found for r in a.rows if r.failed]
    if failed:
        print(f"check failed: {'; '.join(failed)}", file=sys.stderr)
        return EXIT_CHECK_FAILED
    return EXIT_OK


def _one(args: argparse.Namespace, progress: Progress | None) -> tuple[Ablation, Sequence[Claim]]:
    from npusim.chip import load_chip
    from npusim.compiler.precision_modes import mode_named

    chip = load_chip(args.chip or DEFAULT_CHIP, args.set)
    model = loaded_model(args)
    model = replace(model, precision=mode_named(model.precision).name)  # fp32, however called
    return _ablation(args, model, chip, progress), ()


def _example(
    args: argparse.Namespace, progress: Progress | None
) -> list[tuple[Ablation, Sequence[Claim]]]:
    """The worked example, with the published claims beside it.

    Raises:
        UsageError: an option that belongs to a model.
    """
    from npusim import api
    from npusim.chip import load_chip
    from npusim.explore.published_claims import claims_on

    refuse_without_model(
        args, "ablate", "docs/ablation.md",
        ("batch", "chip", "set", "shape", "precision", "seed", "plot", "check"),
    )  # fmt: skip
    found: list[tuple[Ablation, Sequence[Claim]]] = []
    for name, batch in EXAMPLE:
        model = api.load_model(name, batch=batch)
        for chip_name in EXAMPLE_CHIPS:
            a = _ablation(args, model, load_chip(chip_name), progress)
            found.append((a, claims_on(a)))
    return found


def _gains() -> list[PrecisionGain]:
    """fp16 beside fp32, net by net, on the chip of the example whose cube has both."""
    from npusim import api
    from npusim.chip import load_chip
    from npusim.explore.precision_gain import NETS, precision_gain

    chip = load_chip(EXAMPLE_CHIPS[-1])
    models = [(name, batch, api.load_model(name, batch=batch)) for name, batch in NETS]
    return [precision_gain(m.graph, chip, name=name, batch=b) for name, b, m in models]


def _ablation(
    args: argparse.Namespace, model: LoadedModel, chip: ChipSpec, progress: Progress | None
) -> Ablation:
    from npusim.explore.ablation import ablate

    check, reference = _check_of(args, model, chip)
    return ablate(
        model.graph, chip, name=model.name, batch=model.batch, precision=model.precision,
        check=check, reference=reference, cache=args.tiling_cache, progress=progress,
    )  # fmt: skip


def _check_of(
    args: argparse.Namespace, model: LoadedModel, chip: ChipSpec
) -> tuple[Check | None, str]:
    """What compares a row with the reference, and what to say about it."""
    from importlib.util import find_spec

    from npusim import api
    from npusim.explore.ablation import work_of
    from npusim.frontends.check import reference_values
    from npusim.profiling.summary import failed_outputs, limit_text

    if args.check is None:
        work = work_of(model.graph).flops
        if work > SMALL_FLOPS:
            return None, f"timing only: {work / 1e9:,.0f} GFLOP are many to compute (--check does)"
        if find_spec("onnxruntime") is None:
            return None, "timing only: onnxruntime is not installed"
    if args.check is False:
        return None, "timing only"
    inputs = api.make_inputs(model)
    want, name = reference_values(model.graph, model.onnx_path, inputs, model.graph.outputs)

    def check(exe: Executable) -> tuple[str, bool]:
        result = api.run(exe, chip, inputs=inputs)
        found = {t: api.compare(result.outputs[t], value) for t, value in want.items()}
        worst = max((c.max_rel_err for c in found.values()), default=float("nan"))
        return f"{worst:.1e}", bool(failed_outputs(replace(result, check=found)))

    limits = "; ".join(f"{p}: {limit_text(p)}" for p in dict.fromkeys(("fp32", model.precision)))
    return check, f"{name} on the model itself ({limits})"


def _command(args: argparse.Namespace) -> str:
    words = ["npusim ablate"]
    if args.model:
        words += [args.model, *([f"--batch {args.batch}"] if args.batch else [])]
        words += [f"--chip {args.chip or DEFAULT_CHIP}", *(f"--set {s}" for s in args.set)]
    return " ".join([*words, f"-o {args.output}"])


def add_ablate(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """The parser of the command."""
    parser = add_parser(
        "ablate",
        usage="npusim ablate [MODEL] [options]",
        allow_abbrev=False,
        help="what each step of the compiler gives",
        description="Compile a model with one more step of the compiler at a time. Without MODEL: "
        "ResNet-50 and BERT-Large on two chips, beside published claims.",
    )
    parser.set_defaults(command=ablate_command)
    add_model(parser, optional=True)
    how = parser.add_argument_group("how")
    add_tiling_cache(how)
    how.add_argument(
        "--check", action=argparse.BooleanOptionalAction, default=None,
        help="compare every row's outputs with the fp32 reference (default: small models)",
    )  # fmt: skip
    out = parser.add_argument_group("results")
    out.add_argument("-o", "--output", type=Path, metavar="PATH.md", help="write the page")
    out.add_argument("--json", type=Path, metavar="PATH", help="the rows as data")
    out.add_argument("--plot", type=Path, metavar="PATH", help="bars of the rows, .png or .html")
