"""`npusim overlap`: a model in chunks, copies beside computing, over one stream or three."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from npusim.cli_shared import (
    DEFAULT_CHIP,
    EXIT_OK,
    add_model,
    console,
    loaded_model,
    positive,
    progress_bars,
    refuse_without_model,
)

if TYPE_CHECKING:
    from npusim.api import LoadedModel, Progress
    from npusim.chip import ChipSpec
    from npusim.profiling.picture import Picture
    from npusim.timeline.ablated import Claim
    from npusim.timeline.overlapped import OverlapMap, OverlapStudy

#: The worked example of docs/overlap.md: model, samples of a chunk; chips.
EXAMPLE, EXAMPLE_CHIPS = (("resnet50", 32), ("resnet18", 64)), ("ascend910a", "ascend910b2")
#: What computes in the map of where the claim holds.
MAP_KERNEL = "gemm-4096"
CHUNKS, BUFFERS = 16, 2


def overlap_command(args: argparse.Namespace) -> int:
    """Run the chunks, print and write what streams and pinned memory give."""
    from npusim.profiling.files import write_json, write_text
    from npusim.profiling.overlap_report import (
        overlap_json,
        overlap_page,
        print_overlap,
        print_overlap_map,
    )
    from npusim.profiling.picture import write_picture
    from npusim.profiling.replay_plot import check_plot
    from npusim.profiling.tables import print_claims

    if args.plot:
        check_plot(args.plot)
    with progress_bars(sys.stderr.isatty()) as progress:
        studies, maps = _one(args, progress) if args.model else _example(args, progress)
    terminal = console()
    for study, claims in studies:
        print_overlap(study, terminal)
        print_claims(claims, terminal)
    for found, claims in maps:
        print_overlap_map(found, terminal)
        print_claims(claims, terminal)
    sys.stdout.flush()
    if args.output:
        write_text(args.output, overlap_page(studies, maps, _command(args)))
    if args.json:
        write_json(args.json, overlap_json(studies, maps))
    if args.plot:
        write_picture(_picture(studies, maps), args.plot)
    return EXIT_OK


def _picture(
    studies: Sequence[tuple[OverlapStudy, object]], maps: Sequence[tuple[OverlapMap, object]]
) -> Picture:
    """A model's stages over time; without a model, the first map."""
    from npusim.profiling.overlap_plot import overlap_map_picture, overlap_picture

    return overlap_map_picture(maps[0][0]) if maps else overlap_picture(studies[0][0])


_Found = tuple[
    "list[tuple[OverlapStudy, Sequence[Claim]]]", "list[tuple[OverlapMap, Sequence[Claim]]]"
]


def _one(args: argparse.Namespace, progress: Progress | None) -> _Found:
    from npusim.chip import load_chip
    from npusim.explore.overlap import claims_on_study

    chip = load_chip(args.chip or DEFAULT_CHIP, args.set)
    model = loaded_model(args)
    study = _study(args, model, chip, progress)
    return [(study, claims_on_study(study))], []


def _example(args: argparse.Namespace, progress: Progress | None) -> _Found:
    """The worked example, and the map of where the claim holds."""
    from npusim import api
    from npusim.chip import load_chip
    from npusim.explore.overlap import claims_on_map, claims_on_study, overlap_map

    refuse_without_model(
        args, "overlap", "docs/overlap.md",
        ("batch", "chip", "set", "shape", "precision", "seed", "streams", "chunks", "buffers"),
    )  # fmt: skip
    studies: list[tuple[OverlapStudy, Sequence[Claim]]] = []
    maps: list[tuple[OverlapMap, Sequence[Claim]]] = []
    for chip_name in EXAMPLE_CHIPS:
        chip = load_chip(chip_name)
        for name, batch in EXAMPLE:
            study = _study(args, api.load_model(name, batch=batch), chip, progress)
            studies.append((study, claims_on_study(study)))
        kernel = api.load_model(MAP_KERNEL)
        exe = api.compile_graph(kernel.graph, chip, precision=kernel.precision)
        found = overlap_map(exe, chip, progress=progress)
        maps.append((found, claims_on_map(found)))
    return studies, maps


def _study(
    args: argparse.Namespace, model: LoadedModel, chip: ChipSpec, progress: Progress | None
) -> OverlapStudy:
    from npusim import api
    from npusim.explore.chunks import ChunkWork
    from npusim.explore.overlap import overlap_study

    exe = api.compile_graph(model.graph, chip, precision=model.precision)
    return overlap_study(
        ChunkWork.of_model(exe), chip, model=model.name, per_chunk=model.batch,
        chunks=args.chunks or CHUNKS, buffers=args.buffers or BUFFERS, streams=args.streams,
        progress=progress,
    )  # fmt: skip


def _command(args: argparse.Namespace) -> str:
    words = ["npusim overlap"]
    if args.model:
        words += [args.model, *([f"--batch {args.batch}"] if args.batch else [])]
        words += [f"--chunks {args.chunks or CHUNKS} --chip {args.chip or DEFAULT_CHIP}"]
        words += [f"--set {s}" for s in args.set]
    return " ".join([*words, f"-o {args.output}"])


def add_overlap(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """The parser of the command."""
    parser = add_parser(
        "overlap",
        usage="npusim overlap [MODEL] [options]",
        allow_abbrev=False,
        help="copies beside computing, over streams",
        description="Cut a batch into chunks: copy in, compute, copy out, over one stream and "
        "three, from pinned and from pageable memory. Without MODEL: two models on two chips, and "
        "where a published overlap holds.",
    )
    parser.set_defaults(command=overlap_command)
    add_model(parser, optional=True)
    how = parser.add_argument_group("how")
    how.add_argument(
        "--chunks", type=positive, metavar="N", help=f"chunks of --batch samples each ({CHUNKS})"
    )
    how.add_argument(
        "--buffers", type=positive, metavar="K",
        help=f"chunks that have buffers on the device at one time ({BUFFERS})",
    )  # fmt: skip
    how.add_argument("--streams", type=int, choices=(1, 3), help="only over so many (both)")
    out = parser.add_argument_group("results")
    out.add_argument("-o", "--output", type=Path, metavar="PATH.md", help="write the page")
    out.add_argument("--json", type=Path, metavar="PATH", help="the rows as data")
    out.add_argument(
        "--plot", type=Path, metavar="PATH",
        help="the chunks over time, or without MODEL the map, .png or .html",
    )  # fmt: skip
