"""The scatter plot of a replay: predicted over measured, log-log, a colour per op type.

A `.html` is a page with an SVG in it and needs nothing; a `.png` is drawn by matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING

from npusim.errors import NpusimError, UnsupportedError
from npusim.profiling.files import WriteError
from npusim.timeline.replayed import ReplayedOp, grouped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#e07b39", "#5b5ea6",
)  # fmt: skip
_OTHER = "#bbbbbb"
_SIZE, _MARGIN, _LEGEND = 560, 60, 300  #: pixels
_KINDS = (".png", ".html")


class PlotError(NpusimError):
    """A plot that cannot be drawn."""


def check_plot(path: Path) -> None:
    """Refuse, before any work, a plot that cannot be drawn.

    Raises:
        PlotError: another kind of file. UnsupportedError: a PNG without matplotlib.
    """
    if path.suffix not in _KINDS:
        raise PlotError(f"--plot {path}", "a name that ends in .png or .html", "rename it")
    if path.suffix == ".png":
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            raise UnsupportedError(
                "a PNG plot needs matplotlib, which is not installed",
                "pip install 'npusim[plot]'",
                "install it, or name a .html file, which needs nothing",
            ) from None


def write_plot(ops: Sequence[ReplayedOp], path: Path, title: str) -> None:
    """Draw the covered rows into a .png or .html file.

    Raises:
        WriteError: the file cannot be written.
    """
    check_plot(path)
    done = [op for op in ops if op.predicted_us and op.measured_us > 0]
    try:
        if path.suffix == ".html":
            path.write_text(_page(done, title), encoding="utf-8")
        else:
            replay_figure(done, title).savefig(path, dpi=120, bbox_inches="tight")
    except OSError as error:
        raise WriteError(path, error) from None


def _series(ops: Sequence[ReplayedOp]) -> list[tuple[str, str, list[ReplayedOp]]]:
    """Label, colour and rows: the types with the most time, then all others together."""
    groups = list(grouped(ops, lambda op: op.op_type).items())
    shown = groups[: len(_COLOURS)]
    found = [(name, c, rows) for (name, rows), c in zip(shown, _COLOURS, strict=False)]
    if rest := [op for _, rows in groups[len(shown) :] for op in rows]:
        found.insert(0, (f"{len(groups) - len(shown)} other types", _OTHER, rest))
    return found


def _decades(ops: Sequence[ReplayedOp]) -> tuple[int, int]:
    """Powers of ten that hold all points."""
    values = [v for op in ops for v in (op.measured_us, op.predicted_us or 1.0)] or [1.0]
    low = floor(log10(min(values)))
    return low, max(ceil(log10(max(values))), low + 1)


def _page(ops: Sequence[ReplayedOp], title: str) -> str:
    low, high = _decades(ops)

    def at(value: float) -> float:
        return (log10(value) - low) / (high - low) * _SIZE

    parts = []
    for power in range(low, high + 1):
        p = at(10.0**power)
        parts.append(
            f'<path d="M{p:.1f} 0V{_SIZE}M0 {_SIZE - p:.1f}H{_SIZE}" stroke="#ddd"/>'
            f'<text x="{p:.1f}" y="{_SIZE + 18}" text-anchor="middle">{10.0**power:g}</text>'
            f'<text x="-8" y="{_SIZE - p + 4:.1f}" text-anchor="end">{10.0**power:g}</text>'
        )
    parts.append(f'<path d="M0 {_SIZE}L{_SIZE} 0" stroke="#555" stroke-dasharray="4 3"/>')
    for i, (label, colour, rows) in enumerate(_series(ops)):
        dots = "".join(
            f'<circle cx="{at(op.measured_us):.1f}" cy="{_SIZE - at(op.predicted_us or 1):.1f}" '
            f'r="3.5"><title>{escape(op.net)} {escape(op.op_type)} {escape(op.shapes)}\n'
            f"measured {op.measured_us:g} µs, predicted {op.predicted_us:.4g} µs</title></circle>"
            for op in rows
        )
        y = 12 + 20 * i
        parts.append(
            f'<g fill="{colour}" fill-opacity="0.65">{dots}'
            f'<circle cx="{_SIZE + 20}" cy="{y}" r="5"/></g>'
            f'<text x="{_SIZE + 32}" y="{y + 4}">{escape(label)} ({len(rows)})</text>'
        )
    parts.append(
        f'<text x="{_SIZE / 2}" y="{_SIZE + 42}" text-anchor="middle">measured, µs</text>'
        f'<text transform="translate(-44 {_SIZE / 2}) rotate(-90)" text-anchor="middle">'
        "predicted, µs</text>"
    )
    width, height = _SIZE + _MARGIN + _LEGEND, _SIZE + 2 * _MARGIN
    return (
        f'<!doctype html><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<h1 style="font:16px sans-serif">{escape(title)}</h1>\n'
        f'<svg width="{width}" height="{height}" font-family="sans-serif" font-size="12">'
        f'<g transform="translate({_MARGIN} 10)">\n' + "\n".join(parts) + "\n</g></svg>\n"
    )


def replay_figure(ops: Sequence[ReplayedOp], title: str = "") -> Figure:
    """The same as a matplotlib figure; rows without a prediction are left out."""
    from matplotlib.figure import Figure

    done = [op for op in ops if op.predicted_us and op.measured_us > 0]
    figure = Figure(figsize=(6.8, 6.8), layout="constrained")
    axes = figure.subplots()
    for label, colour, rows in _series(done):
        axes.scatter(
            [op.measured_us for op in rows],
            [op.predicted_us or 0.0 for op in rows],
            s=14, c=colour, alpha=0.65, label=f"{label} ({len(rows)})",
        )  # fmt: skip
    low, high = _decades(done)
    ends = (10.0**low, 10.0**high)
    axes.plot(ends, ends, "--", color="#555555", linewidth=1)
    axes.set(
        xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal", title=title,
        xlabel="measured, µs", ylabel="predicted, µs",
    )  # fmt: skip
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", fontsize=8)
    return figure
