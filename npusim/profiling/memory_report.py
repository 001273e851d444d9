"""What `npusim memory` prints and draws: who is where in device memory, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from rich.console import Console
from rich.text import Text

from npusim.profiling.files import WriteError
from npusim.profiling.replay_plot import check_plot
from npusim.profiling.tables import lines, table
from npusim.profiling.text import percent, shorten, size

_NAME_WIDTH = 32
_COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#e07b39")
_PEAK = "#222222"
_WIDTH, _HEIGHT, _MARGIN = 1100, 620, 70  #: pixels


@dataclass(frozen=True)
class Piece:
    """A piece of memory over time.

    Attributes:
        name: the tensors in it.
        address, nbytes: where in the activations' memory.
        start, end: µs.
        made, used: the ops that first and last touch it.
    """

    name: str
    address: int
    nbytes: int
    start: float
    end: float
    made: str
    used: str


@dataclass(frozen=True)
class MemoryPicture:
    """A memory plan over the time of a run.

    Attributes:
        model, chip: names; hbm_bytes: of the chip.
        weight_bytes, activation_bytes, lower_bound, separate_bytes: weights; activations as
            planned, at least, and with memory of their own each.
        pieces: of the activations; peak: those alive where most is, at `peak_op` and `peak_us`.
        total_us: the run.
    """

    model: str
    chip: str
    hbm_bytes: int
    weight_bytes: int
    activation_bytes: int
    lower_bound: int
    separate_bytes: int
    pieces: tuple[Piece, ...]
    peak: tuple[Piece, ...]
    peak_op: str
    peak_us: float
    total_us: float


def print_memory(m: MemoryPicture, console: Console, top: int) -> None:
    """Print the sizes, and who is alive at the peak."""
    total = m.weight_bytes + m.activation_bytes
    saved = 1 - m.activation_bytes / m.separate_bytes if m.separate_bytes else 0.0
    over = m.activation_bytes / m.lower_bound - 1 if m.lower_bound else 0.0
    lines(
        console,
        [
            ("model", f"{m.model} on {m.chip}"),
            ("memory", f"{size(total)} of {size(m.hbm_bytes)} ({percent(total / m.hbm_bytes)})"),
            ("weights", size(m.weight_bytes)),
            ("activations", f"{size(m.activation_bytes)}, {percent(over)} above the most bytes "
             f"alive at one time ({size(m.lower_bound)})"),
            ("reuse", f"saves {percent(saved)} of {size(m.separate_bytes)} that all tensors have"),
            ("peak", f"at {m.peak_op}, {m.peak_us:,.1f} µs of {m.total_us:,.1f}"),
        ],
    )  # fmt: skip
    found = table(
        "Alive at the peak", "tensors", ">address", ">size", ">from µs", ">to µs", "made by"
    )
    for piece in m.peak[:top]:
        cells = (
            shorten(piece.name, _NAME_WIDTH), f"{piece.address:#x}", size(piece.nbytes),
            f"{piece.start:,.1f}", f"{piece.end:,.1f}", shorten(piece.made, 24),
        )  # fmt: skip
        found.add_row(*map(Text, cells))
    if len(m.peak) > top:
        rest = sum(p.nbytes for p in m.peak[top:])
        found.caption = f"and {len(m.peak) - top} more, {size(rest)}"
    console.print(found)


def write_memory_plot(m: MemoryPicture, path: Path) -> None:
    """Draw address against time into a .png or .html file.

    Raises:
        WriteError: the file cannot be written.
    """
    check_plot(path)
    try:
        if path.suffix == ".html":
            path.write_text(_page(m), encoding="utf-8")
        else:
            _png(m, path)
    except OSError as error:
        raise WriteError(path, error) from None


def _title(m: MemoryPicture) -> str:
    return (
        f"{m.model} on {m.chip}: activations {size(m.activation_bytes)}, "
        f"weights {size(m.weight_bytes)} apart"
    )


def _colour(i: int) -> str:
    return _COLOURS[i % len(_COLOURS)]


def _page(m: MemoryPicture) -> str:
    width, height = _WIDTH - 2 * _MARGIN, _HEIGHT - 2 * _MARGIN
    sx = width / max(m.total_us, 1e-9)
    sy = height / max(m.activation_bytes, 1)
    parts = []
    for i, p in enumerate(m.pieces):
        y = height - (p.address + p.nbytes) * sy
        parts.append(
            f'<rect x="{p.start * sx:.2f}" y="{y:.2f}" '
            f'width="{max((p.end - p.start) * sx, 0.7):.2f}" height="{p.nbytes * sy:.2f}" '
            f'fill="{_colour(i)}" fill-opacity="0.75" stroke="#fff" stroke-width="0.4">'
            f"<title>{escape(p.name)}\n{size(p.nbytes)} at {p.address:#x}\n"
            f"{p.start:,.1f} to {p.end:,.1f} µs\n"
            f"made by {escape(p.made)}, last used by {escape(p.used)}</title></rect>"
        )
    x = m.peak_us * sx
    parts.append(
        f'<path d="M{x:.1f} 0V{height}" stroke="{_PEAK}" stroke-dasharray="4 3"/>'
        f'<text x="{x:.1f}" y="-8" text-anchor="middle">peak: {escape(m.peak_op)}</text>'
        f'<path d="M0 0V{height}H{width}" stroke="#555" fill="none"/>'
    )
    for k in range(5):
        share = k / 4
        parts.append(
            f'<text x="{share * width:.0f}" y="{height + 18}" text-anchor="middle">'
            f"{share * m.total_us:,.0f}</text>"
            f'<text x="-8" y="{height - share * height + 4:.0f}" text-anchor="end">'
            f"{size(share * m.activation_bytes)}</text>"
        )
    parts.append(f'<text x="{width / 2}" y="{height + 40}" text-anchor="middle">time, µs</text>')
    title = escape(_title(m))
    return (
        f'<!doctype html><meta charset="utf-8"><title>{title}</title>\n'
        f'<h1 style="font:16px sans-serif">{title}</h1>\n'
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="12">'
        f'<g transform="translate({_MARGIN} {_MARGIN / 2})">\n'
        + "\n".join(parts)
        + "\n</g></svg>\n"
    )


def _png(m: MemoryPicture, path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.subplots()
    unit = 2**20
    for i, p in enumerate(m.pieces):
        axes.add_patch(
            Rectangle(
                (p.start, p.address / unit), max(p.end - p.start, m.total_us * 7e-4),
                p.nbytes / unit, facecolor=_colour(i), alpha=0.75, edgecolor="white", linewidth=0.4,
            )
        )  # fmt: skip
    axes.axvline(m.peak_us, color=_PEAK, linestyle="--", linewidth=1)
    axes.annotate(
        f"peak: {m.peak_op}", (m.peak_us, 1.0), xycoords=("data", "axes fraction"),
        xytext=(4, -12), textcoords="offset points", fontsize=8,
    )  # fmt: skip
    axes.set(
        xlim=(0, m.total_us), ylim=(0, m.activation_bytes / unit * 1.02), title=_title(m),
        xlabel="time, µs", ylabel="address of activations, MiB",
    )  # fmt: skip
    figure.savefig(path, dpi=120)


def pieces_of(
    lifetimes: Sequence[tuple[tuple[str, ...], int, int, int, int]],
    starts: Sequence[float],
    ends: Sequence[float],
    ops: Sequence[str],
) -> tuple[Piece, ...]:
    """Lifetimes over tasks as pieces over time.

    Args:
        lifetimes: (tensors, address, bytes, first task, last task).
        starts, ends: µs of the tasks; ops: their names.
    """
    return tuple(
        Piece(", ".join(names), address, nbytes, starts[first], ends[last], ops[first], ops[last])
        for names, address, nbytes, first, last in lifetimes
    )
