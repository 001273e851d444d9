"""How many taps of a window count in a mean, and where equal counts lie together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from npusim.ops.window import Window


def counts(window: Window, axis: int, include_pad: bool) -> list[int]:
    """Per output index, how many taps of an axis count in a mean."""
    low = -window.begin[axis] if include_pad else 0
    high = window.size[axis] + (window.end[axis] if include_pad else 0)
    out = []
    for o in range(window.out[axis]):
        start = o * window.strides[axis] - window.begin[axis]
        at = (start + t * window.dilations[axis] for t in range(window.kernel[axis]))
        out.append(sum(low <= p < high for p in at))
    return out


def runs(values: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Runs of equal values: (start, stop, value)."""
    at = 0
    for value, run in groupby(values):
        n = len(list(run))
        yield at, at + n, value
        at += n
