"""Plots of a sweep's rows: a metric over a setting, as a matplotlib figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npusim.chip.schema import find
from npusim.errors import UnsupportedError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

COLOURS = ("#4477aa", "#e07b39", "#228833", "#aa3377", "#66ccee", "#bbaa33", "#777777")
_MARKS = "osD^vPX"
_UNIT_WORDS = ("us", "mm2", "mj", "mib", "w", "usd", "gbps")  #: at the end of metrics' names
_MOST_TICKS = 10  #: values that are all written at the axis

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class PlotSpec:
    """What to draw: `y` over `x`, one line (or bar of a group) for each value of `by`.

    Attributes:
        kind: "line", "bar", "scatter" or "heatmap" (y as colour over x and by).
        log: axes that are logarithmic: "", "x", "y" or "xy".
        relative: y over that of the first point of its line.
        units: column → unit, for the labels.
    """

    x: str
    y: str
    by: tuple[str, ...] = ()
    kind: str = "line"
    log: str = ""
    title: str = ""
    relative: bool = False
    units: Mapping[str, str] | None = None


def sweep_figure(rows: Rows, spec: PlotSpec) -> Figure:
    """The figure of a plot. Rows that failed are left out; rows alike but for other settings are
    all drawn.

    Raises:
        UnsupportedError: matplotlib is not installed, or no row has both values.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnsupportedError(
            "a figure without matplotlib", "matplotlib", "pip install 'npusim[plot]'"
        ) from None
    known = [r for r in rows if r.get(spec.x) is not None and r.get(spec.y) is not None]
    if not known:
        raise UnsupportedError(
            f"a plot of {spec.y} over {spec.x}: no row has both", "rows that did not fail",
            "look at the column `error` of the rows",
        )  # fmt: skip
    figure = Figure(figsize=(7.6, 4.6), layout="constrained")
    axes = figure.add_subplot()
    if spec.kind == "heatmap":
        _heatmap(figure, axes, known, spec)
    else:
        groups = _groups(known, spec)
        known = [row for rows in groups.values() for row in rows]
        {"line": _lines, "scatter": _scatter, "bar": _bars}[spec.kind](axes, groups, spec)
        _scales(axes, known, spec)
        axes.grid(True, color="#e4e4e4", linewidth=0.8)
        axes.set_axisbelow(True)
        if spec.by:
            title = ", ".join(map(_short, spec.by))
            beside = spec.kind == "bar"
            axes.legend(
                title=title, fontsize=9, title_fontsize=9, frameon=False,
                loc="upper left" if beside else "best",
                bbox_to_anchor=(1.0, 1.0) if beside else None,
            )  # fmt: skip
    axes.set_xlabel(_label(spec.x, spec))
    if spec.kind != "heatmap":
        axes.set_ylabel(_label(spec.y, spec))
    axes.set_title(spec.title or f"{_short(spec.y)} over {_short(spec.x)}", fontsize=11)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure


def pareto_figure(rows: Rows, front: Rows, x: str, y: str, units: Mapping[str, str]) -> Figure:
    """All designs of a search, and those that no other beats in every objective."""
    spec = PlotSpec(x, y, kind="scatter", title="Pareto front", units=units)
    figure = sweep_figure(rows, spec)
    axes = figure.axes[0]
    best = sorted((r for r in front if r.get(x) is not None), key=lambda r: (r[x], r[y]))
    axes.plot(
        [r[x] for r in best], [r[y] for r in best], color=COLOURS[1], marker="D", markersize=5,
        linewidth=1.4, label="Pareto front",
    )  # fmt: skip
    axes.legend(frameon=False, fontsize=9)
    return figure


_Groups = dict[str, list[Mapping[str, Any]]]


def _groups(rows: Rows, spec: PlotSpec) -> _Groups:
    """The rows of each line, by its name in the legend."""
    groups: _Groups = {}
    for row in rows:
        name = ", ".join(written(column, row.get(column)) for column in spec.by)
        groups.setdefault(name, []).append(row)
    if spec.relative:
        return {
            name: [{**row, spec.y: row[spec.y] / found[0][spec.y]} for row in found]
            for name, found in groups.items()
        }
    return groups


def _lines(axes: Axes, groups: _Groups, spec: PlotSpec) -> None:
    for n, (name, rows) in enumerate(groups.items()):
        if all(isinstance(r[spec.x], int | float) for r in rows):
            rows = sorted(rows, key=lambda r: r[spec.x])
        axes.plot(
            [r[spec.x] for r in rows], [r[spec.y] for r in rows], linewidth=1.8, markersize=5,
            color=COLOURS[n % len(COLOURS)], marker=_MARKS[n % len(_MARKS)],
            label=name,
        )  # fmt: skip


