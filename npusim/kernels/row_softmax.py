"""Online softmax of rows in UB (SoftmaxFlashV2): tiles of a row's scores come one after the other.

Per row the maximum so far, the sum of exponentials below it, and the factor e^(old - new maximum)
that takes what was summed before to the new maximum. Each stands in a 32 B block of its own, which
instructions on the row's tile read with block stride 0.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np

from npusim.kernels.attention_shape import F32, LINE
from npusim.kernels.lang import Kernel
from npusim.kernels.queues import Alloc
from npusim.kernels.rows import RowReducer
from npusim.ops.training_attention import HIDDEN
from npusim.program.isa import Instr
from npusim.program.region import Region

BLOCK = 8  #: fp32 values of a 32 B block
MOST_ROWS = 32  #: of a tile, as many as the fold buffer holds
WHOLE = (512, 1024)  #: widths that groups of 8 reduce without a fold


def tile_rows(width: int, rows: int, tile: int) -> int:
    """Rows of a tile of `tile` scores of a padded width."""
    return max(1, min(tile // width, rows, MOST_ROWS))


class RowSoftmax:
    """Statistics of `rows` rows, and the instructions that bring a tile into them.

    `sums` and `factors` have `ahead` copies: a later tile's are computed while an earlier one's
    are still needed. `floored`: scores may be -inf, all of a tile's row too; its maximum is then
    the smallest finite number, so that differences from it are numbers.
    """

    def __init__(self, k: Kernel, rows: int, ahead: int, floored: bool = False) -> None:
        self.k, self._floored = k, floored
        size = rows * BLOCK * 4
        self.top = k.alloc("UB", size)
        self.sums = [k.alloc("UB", size) for _ in range(ahead)]
        self.factors = [k.alloc("UB", size) for _ in range(ahead)]
        few = min(rows, MOST_ROWS)
        self._now = k.alloc("UB", few * BLOCK * 4)
        self._scalars = k.alloc("UB", few * 4)
        # Rows of the widest tiles, at most 8 together, become 128 sums of groups each.
        self._fold = k.alloc("UB", max(few * LINE, min(few, BLOCK) * WHOLE[-1] // BLOCK) * 4)
        self._max = RowReducer(k, "max", few, LINE, F32)
        self._add = RowReducer(k, "add", few, LINE, F32)

    def stat(self, place: Alloc, row: int, rows: int) -> Region:
        """(rows, 8) blocks of a statistic."""
        return place.region((rows, BLOCK), F32, row * BLOCK * 4)

    def lane(self, place: Alloc, row: int, rows: int) -> Region:
        """A statistic to broadcast over the tile."""
        return self.stat(place, row, rows)[:, :1]

    def _reduce(self, op: str, x: Region, key: tuple[object, ...]) -> Iterator[Instr]:
        """now (rows, 8) = op over the rows of x, whose width is whole repeats."""
        k, rows = self.k, x.shape[0]
        scalars = self._scalars.region((rows,), F32)
        if k.chip.core.vector.costs["group_reduce"].b32 is None:
            folded = yield from self._fold_blocks(op, x, key)
            yield from (self._max if op == "max" else self._add)(scalars, folded)
        else:
            yield from self._by_groups(op, x, scalars, key)
        now = self._now.region((rows, BLOCK), F32)
        yield k.memo(("spread", op, *key), lambda: k.vec("brcb", now, scalars.expand(1)))

    def _fold_blocks(
        self, op: str, x: Region, key: tuple[object, ...]
    ) -> Generator[Instr, None, Region]:
        """The blocks of 64 of x folded onto each other, one after the other."""
        k, (rows, width) = self.k, x.shape
        src, out = x, self._fold.region((rows, LINE), F32)
        for i in range(1, width // LINE):
            piece = x[:, i * LINE : (i + 1) * LINE]
            first = x[:, :LINE] if i == 1 else out
            yield k.memo(
                ("fold", op, i > 1, *key),
                lambda a=first, b=piece: k.vec(op, out, a, b),  # type: ignore[misc]
            )
            src = out
        return src

    def _fold_rows(
        self, op: str, x: Region, key: tuple[object, ...]
    ) -> Generator[Instr, None, Region]:
        """Row by row: groups of the first 8 blocks, then the other blocks onto those."""
        k, rows = self.k, x.shape[0]
        out = self._fold.region((rows, LINE), F32)
        fn = np.maximum if op == "max" else np.add
        head = LINE * BLOCK

        def onto(values: np.ndarray, more: np.ndarray) -> np.ndarray:
            return np.asarray(fn(values, fn.reduce(more, axis=0)))

        for row in range(rows):
            first, dst = x[row, :head].split(0, BLOCK), out[row]
            yield k.memo(("head", op, *key), lambda d=dst, a=first: k.reduce("cg" + op, d, a))  # type: ignore[misc]
        rest = x[:, head:].split(1, LINE)
        for row in range(rows):
            dst, more = out[row], rest[row]
            yield k.memo(
                ("rest", op, *key),
                lambda d=dst, m=more: k.vec_by(op, onto, m, d, d, m),  # type: ignore[misc]
            )
        return out

    def _by_groups(
        self, op: str, x: Region, scalars: Region, key: tuple[object, ...]
    ) -> Iterator[Instr]:
        """vcgmax, vcgadd: 8 values to one, until one is left (BasicBlockReduceMaxImpl)."""
        k, (rows, width) = self.k, x.shape
        src = x
        if width not in WHOLE and width > LINE:
            folded = self._fold_rows if width > LINE * BLOCK else self._fold_blocks
            src = yield from folded(op, x, key)
        while src.shape[1] > BLOCK:
            left = src.shape[1] // BLOCK
            dst = self._fold.region((rows, left), F32)
            yield k.memo(
                ("groups", op, left, *key),
                lambda d=dst, a=src: k.reduce("cg" + op, d, a.split(1, BLOCK)),  # type: ignore[misc]
            )
            src = dst
            if left == 2 * BLOCK:
                half = self._fold.region((rows, BLOCK), F32)
                low, high = src[:, :BLOCK], src[:, BLOCK:]
                yield k.memo(
                    ("halves", op, *key),
                    lambda d=half, a=low, b=high: k.vec(op, d, a, b),  # type: ignore[misc]
                )
                src = half
        yield k.memo(("last", op, *key), lambda: k.reduce("cg" + op, scalars, src))

    def __call__(
        self, x: Region, row: int, first: bool, total: int, factor: int
    ) -> Iterator[Instr]:
        """x (rows, width) ← e^(x - maximum); the statistics of rows from `row` follow.

        `total`, `factor`: which copies of sums and factors.
        """
        k, rows = self.k, x.shape[0]
        key = (first, *x.shape)
        now = self._now.region((rows, BLOCK), F32)
        top = self.stat(self.top, row, rows)
        sums = self.stat(self.sums[total], row, rows)
        factors = self.stat(self.factors[factor], row, rows)
        yield from self._reduce("max", x, key)
        if not first:
            yield k.memo(("newer", *key), lambda: k.vec("max", now, top, now))
            yield k.memo(("older", *key), lambda: k.vec("sub", factors, top, now))
            yield k.memo(("factor", *key), lambda: k.vec("exp", factors, factors))
        if first and self._floored:  # later maxima are no less
            yield k.memo(("floor", *key), lambda: k.vec("maxs", top, now, scalar=HIDDEN))
        else:
            yield k.memo(("top", *key), lambda: k.vec("copy", top, now))
        lane = self.lane(self.top, row, rows)
        for i in range(0, x.shape[1], LINE):
            part = x[:, i : i + LINE]

            def shift(a: Region = part, later: bool = i > 0) -> Instr:
                ins = k.vec("sub", a, a, lane)
                ins.serial = ins.serial and not later  # blocks of one row do not overlap
                return ins

            yield k.memo(("shift", i > 0, *key), shift)
        yield k.memo(("exp", *key), lambda: k.vec("exp", x, x))
        yield from self._reduce("add", x, key)
        if first:
            yield k.memo(("sum", *key), lambda: k.vec("copy", sums, now))
        else:
            yield k.memo(("rescale", *key), lambda: k.vec("mul", sums, sums, factors))
            yield k.memo(("sum", *key), lambda: k.vec("add", sums, sums, now))
