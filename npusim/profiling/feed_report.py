"""What `npusim pipeline` prints and writes: DVPP feeding a model against the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from npusim.profiling.tables import claims_table, lines, markdown, table
from npusim.profiling.text import duration, percent, size
from npusim.timeline.ablated import Claim
from npusim.timeline.fed import FeedStudy, FeedTimes

_COLUMNS = ("path", "prefetch", "images/s", "step", "NPU busy", "others busy", "bound",
            "closed form")  # fmt: skip
_LEGEND = (
    "prefetch: batches prepared ahead of the one that computes; 0: one after the other (in turn)",
    "bound: the stage that sets the pace; prefetch: more of it would be faster",
    "busy: share of a stage's capacity that is used",
    "closed form: how far it is from the simulated step",
)
_FORMULA = (
    "The closed form: step = max(compute, batch · time of an image in the slowest stage, (copy + "
    "prepare + compute) / (prefetch + 1)), with the events and calls between."
)


def print_feed(study: FeedStudy, console: Console) -> None:
    """Print the rows. Made for 100 columns."""
    lines(console, list(_facts(study)))
    right = ("prefetch", "images/s", "step", "NPU busy", "closed form")
    found = table("Fed", *(f">{c}" if c in right else c for c in _COLUMNS))
    for cells in _rows(study):
        found.add_row(*map(Text, cells))
    found.caption = "\n".join(_LEGEND)
    console.print(found)


def _facts(s: FeedStudy) -> Iterator[tuple[str, str]]:
    (width, height), (w, h) = s.image, s.model_image
    yield "model", f"{s.model}, {s.precision}, batch {s.batch}"
    yield "chip", s.chip
    yield "images", f"JPEGs of {width}×{height}, {size(s.jpeg_bytes)} each, to {w}×{h}"
    if s.dvpp is None:
        yield "DVPP", "not described for this chip"
    else:
        yield "DVPP", f"a batch alone: {_stages(s.dvpp)}; {s.dvpp.preprocessing_rate:,.0f} images/s"
    yield (
        "CPU",
        (
            f"a batch alone: {_stages(s.cpu)}; {s.workers} workers, {duration(s.cpu_image_us)} an "
            f"image each: {s.cpu.preprocessing_rate:,.0f} images/s"
        ),
    )


def _stages(t: FeedTimes) -> str:
    return f"prepare {duration(t.prepare)}, copy {duration(t.copy)}, compute {duration(t.compute)}"


def _rows(s: FeedStudy) -> Iterator[list[str]]:
    for r in s.rows:
        others = ", ".join(f"{n} {100 * b:.0f} %" for n, b in r.busy.items() if n != "NPU")
        yield [
            r.path, str(r.prefetch), f"{s.images_per_s(r):,.0f}", duration(r.step_us),
            percent(r.busy["NPU"]), others, r.bound,
            f"{100 * abs(r.closed_us / r.step_us - 1):.2f} %",
        ]  # fmt: skip


def feed_json(found: Sequence[tuple[FeedStudy, Sequence[Claim]]]) -> list[dict[str, object]]:
    """Everything as plain data."""
    return [
        {
            **asdict(s),
            "rows": [{**asdict(r), "images_per_s": s.images_per_s(r)} for r in s.rows],
            "claims": [asdict(c) for c in claims],
        }
        for s, claims in found
    ]


def feed_page(found: Sequence[tuple[FeedStudy, Sequence[Claim]]], command: str) -> str:
    """The rows of several studies, with the published claim, as Markdown.

    Args:
        command: that writes the page.
    """
    parts = [
        "# Feeding a model with images\n",
        f"Written by `{command}`; do not edit.\n",
        "JPEGs become batches of normalised floats in two ways. DVPP: the JPEGs are copied to the "
        "device, its decoder (JPEGD) and its image unit (VPC) decode, crop and resize them, a "
        "vector kernel on the AI Cores normalises the batch (as AIPP would on the way into the "
        "first layer; the step from interleaved to planar pixels is not timed). CPU: workers on "
        "the host do all of it into pinned memory, and the floats are copied.\n",
        "All times are simulated; no JPEG is decoded. DVPP runs at the frame rates that the CANN "
        "documentation gives per channel; the host's rates are in the chip's file with their "
        "grades, and most of them are assumed: `npusim chip show NAME --sources`. "
        "The claim is that of an introductory article on the Ascend stack, which says nothing of "
        "the images, the CPU or how it measured.\n",
    ]
    for study, claims in found:
        width, height = study.image
        parts.append(
            f"## {study.model}, batch {study.batch}, images of {width}×{height}, on {study.chip}\n"
        )
        parts += [f"- {name}: {text}" for name, text in _facts(study)]
        parts += ["", markdown(_COLUMNS, list(_rows(study))), *claims_table(claims)]
    parts.append("<br>".join(f"{text}." for text in _LEGEND) + f"<br>{_FORMULA}\n")
    return "\n".join(parts)
