"""The picture of a fed model: images per second and NPU utilisation by prefetch depth."""

from __future__ import annotations

from npusim.profiling.picture import Box, Label, Picture
from npusim.profiling.text import percent
from npusim.timeline.fed import FeedStudy

_COLOURS = {"DVPP": "#228833", "CPU": "#4477aa"}
_LEFT, _ROW, _AXIS, _GAP = 190, 30, 330, 190  #: pixels


def feed_picture(study: FeedStudy) -> Picture:
    """Two panels of bars: throughput, and how busy the NPU is."""
    boxes: list[Box] = []
    labels: list[Label] = []
    rates = [study.images_per_s(r) for r in study.rows]
    compute = (study.dvpp or study.cpu).compute
    peak = study.batch * 1e6 / compute
    panels = (
        ("images/s", max(*rates, peak), rates, [f"{r:,.0f}" for r in rates]),
        (
            "NPU busy", 1.0, [r.busy["NPU"] for r in study.rows],
            [percent(r.busy["NPU"]) for r in study.rows],
        ),
    )  # fmt: skip
    bottom = 34 + _ROW * len(study.rows)
    for number, (title, most, values, texts) in enumerate(panels):
        left = _LEFT + number * (_AXIS + _GAP)
        labels.append(Label(left, 18, title, bold=True))
        boxes.append(Box(left - 1, 26, 1, bottom - 26, "#555555"))
        if number == 0:
            x = left + _AXIS * peak / most
            boxes.append(Box(x, 26, 1, bottom - 26, "#aa3377", "the model alone"))
            text = f"the model alone: {peak:,.0f}"
            labels.append(Label(x, bottom + 16, text, "middle", 11, colour="#aa3377"))
        for line, (row, value, text) in enumerate(zip(study.rows, values, texts, strict=True)):
            y = 30 + line * _ROW
            colour = _COLOURS["DVPP" if row.path == "DVPP" else "CPU"]
            name = f"{row.path}, prefetch {row.prefetch}"
            width = _AXIS * value / most
            boxes.append(Box(left, y, width, _ROW - 8, colour, f"{name}: {text}"))
            shown = f"{text}  ({row.bound})" if number == 0 else text
            labels.append(Label(left + width + 6, y + 16, shown, size=11))
            if number == 0:
                labels.append(Label(left - 8, y + 16, name, "end", 11))
    width, height = study.image
    title = f"{study.model}, batch {study.batch}, fed with {width}×{height} JPEGs, {study.chip}"
    return Picture(title, _LEFT + 2 * _AXIS + _GAP + 80, bottom + 30, tuple(boxes), tuple(labels))
