"""L2 residency by address ranges, least recently used out first.

Kernels move whole tensors, so the cache is kept as a list of byte ranges, not of lines: what a
kernel reads or writes becomes the most recent; when the sum exceeds the capacity, the oldest
bytes leave, and dirty ones cost HBM writes. A tensor larger than the cache leaves its last bytes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Range:
    start: int
    end: int
    dirty: bool


class L2Cache:
    """Byte ranges in L2, oldest first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._ranges: list[_Range] = []
        self._used = 0

    def resident(self, start: int, end: int) -> int:
        """Bytes of [start, end) that are in L2."""
        return sum(max(0, min(end, r.end) - max(start, r.start)) for r in self._ranges)

    def touch(self, start: int, end: int, write: bool) -> int:
        """Read or write [start, end); returns the dirty bytes that had to leave for it."""
        if end <= start:
            return 0
        kept: list[_Range] = []
        moved: list[_Range] = []
        for r in self._ranges:
            lo, hi = max(start, r.start), min(end, r.end)
            if lo >= hi:
                kept.append(r)
                continue
            if r.start < lo:
                kept.append(_Range(r.start, lo, r.dirty))
            if hi < r.end:
                kept.append(_Range(hi, r.end, r.dirty))
            moved.append(_Range(lo, hi, r.dirty))
        fresh = [_Range(start, end, True)] if write else _covered(start, end, moved)
        self._ranges = kept + fresh
        self._used = sum(r.end - r.start for r in self._ranges)
        return self._evict()

    def _evict(self) -> int:
        written_back = 0
        while self._used > self.size:
            oldest = self._ranges[0]
            excess = min(self._used - self.size, oldest.end - oldest.start)
            if oldest.dirty:
                written_back += excess
            oldest.start += excess
            self._used -= excess
            if oldest.start == oldest.end:
                self._ranges.pop(0)
        return written_back


def _covered(start: int, end: int, moved: list[_Range]) -> list[_Range]:
    """[start, end) as ranges: dirty where it was dirty, clean elsewhere."""
    out: list[_Range] = []
    at = start
    for r in sorted((m for m in moved if m.dirty), key=lambda m: m.start):
        if at < r.start:
            out.append(_Range(at, r.start, False))
        out.append(r)
        at = r.end
    if at < end:
        out.append(_Range(at, end, False))
    return out
