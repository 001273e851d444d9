"""What `npusim overlap` prints and writes: copies under computing, and where a claim holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from npusim.profiling.tables import claims_table, lines, markdown, table
from npusim.profiling.text import duration, percent, size
from npusim.timeline.ablated import Claim
from npusim.timeline.overlapped import OverlapMap, OverlapStudy

_COLUMNS = ("way", "time", "speed", "hidden", "saved", "NPU busy", "host busy", "closed form")
_LEGEND = (
    "hidden: share of the copies' time in which an AI Core task runs",
    "saved: (serial - time) / (serial - ideal), of the same memory; serial: the stages one after "
    "another; ideal: the longest stage of every chunk",
    "NPU busy: share of the time in which an AI Core task runs",
    "closed form: how far it is from the simulated time",
)
_FORMULA = (
    "The closed form: T = in + compute + out + (N - 1) · P, with P the longest of the stages "
    "(three streams), their sum (one stream), or the host's way around its loop (pageable), each "
    "with its gaps, events and calls."
)


def print_overlap(study: OverlapStudy, console: Console) -> None:
    """Print the rows. Made for 100 columns."""
    lines(console, list(_facts(study)))
    found = table("Every way", _COLUMNS[0], *(f">{c}" for c in _COLUMNS[1:]))
    for cells in _rows(study):
        found.add_row(*map(Text, cells))
    found.caption = "\n".join(_LEGEND)
    console.print(found)


def _facts(s: OverlapStudy) -> Iterator[tuple[str, str]]:
    t = s.times
    yield "model", f"{s.model}, {s.precision}, {s.chunks} chunks of {s.per_chunk}"
    yield "chip", f"{s.chip}, buffers for {s.buffers} chunks"
    yield (
        "a chunk",
        (
            f"{size(t.bytes_in)} in: {duration(t.copy_in)} pinned, {duration(t.pageable_in)} "
            f"pageable; computing: {duration(t.compute)}; {size(t.bytes_out)} out: "
            f"{duration(t.copy_out)} pinned, {duration(t.pageable_out)} pageable"
        ),
    )


def _rows(s: OverlapStudy) -> Iterator[list[str]]:
    first = s.rows[0]
    for r in s.rows:
        yield [
            r.way, duration(r.us), f"{first.us / r.us:.2f}×", percent(r.hidden),
            percent(s.saved(r)), percent(r.utilisation), percent(r.host_us / r.us),
            f"{100 * abs(r.closed_us / r.us - 1):.2f} %",
        ]  # fmt: skip


def print_overlap_map(found: OverlapMap, console: Console) -> None:
    """Print the map: lengths of copies down, chunks across."""
    grid = _grid(found)
    console.print(grid)


def _grid(m: OverlapMap) -> Table:
    title = f"hidden / NPU busy on {m.chip}, copies r times as long as computing"
    shown = table(title, "r", *(f">{n} chunks" for n in m.chunk_counts))
    for cells in _map_rows(m):
        shown.add_row(*map(Text, cells))
    shown.caption = (
        f"✓ {100 * m.target_hidden:g} % hidden and {100 * m.target_utilisation:g} % busy · "
        f"{m.kernel}, {duration(m.compute_us)} a chunk, 3 streams, pinned, {m.buffers} buffers"
    )
    return shown


def _map_rows(m: OverlapMap) -> Iterator[list[str]]:
    for ratio in m.ratios:
        cells = [m.cell(ratio, n) for n in m.chunk_counts]
        yield [
            f"{ratio:g}",
            *(
                f"{100 * c.hidden:.0f} / {100 * c.utilisation:.0f} {'✓' if m.holds(c) else ' '}"
                for c in cells
            ),
        ]


def overlap_json(
    studies: Sequence[tuple[OverlapStudy, Sequence[Claim]]],
    maps: Sequence[tuple[OverlapMap, Sequence[Claim]]] = (),
) -> dict[str, object]:
    """Everything as plain data."""
    return {
        "studies": [
            {
                **asdict(s),
                "rows": [
                    {
                        **asdict(r),
                        "hidden": r.hidden,
                        "utilisation": r.utilisation,
                        "saved": s.saved(r),
                    }
                    for r in s.rows
                ],
                "claims": [asdict(c) for c in claims],
            }
            for s, claims in studies
        ],
        "maps": [{**asdict(m), "claims": [asdict(c) for c in claims]} for m, claims in maps],
    }


def overlap_page(
    studies: Sequence[tuple[OverlapStudy, Sequence[Claim]]],
    maps: Sequence[tuple[OverlapMap, Sequence[Claim]]],
    command: str,
) -> str:
    """The rows of several models and the maps, with the published claim, as Markdown.

    Args:
        command: that writes the page.
    """
    parts = [
        "# Copies under computing\n",
        f"Written by `{command}`; do not edit.\n",
        "A batch is cut into chunks. Each is copied to the device, computed, copied back. Over one "
        "stream all is in order; over three, the copies of other chunks lie beside the computing. "
        "Page-locked (pinned) host memory is copied while the host goes on; from pageable memory "
        "`aclrtMemcpyAsync` comes back when the copy is over, and the bytes pass a staging buffer. "
        "The host is simulated too: each of its calls costs time.\n",
        "All times are simulated. The claim is that of an introductory article on the Ascend "
        "stack, which says nothing of the model, the chunks or how it measured.\n",
    ]
    for study, claims in studies:
        parts.append(
            f"## {study.model}, {study.chunks} chunks of {study.per_chunk}, on {study.chip}\n"
        )
        parts += [f"- {name}: {text}" for name, text in _facts(study)]
        parts.append("")
        parts.append(markdown(_COLUMNS, list(_rows(study))))
        parts += claims_table(claims)
    parts.append("<br>".join(f"{text}." for text in _LEGEND) + f"<br>{_FORMULA}\n")
    for found, claims in maps:
        parts.append(f"## Where the claim holds on {found.chip}\n")
        parts.append(
            f"{found.kernel} computes {duration(found.compute_us)} a chunk; copies, each way, take "
            "r times as long. Three streams, pinned memory. In a cell: % of the copies hidden / % "
            "of the time the NPU is busy, ✓ where both figures of the claim are reached.\n"
        )
        columns = ("r", *(f"{n} chunks" for n in found.chunk_counts))
        parts.append(markdown(columns, list(_map_rows(found))))
        parts += claims_table(claims)
    return "\n".join(parts)
