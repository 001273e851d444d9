"""Dealing equal work units to blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """A block's run of units: `start` … `start + count - 1`."""

    start: int
    count: int


def deal(units: Sequence[int], blocks: int, block: int) -> list[Share]:
    """Deal several piles of units: each block gets a run of every pile, as equal as can be.

    The odd units of a pile go to the blocks after those that got the last pile's odd ones.
    """
    shares, first = [], 0
    for n in units:
        base, odd = divmod(n, blocks)
        rank = (block - first) % blocks
        shares.append(Share(rank * base + min(rank, odd), base + (rank < odd)))
        first = (first + odd) % blocks
    return shares
