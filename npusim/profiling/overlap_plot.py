"""Pictures of overlap: the stages of every chunk over time, and a map of where a claim holds."""

from __future__ import annotations

from npusim.profiling.picture import Box, Label, Picture
from npusim.profiling.text import duration, percent
from npusim.timeline.overlapped import OverlapMap, OverlapStudy

_TRACKS = (("copy in", "#4477aa", "#7ba0c9"), ("compute", "#228833", "#6bb377"),
           ("copy out", "#e07b39", "#ecab82"))  # fmt: skip
_LEFT, _RIGHT, _LANE, _BAND, _AXIS = 90, 40, 16, 84, 900  #: pixels


def overlap_picture(study: OverlapStudy) -> Picture:
    """A band for every way: copies in, computing, copies out; all to the same scale of time."""
    longest = max(r.us for r in study.rows)
    boxes: list[Box] = []
    labels: list[Label] = []
    for number, row in enumerate(study.rows):
        top = 30 + number * _BAND
        text = (
            f"{row.way}: {duration(row.us)}, {percent(row.hidden)} of the copies hidden, "
            f"NPU {percent(row.utilisation)} busy"
        )
        labels.append(Label(_LEFT, top - 6, text, bold=True))
        scale = _AXIS * row.us / longest / max(s.end for s in row.spans)
        for lane, (track, dark, light) in enumerate(_TRACKS):
            y = top + lane * (_LANE + 2)
            labels.append(Label(_LEFT - 8, y + 12, track, "end", 11))
            boxes.append(Box(_LEFT, y, _AXIS, _LANE, "#f2f2f2"))
            for span in row.spans:
                if span.track == track:
                    colour = light if int(span.name) % 2 else dark
                    hint = f"chunk {span.name}: {track}"
                    x, width = _LEFT + span.start * scale, (span.end - span.start) * scale
                    boxes.append(Box(x, y, max(width, 1.2), _LANE, colour, hint))
    bottom = 30 + len(study.rows) * _BAND
    for part in range(5):
        at = f"{duration(longest * part / 4)}" if part else "0"
        labels.append(Label(_LEFT + _AXIS * part / 4, bottom - 8, at, "middle", 11))
    title = f"{study.model}, {study.chunks} chunks of {study.per_chunk}, on {study.chip}"
    return Picture(title, _LEFT + _AXIS + _RIGHT, bottom, tuple(boxes), tuple(labels))


def overlap_map_picture(found: OverlapMap) -> Picture:
    """Two grids, hidden copies and NPU utilisation: chunks across, lengths of copies down."""
    boxes: list[Box] = []
    labels: list[Label] = []
    cell, row, gap = 78, 34, 120
    grids = (
        ("copies hidden", found.target_hidden, [c.hidden for c in found.cells]),
        ("NPU busy", found.target_utilisation, [c.utilisation for c in found.cells]),
    )
    width = cell * len(found.chunk_counts)
    for number, (title, target, values) in enumerate(grids):
        left = 150 + number * (width + gap)
        labels.append(Label(left, 20, f"{title}: bold from {100 * target:g} %", bold=True))
        for column, chunks in enumerate(found.chunk_counts):
            labels.append(Label(left + (column + 0.5) * cell, 44, f"{chunks} chunks", "middle"))
        for c, value in zip(found.cells, values, strict=True):
            column, line = found.chunk_counts.index(c.chunks), found.ratios.index(c.ratio)
            x, y = left + column * cell, 52 + line * row
            hint = f"r = {c.ratio:g}, {c.chunks} chunks: {percent(value)}"
            boxes.append(Box(x + 1, y + 1, cell - 2, row - 2, _shade(value, value >= target), hint))
            labels.append(
                Label(x + cell / 2, y + 22, percent(value), "middle", 13, value >= target)
            )
        for line, ratio in enumerate(found.ratios):
            labels.append(Label(left - 8, 74 + line * row, f"r = {ratio:g}", "end"))
    height = 52 + row * len(found.ratios) + 34
    note = (
        f"r: a copy, each way, over the computing of a chunk ({found.kernel}, "
        f"{duration(found.compute_us)}); 3 streams, pinned memory, {found.buffers} buffers"
    )
    labels.append(Label(150, height - 10, note))
    targets = f"{100 * found.target_hidden:g} % overlap and {100 * found.target_utilisation:g} %"
    title = f"Where {targets} utilisation hold on {found.chip}"
    return Picture(title, 150 + 2 * width + gap + 20, height, tuple(boxes), tuple(labels))


def _shade(value: float, reached: bool) -> str:
    """White to grey below the target, green from it on."""
    if reached:
        return "#a8dcb0"
    level = round(250 - 60 * (1 - value))
    return f"#{level:02x}{level:02x}{level:02x}"