def _scatter(axes: Axes, groups: _Groups, spec: PlotSpec) -> None:
    for n, (name, rows) in enumerate(groups.items()):
        axes.scatter(
            [r[spec.x] for r in rows], [r[spec.y] for r in rows], s=22, alpha=0.75,
            color=COLOURS[n % len(COLOURS)], label=name or None,
        )  # fmt: skip


def _bars(axes: Axes, groups: _Groups, spec: PlotSpec) -> None:
    """Groups of bars, in the order of the rows; the value is written on top."""
    places = list(dict.fromkeys(r[spec.x] for rows in groups.values() for r in rows))
    width = 0.8 / len(groups)
    for n, (name, rows) in enumerate(groups.items()):
        at = [places.index(r[spec.x]) + (n - (len(groups) - 1) / 2) * width for r in rows]
        drawn = axes.bar(
            at, [r[spec.y] for r in rows], width * 0.92, color=COLOURS[n % len(COLOURS)],
            label=name,
        )  # fmt: skip
        if len(places) * len(groups) <= 2 * _MOST_TICKS:
            axes.bar_label(drawn, fmt=_cell, fontsize=7, padding=2)
    texts = [written(spec.x, p) for p in places]
    slanted = max(map(len, texts)) * len(texts) > 70
    axes.set_xticks(range(len(places)), texts, rotation=30 if slanted else 0,
                    ha="right" if slanted else "center")  # fmt: skip


def _scales(axes: Axes, rows: Rows, spec: PlotSpec) -> None:
    if "y" in spec.log:
        axes.set_yscale("log")
        _ticks(axes.yaxis)
    elif spec.kind == "bar" or (min(r[spec.y] for r in rows) >= 0 and not spec.relative):
        axes.set_ylim(bottom=0)
    if spec.kind == "bar":
        return
    if "x" in spec.log:
        axes.set_xscale("log")
        _ticks(axes.xaxis)
    values = sorted({r[spec.x] for r in rows if isinstance(r[spec.x], int | float)})
    if values and len(values) <= _MOST_TICKS and spec.kind == "line":
        axes.set_xticks(values, [written(spec.x, v) for v in values], fontsize=9)
        axes.minorticks_off()


def _ticks(axis: Axis) -> None:
    """1, 2 and 5 of every decade of a logarithmic axis, as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def _heatmap(figure: Figure, axes: Axes, rows: Rows, spec: PlotSpec) -> None:
    by = spec.by[0] if spec.by else "workload"
    across = sorted({r[spec.x] for r in rows})
    down = sorted({r[by] for r in rows})
    grid = [[float("nan")] * len(across) for _ in down]
    for r in rows:
        grid[down.index(r[by])][across.index(r[spec.x])] = r[spec.y]
    low, high = min(r[spec.y] for r in rows), max(r[spec.y] for r in rows)
    image = axes.imshow(grid, aspect="auto", origin="lower", cmap="viridis")
    axes.set_xticks(range(len(across)), [written(spec.x, v) for v in across], fontsize=9)
    axes.set_yticks(range(len(down)), [written(by, v) for v in down], fontsize=9)
    for i, line in enumerate(grid):
        for j, value in enumerate(line):
            if value == value and len(across) * len(down) <= 64:
                light = value < low + 0.6 * (high - low)
                axes.text(j, i, _cell(value), ha="center", va="center", fontsize=8,
                          color="white" if light else "black")  # fmt: skip
    axes.set_ylabel(_label(by, spec))
    figure.colorbar(image, label=_label(spec.y, spec))


def _cell(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def written(column: str | None, value: Any) -> str:
    """A value as text: chip keys with their units."""
    entry = find(column) if column else None
    if entry is not None and entry.quantity is not None and isinstance(value, int | float):
        number, _, unit = entry.quantity.format(value).partition(" ")
        return f"{float(number):.4g} {unit}".strip()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _short(column: str) -> str:
    return column.removeprefix("core.").removesuffix(".size").replace("_", " ")


def _label(column: str, spec: PlotSpec) -> str:
    unit = (spec.units or {}).get(column, "")
    bare = _short(column)
    if spec.relative and column == spec.y:
        return f"{bare.removesuffix(' us')}, relative"
    if not unit:
        return bare
    stem, _, last = bare.rpartition(" ")
    return f"{stem if last in _UNIT_WORDS else bare} ({unit})"
