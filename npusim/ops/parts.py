"""A result (N, C1, H, W, C0) in parts that depend on nothing of each other.

What a part is depends on shapes only, so that the numbers do not depend on the threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from npusim.ir import EpilogueStep
from npusim.ops.scratch import Scratch

Work = Callable[[Scratch], None]
Steps = Sequence[tuple[EpilogueStep, np.ndarray | None]]


@dataclass(frozen=True)
class Pieces:
    """Work in pieces that threads may share out.

    Attributes:
        whole: one piece after the other: in each, BLAS does best with all its threads.
    """

    work: Sequence[Work]
    whole: bool = False


@dataclass(frozen=True)
class Part:
    """A part of a result (N, C1, H, W, C0)."""

    images: slice
    rows: slice

    def of(self, a: np.ndarray, whole: tuple[int, ...]) -> np.ndarray:
        """The same part of an operand that is broadcast to `whole`."""
        at = (self.images, slice(None), self.rows)
        if a.ndim < len(whole):
            return a
        return a[tuple(s if a.shape[i] == whole[i] else slice(None) for i, s in enumerate(at))]

    def steps(self, steps: Steps, whole: tuple[int, ...]) -> Steps:
        """Epilogue steps with this part of their operands."""
        return [(s, a if a is None else self.of(a, whole)) for s, a in steps]


def by_rows(n: int, height: int, rows: int) -> list[Part]:
    """About `rows` rows each: of an image, or whole images."""
    if rows >= height:
        return by_images(n, rows // height)
    count = -(-height // rows)
    cuts = [height * i // count for i in range(count + 1)]
    return [Part(slice(i, i + 1), slice(a, b)) for i in range(n) for a, b in pairwise(cuts)]


def by_images(n: int, images: int) -> list[Part]:
    """`images` whole images each, at least one."""
    images = max(1, images)
    return [Part(slice(i, i + images), slice(None)) for i in range(0, n, images)]
