"""L2 residency by address ranges, with gradual eviction.

Kernels move whole tensors, so the cache is kept as byte ranges, not as lines. A new line takes the
place of some line, whichever (random replacement, in the mean): after `a` bytes have come into a
full cache of size C, every range keeps exp(-a / C) of what it had. Measured times want it: after
tensors of half the cache have passed, what was there before is found in part, not wholly or not
at all (memory-bound operators of the 30-core Ascend 910 are 14 % off in the mean, 16 to 18 % with
least recently used out first, whatever the size).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log1p

_GONE = 1e-3  #: a range of which less than this part is left counts as gone
_FLOOD = 50.0  #: caches of bytes after which nothing is left; exp() would overflow far above


@dataclass(slots=True)
class _Range:
    start: int
    end: int
    share: float  #: part of its bytes that is resident

    @property
    def held(self) -> float:
        return self.share * (self.end - self.start)


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
    """Which part of which address range is in L2. Life cycle: construct empty, `touch` in order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._ranges: list[_Range] = []

    def resident(self, start: int, end: int) -> float:
        """Bytes of [start, end) that are in L2."""
        return sum(r.share * max(0, min(end, r.end) - max(start, r.start)) for r in self._ranges)

    def drop(self, start: int, end: int) -> None:
        """Forget [start, end): somebody wrote memory past the cache."""
        self._ranges = [part for r in self._ranges for part in _outside(r, start, end)]

    def touch(self, ranges: Sequence[tuple[int, int]]) -> Touched:
        """Read or write several ranges side by side, each from its start to its end.

        What a range still had is pushed out, in part, before its turn comes. With N bytes in all,
        P of them resident, the bytes `a` that have come grow by N - P·exp(-a / C) per pass, hence
        a = C·log(P/N + (1 - P/N)·exp(N / C)).

        Args:
            ranges: (start, end) of each; they do not overlap.
        """
        held = [self.resident(start, end) for start, end in ranges]
        total, there = float(sum(end - start for start, end in ranges)), sum(held)
        if total <= 0:
            return Touched(tuple(0.0 for _ in ranges), 0.0)
        others = self._ranges
        for start, end in ranges:
            others = [part for r in others for part in _outside(r, start, end)]
        free = self.size - sum(r.held for r in others) - there
        came = total - there
        if came > free:  # else nothing has to leave
            came = self._came(total, there)
        evicted = max(0.0, came - free)
        left = exp(-min(evicted / self.size, _FLOOD))
        kept = [_Range(r.start, r.end, r.share * left) for r in others]
        self._ranges = [r for r in kept if r.share > _GONE]
        room = self.size - sum(r.held for r in self._ranges)
        share = min(1.0, room / total)
        self._ranges += [_Range(start, end, share) for start, end in ranges if start < end]
        hit = (total - came) / there if there else 0.0
        sizes = [end - start for start, end in ranges]
        missing = (max(0.0, n - h * hit) for n, h in zip(sizes, held, strict=True))
        return Touched(tuple(missing), evicted)

    def _came(self, total: float, there: float) -> float:
        """Bytes brought in by a pass over `total` bytes of which `there` were resident."""
        part, passes = there / total, total / self.size
        # log(p + (1 - p)·e^x) = x + log(1 - p + p·e^-x)
        return total + self.size * log1p(part * (exp(-min(passes, _FLOOD)) - 1))


def _outside(r: _Range, start: int, end: int) -> list[_Range]:
    """What is left of a range without [start, end)."""
    before = _Range(r.start, min(r.end, start), r.share)
    after = _Range(max(r.start, end), r.end, r.share)
    return [p for p in (before, after) if p.start < p.end]
