"""`npusim pipeline`: DVPP feeding a model with images, against the host's CPU."""

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
    from npusim.timeline.ablated import Claim
    from npusim.timeline.fed import FeedStudy

#: The worked example of docs/data-pipeline.md: model, batch; chips and images.
EXAMPLE = ("resnet50", 64)
EXAMPLE_CASES = (
    ("ascend910a", (1920, 1080)),
    ("ascend910a", (500, 375)),
    ("ascend910b2", (1920, 1080)),
    ("ascend310p3", (1920, 1080)),
    ("ascend310", (1920, 1080)),
)
IMAGE = (1920, 1080)
#: Of a JPEG: 500 KB at 1920 × 1080, up to which CANN's documentation gives decoding rates.
BYTES_PER_PIXEL = 0.24


def pipeline_command(args: argparse.Namespace) -> int:
    """Feed the model both ways, print and write what comes out."""
    from npusim.profiling.feed_plot import feed_picture
    from npusim.profiling.feed_report import feed_json, feed_page, print_feed
    from npusim.profiling.files import write_json, write_text
    from npusim.profiling.picture import write_picture
    from npusim.profiling.replay_plot import check_plot
    from npusim.profiling.tables import print_claims

    if args.plot:
        check_plot(args.plot)
    with progress_bars(sys.stderr.isatty()) as progress:
        found = [_one(args, progress)] if args.model else _example(args, progress)
    terminal = console()
    for study, claims in found:
        print_feed(study, terminal)
        print_claims(claims, terminal)
    sys.stdout.flush()
    if args.output:
        write_text(args.output, feed_page(found, _command(args)))
    if args.json:
        data = feed_json(found)
        write_json(args.json, data[0] if args.model else data)
    if args.plot:
        write_picture(feed_picture(found[0][0]), args.plot)
    return EXIT_OK


def _one(args: argparse.Namespace, progress: Progress | None) -> tuple[FeedStudy, Sequence[Claim]]:
    from npusim.chip import load_chip

    model = loaded_model(args)
    chip = load_chip(args.chip or DEFAULT_CHIP, args.set)
    return _study(args, model, chip, args.image or IMAGE, progress)


def _example(
    args: argparse.Namespace, progress: Progress | None
) -> list[tuple[FeedStudy, Sequence[Claim]]]:
    from npusim import api
    from npusim.chip import load_chip

    refuse_without_model(
        args, "pipeline", "docs/data-pipeline.md",
        ("batch", "chip", "set", "shape", "precision", "seed", "prefetch", "image", "workers"),
    )  # fmt: skip
    name, batch = EXAMPLE
    model = api.load_model(name, batch=batch)
    return [_study(args, model, load_chip(chip), image, progress) for chip, image in EXAMPLE_CASES]


def _study(
    args: argparse.Namespace,
    model: LoadedModel,
    chip: ChipSpec,
    image: tuple[int, int],
    progress: Progress | None,
) -> tuple[FeedStudy, Sequence[Claim]]:
    from npusim import api
    from npusim.explore.data_pipeline import PREFETCH, claims_on, feed_study
    from npusim.explore.image_feed import FeedWork, Images, image_input, normalize_graph

    batch, _, _ = image_input(model.graph)
    work = FeedWork(
        api.compile_graph(model.graph, chip, precision=model.precision),
        api.compile_graph(normalize_graph(model.graph), chip, precision=model.precision),
        batch,
        Images(*image, round(image[0] * image[1] * BYTES_PER_PIXEL)),
    )
    study = feed_study(
        work, chip, model=model.name, prefetch=args.prefetch or PREFETCH, workers=args.workers,
        progress=progress,
    )  # fmt: skip
    return study, claims_on(study)


def _command(args: argparse.Namespace) -> str:
    words = ["npusim pipeline"]
    if args.model:
        words += [args.model, *([f"--batch {args.batch}"] if args.batch else [])]
        words += [f"--chip {args.chip or DEFAULT_CHIP}", *(f"--set {s}" for s in args.set)]
        words += [f"--image {'x'.join(map(str, args.image or IMAGE))}"]
        words += [f"--workers {args.workers}"] if args.workers else []
    return " ".join([*words, f"-o {args.output}"])


def _depths(text: str) -> tuple[int, ...]:
    """Whole numbers in rising order: "0,1,4"."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as 0,1,2,4")
    return tuple(sorted({int(part) for part in parts}))


def _image(text: str) -> tuple[int, int]:
    """Width and height: "1920x1080"."""
    parts = text.split("x")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not WIDTHxHEIGHT, such as 1920x1080")
    return int(parts[0]), int(parts[1])


def add_pipeline(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """The parser of the command."""
    parser = add_parser(
        "pipeline",
        usage="npusim pipeline [MODEL] [options]",
        allow_abbrev=False,
        help="feed a model with images: DVPP or CPU",
        description="Feed a model with JPEGs, decoded and resized by DVPP or by the host's CPU, by "
        "prefetch depth. Without MODEL: ResNet-50 on four chips, beside a published claim.",
    )
    parser.set_defaults(command=pipeline_command)
    add_model(parser, optional=True)
    how = parser.add_argument_group("how")
    how.add_argument(
        "--prefetch", type=_depths, metavar="0,1,2,4",
        help="batches prepared ahead of the one that computes (0,1,2,4)",
    )  # fmt: skip
    how.add_argument("--image", type=_image, metavar="WxH", help="size of the JPEGs (1920x1080)")
    how.add_argument(
        "--workers", type=positive, metavar="N",
        help="CPU workers of the host (default: the chip's host.preprocessing.workers)",
    )  # fmt: skip
    out = parser.add_argument_group("results")
    out.add_argument("-o", "--output", type=Path, metavar="PATH.md", help="write the page")
    out.add_argument("--json", type=Path, metavar="PATH", help="the rows as data")
    out.add_argument("--plot", type=Path, metavar="PATH", help="bars of the rows, .png or .html")
