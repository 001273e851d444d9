"""The picture of an ablation: time and memory, a bar for each step.

A `.html` is a page with an SVG in it and needs nothing; a `.png` is drawn by matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import log10
from pathlib import Path

from npusim.profiling.files import WriteError
from npusim.profiling.replay_plot import check_plot
from npusim.profiling.text import duration, size
from npusim.timeline.ablated import Ablation, AblationRow

_TWIN = "#bbbbbb"
_LOG_FROM = 20.0  #: ratio of the longest bar to the shortest from which a scale is logarithmic
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
_BAR, _LABEL, _PANEL, _VALUE = 26, 240, 290, 80  #: pixels


@dataclass(frozen=True)
class _Panel:
    """Bars of one quantity.

    Attributes:
        values: in the unit of the axis; texts: as written at the bars.
        low, high: ends of the axis; low is above 0 where it is logarithmic.
    """

    title: str
    colour: str
    values: list[float]
    texts: list[str]
    low: float
    high: float

    @property
    def logarithmic(self) -> bool:
        return self.low > 0

    def share(self, value: float) -> float:
        """Length of a bar as a share of the axis."""
        if self.logarithmic:
            return log10(value / self.low) / log10(self.high / self.low)
        return value / self.high if self.high else 0.0


def _panel(title: str, colour: str, values: list[float], texts: list[str]) -> _Panel:
    most, least = max(values), min(values)
    if 0 < least < most / _LOG_FROM:
        return _Panel(f"{title} (log)", colour, values, texts, least / 2, most)
    return _Panel(title, colour, values, texts, 0.0, most * 1.02)


def _panels(rows: Sequence[AblationRow]) -> list[_Panel]:
    times = [r.us for r in rows]
    scale, unit = (1e3, "ms") if max(times) >= 1e3 else (1.0, "µs")
    return [
        _panel(f"time, {unit}", "#4477aa", [t / scale for t in times], [*map(duration, times)]),
        _bytes_panel("memory", "#228833", [r.memory_bytes for r in rows]),
        _bytes_panel("HBM traffic", "#e07b39", [r.hbm_bytes for r in rows]),
    ]


def _bytes_panel(title: str, colour: str, values: Sequence[int]) -> _Panel:
    scale, unit = next((s, u) for s, u in _UNITS if max(values) >= s or s == 1)
    return _panel(f"{title}, {unit}", colour, [v / scale for v in values], [*map(size, values)])


def _title(a: Ablation) -> str:
    return f"{a.model}, batch {a.batch}, on {a.chip}: each step of the compiler"


def write_ablation_plot(a: Ablation, path: Path) -> None:
    """Draw the rows that ran and changed something into a .png or .html file.

    Raises:
        WriteError: the file cannot be written.
    """
    check_plot(path)
    rows = [r for r in a.telling if not r.reason]
    try:
        if path.suffix == ".html":
            path.write_text(_page(a, rows), encoding="utf-8")
        else:
            _png(a, rows, path)
    except OSError as error:
        raise WriteError(path, error) from None


def _page(a: Ablation, rows: Sequence[AblationRow]) -> str:
    height = _BAR * len(rows)
    parts = [
        f'<text x="{_LABEL - 10}" y="{_BAR * i + 17}" text-anchor="end">{escape(r.step)}</text>'
        for i, r in enumerate(rows)
    ]
    for number, panel in enumerate(_panels(rows)):
        x = _LABEL + number * (_PANEL + _VALUE)
        parts.append(f'<text x="{x}" y="-12" font-weight="bold">{escape(panel.title)}</text>')
        parts.append(f'<path d="M{x} -4V{height}" stroke="#555"/>')
        for i, (r, value, text) in enumerate(zip(rows, panel.values, panel.texts, strict=True)):
            width, y = panel.share(value) * _PANEL, _BAR * i
            parts.append(
                f'<rect x="{x}" y="{y + 4}" width="{width:.1f}" height="{_BAR - 8}" '
                f'fill="{_TWIN if r.twin else panel.colour}"><title>{escape(r.step)}: {text}'
                f"</title></rect>"
                f'<text x="{x + width + 4:.1f}" y="{y + 17}">{text}</text>'
            )
    title = escape(_title(a))
    total = _LABEL + 3 * (_PANEL + _VALUE)
    return (
        f'<!doctype html><meta charset="utf-8"><title>{title}</title>\n'
        f'<h1 style="font:16px sans-serif">{title}</h1>\n'
        f'<svg width="{total}" height="{height + 40}" font-family="sans-serif" font-size="12">'
        f'<g transform="translate(0 28)">\n' + "\n".join(parts) + "\n</g></svg>\n"
    )


def _png(a: Ablation, rows: Sequence[AblationRow], path: Path) -> None:
    from matplotlib.figure import Figure

    panels = _panels(rows)
    figure = Figure(figsize=(14, 1.6 + 0.36 * len(rows)), layout="constrained")
    figure.suptitle(_title(a))
    places = list(range(len(rows)))
    for number, (axes, panel) in enumerate(
        zip(figure.subplots(1, len(panels)), panels, strict=True)
    ):
        colours = [_TWIN if r.twin else panel.colour for r in rows]
        bars = axes.barh(places, panel.values, color=colours)
        axes.bar_label(bars, panel.texts, padding=3, fontsize=8)
        axes.set_yticks(places, [r.step for r in rows] if number == 0 else [""] * len(rows))
        axes.tick_params(labelsize=8)
        axes.invert_yaxis()
        if panel.logarithmic:
            axes.set_xscale("log")
            axes.set_xlim(panel.low, panel.high * (panel.high / panel.low) ** 0.3)
        else:
            axes.set_xlim(0, panel.high * 1.3 or 1)
            axes.locator_params(axis="x", nbins=5)
        axes.set_title(panel.title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
