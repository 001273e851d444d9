"""L2 residency by address ranges, with gradual eviction.

Kernels move whole tensors, so the cache is kept as byte ranges, not as lines. A new line takes the
place of some line, whichever (random replacement, in the mean): after `a` bytes have come into a
full cache of size C, every range keeps exp(-a / C) of what it had. Measured times want it: after
tensors of half the cache have passed, what was there before is found in part, not wholly or not
at all (memory-bound operators of the 30-core Ascend 910 are 14 % off in the mean, 16 to 18 % with
least recently used out first, whatever the size).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log1p

_GONE = 1e-3  #: a range of which less than this part is left counts as gone


@dataclass(slots=True)
class _Range:
    """Bytes [start, end), of which `share` was resident when `age` bytes had left the cache."""

    start: int
    end: int
    share: float
    age: float


@dataclass(frozen=True)
class Touched:
    """What a launch's transfers did to L2.

    Attributes:
        missing: per range, bytes that were not there when their turn came.
        evicted: bytes that left for them.
    """

    missing: tuple[float, ...]
    evicted: float


class L2Cache:
    """Which part of which address range is in L2. Life cycle: construct empty, `touch` in order.

    Ranges are kept in order of address and do not overlap. What leaves is kept as one number, from
    which every range's present share follows, so that a touch costs what it overlaps, not what the
    cache holds.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._ranges: list[_Range] = []
        self._starts: list[int] = []
        self._left = 0.0  #: bytes that have left, ever
        self._held = 0.0  #: bytes that are there
        self._swept = 0.0  #: `_left` when ranges that are gone were last taken out

    def resident(self, start: int, end: int) -> float:
        """Bytes of [start, end) that are in L2."""
        first, last = self._span(start, end)
        found = self._ranges[first:last]
        return sum(self._share(r) * (min(end, r.end) - max(start, r.start)) for r in found)

    def drop(self, start: int, end: int) -> None:
        """Forget [start, end): somebody wrote memory past the cache."""
        self._cut(start, end)

    def touch(self, ranges: Sequence[tuple[int, int]]) -> Touched:
        """Read or write several ranges side by side, each from its start to its end.

        What a range still had is pushed out, in part, before its turn comes. With N bytes in all,
        P of them resident, the bytes `a` that have come grow by N - P·exp(-a / C) per pass, hence
        a = C·log(P/N + (1 - P/N)·exp(N / C)).

        Args:
            ranges: (start, end) of each; they do not overlap.
        """
        total = float(sum(end - start for start, end in ranges))
        if total <= 0:
            return Touched(tuple(0.0 for _ in ranges), 0.0)
        held = [self._cut(start, end) for start, end in ranges]
        there = sum(held)
        free = self.size - self._held - there
        came = total - there
        if came > free:  # else nothing has to leave
            came = self._came(total, there)
        evicted = max(0.0, came - free)
        self._evict(evicted)
        share = min(1.0, (self.size - self._held) / total)
        for start, end in ranges:
            if start < end:
                self._insert(_Range(start, end, share, self._left))
                self._held += share * (end - start)
        hit = (total - came) / there if there else 0.0
        sizes = [end - start for start, end in ranges]
        missing = (max(0.0, n - h * hit) for n, h in zip(sizes, held, strict=True))
        return Touched(tuple(missing), evicted)

    def _came(self, total: float, there: float) -> float:
        """Bytes brought in by a pass over `total` bytes of which `there` were resident."""
        part, passes = there / total, total / self.size
        # log(p + (1 - p)·e^x) = x + log(1 - p + p·e^-x)
        return total + self.size * log1p(part * (exp(-passes) - 1))

    def _share(self, r: _Range) -> float:
        """The part of a range that is resident now."""
        share = r.share * exp((r.age - self._left) / self.size)
        return share if share > _GONE else 0.0

    def _evict(self, nbytes: float) -> None:
        """Bytes leave; ranges of which hardly anything is left are taken out now and then."""
        self._left += nbytes
        self._held *= exp(-nbytes / self.size)
        if self._left - self._swept > self.size:
            self._swept = self._left
            self._ranges = [r for r in self._ranges if self._share(r)]
            self._starts = [r.start for r in self._ranges]
            self._held = sum(self._share(r) * (r.end - r.start) for r in self._ranges)

    def _span(self, start: int, end: int) -> tuple[int, int]:
        """Positions of the ranges that overlap [start, end)."""
        first = bisect_right(self._starts, start)
        if first and self._ranges[first - 1].end > start:
            first -= 1
        return first, max(first, bisect_left(self._starts, end))

    def _cut(self, start: int, end: int) -> float:
        """Take [start, end) out; gives the bytes of it that were there."""
        first, last = self._span(start, end)
        cut, kept = 0.0, []
        for r in self._ranges[first:last]:
            cut += self._share(r) * (min(end, r.end) - max(start, r.start))
            if r.start < start:
                kept.append(_Range(r.start, start, r.share, r.age))
            if r.end > end:
                kept.append(_Range(end, r.end, r.share, r.age))
        if first < last:
            self._ranges[first:last] = kept
            self._starts[first:last] = [r.start for r in kept]
            self._held = max(0.0, self._held - cut)
        return cut

    def _insert(self, r: _Range) -> None:
        place = bisect_left(self._starts, r.start)
        self._ranges.insert(place, r)
        self._starts.insert(place, r.start)
