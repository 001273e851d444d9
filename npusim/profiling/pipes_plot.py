"""The pipes of an AI Core over time, an instruction a bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from npusim.timeline import Span

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {
    "mte2": "#4477aa", "mte1": "#66ccee", "cube": "#ee6677", "vector": "#228833",
    "mte3": "#ccbb44", "fixp": "#ccbb44", "scalar": "#bbbbbb",
}  # fmt: skip
_ORDER = ("mte2", "mte1", "cube", "vector", "fixp", "mte3", "scalar")  #: as data passes


def pipes_figure(spans: Sequence[Span], clock: float, title: str = "", end: int = 0) -> Figure:
    """A lane for every pipe that has spans, with its share of the time; needs matplotlib.

    Args:
        spans: of one core, as `OpRecord.spans` and `LaunchResult.spans()` give them.
        clock: Hz; end: cycle at which the axis ends (default: the last span's end), so that
            several figures can have one scale.
    """
    from matplotlib.figure import Figure

    lanes = [p for p in _ORDER if any(s.track == p for s in spans)]
    first = min((s.start for s in spans), default=0)
    last = max((s.end for s in spans), default=1)
    figure = Figure(figsize=(10, 0.7 + 0.42 * max(len(lanes), 1)), layout="constrained")
    axes = figure.subplots()
    us = 1e6 / clock
    for lane, pipe in enumerate(lanes):
        bars = [((s.start - first) * us, (s.end - s.start) * us) for s in spans if s.track == pipe]
        axes.broken_barh(
            bars, (lane - 0.38, 0.76), facecolors=_COLOURS[pipe], edgecolor="white", linewidth=0.4
        )
    busy = [sum(s.end - s.start for s in spans if s.track == p) / (last - first) for p in lanes]
    labels = [
        f"{p.upper() if p[-1].isdigit() else p}  {b:.0%}" for p, b in zip(lanes, busy, strict=True)
    ]
    axes.set_yticks(range(len(lanes)), labels)
    axes.invert_yaxis()
    axes.set(xlim=(0, (max(end, last) - first) * us), xlabel="time, µs")
    axes.set_title(title, fontsize=11)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure
