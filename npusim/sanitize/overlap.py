"""Which bytes two regions share, exactly: strided regions interleave without touching."""

from __future__ import annotations

import numpy as np

from npusim.program.region import Region

Key = tuple[int, tuple[int, ...], tuple[int, ...], int]
Runs = tuple[np.ndarray, np.ndarray]  #: starts and ends of runs of bytes, sorted and disjoint


def key_of(region: Region) -> Key:
    """What two regions of one space that touch the same bytes in the same way have in common."""
    return region.offset, region.shape, region.strides, region.dtype.itemsize


def shared_bytes(a: Region, b: Region) -> tuple[int, int] | None:
    """(first byte, bytes up to the last) that two regions of one space share; None: nothing.

    Regions without elements touch nothing.
    """
    if not a.size or not b.size:
        return None
    lo, hi = max(a.offset, b.offset), min(a.end(), b.end())
    if lo >= hi:
        return None
    if _dense(a) and _dense(b):
        return lo, hi - lo
    starts, ends = intersection(runs(a), runs(b))
    return (int(starts[0]), int(ends[-1] - starts[0])) if len(starts) else None


def _dense(r: Region) -> bool:
    return r.end() - r.offset == r.nbytes and 0 not in r.strides


def runs(region: Region) -> Runs:
    """The bytes of a region as sorted, disjoint runs."""
    if not region.size:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    run = region.dtype.itemsize
    starts = np.array([region.offset], np.int64)
    for stride, n in sorted(zip(region.strides, region.shape, strict=True)):
        if n == 1 or not stride:
            continue
        if len(starts) == 1 and stride <= run:
            run += (n - 1) * stride
        else:
            starts = (np.arange(n, dtype=np.int64)[:, None] * stride + starts).ravel()
    return merged(starts, starts + run)


def merged(starts: np.ndarray, ends: np.ndarray) -> Runs:
    """Runs of bytes, sorted, those that touch or overlap made one."""
    if len(starts) < 2:
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    first = np.ones(len(starts), bool)
    first[1:] = starts[1:] > ends[:-1]
    last = np.append(first[1:], True)
    return starts[first], ends[last]


def intersection(a: Runs, b: Runs) -> Runs:
    """The bytes in both of two sets of disjoint, sorted runs."""
    lo = np.searchsorted(b[1], a[0], side="right")  # the first run of b that ends behind a's start
    hi = np.searchsorted(b[0], a[1], side="left")  # the first that starts behind a's end
    count = hi - lo
    which = np.repeat(np.arange(len(lo)), count)
    other = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + lo[which]
    return np.maximum(a[0][which], b[0][other]), np.minimum(a[1][which], b[1][other])
