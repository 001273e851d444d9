"""Which rows of a table the entries of an index tensor name, and what moves or combines them.

Every indexed operator is seen as rows: a table (R, w), picks (P, k) and rows (P, w) that come from
the table or go into it. How a pick becomes a row number is a `Picks`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.errors import KernelError
from npusim.program.access import Access, reads, writes
from npusim.program.isa import CoreMemory
from npusim.program.region import Region

Array = np.ndarray


@dataclass(frozen=True)
class Picks:
    """Pick p names row `p // per * span + p % step + Σ index[p, j] · strides[j]` of the table.

    Attributes:
        count: picks; width: elements of a row; rows: of the table.
        extents, strides: of the dimensions indexed, strides in rows; negative indices count from
            the end.
        per: picks that share a part of the table of `span` rows; step: rows between neighbours
            along the indexed dimension where the elements of a pick's row are picks themselves.
        run: 0, or the length of runs: picks of a run go to rows that follow each other, and
            `group` picks share one entry of the index, where their runs begin; circular: runs
            go on at the front of the dimension.
    """

    count: int
    width: int
    rows: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    per: int
    span: int
    step: int = 1
    run: int = 0
    group: int = 1
    circular: bool = False

    def entries(self, first: int, end: int) -> tuple[int, int]:
        """The rows of the index that the picks first … end - 1 go by; of runs, all that begin."""
        return (0, self.count // self.group) if self.run else (first, end)

    def targets(self, first: int, count: int, index: Array) -> Array:
        """Row numbers of `count` picks from `first` on, by their entries of the index.

        Raises:
            KernelError: an index lies outside its dimension: an error of the program's input.
        """
        p = first + np.arange(count)
        if self.run:
            return self._in_runs(p, index)
        found = p // self.per * self.span + p % self.step
        for j, (extent, stride) in enumerate(zip(self.extents, self.strides, strict=True)):
            at = _checked(index[:, j], -extent, extent)
            found = found + np.where(at < 0, at + extent, at) * stride
        return np.asarray(found)

    def _in_runs(self, p: Array, index: Array) -> Array:
        extent = self.extents[0]
        at = index[p // self.group, 0] + p % self.run
        at = at % extent if self.circular else _checked(at, 0, extent)
        return np.asarray(p // self.per * self.span + at)

    def reaching(self, low: int, high: int) -> tuple[int, int]:
        """The picks that may name one of the rows low … high - 1."""
        return low // self.span * self.per, ((high - 1) // self.span + 1) * self.per


def _checked(at: Array, low: int, end: int) -> Array:
    if ((at < low) | (at >= end)).any():
        raise KernelError(
            f"index {int(at.min())} … {int(at.max())} into a dimension of {end}",
            f"{low} … {end - 1}",
            "correct the indices that the model is given",
        )
    return at


@dataclass(slots=True)
class GatherPicked:
    """dst (n, w) = the rows of table (R, w) that index (n, k) names, from pick `first` on."""

    dst: Region
    table: Region
    index: Region
    picks: Picks
    first: int

    def accesses(self) -> list[Access]:
        """Which rows is known at run time only: all of the table."""
        return [*reads(self.index, self.table), *writes(self.dst)]

    def read(self, memory: CoreMemory) -> Array:
        """The rows."""
        at = self.picks.targets(self.first, self.dst.shape[0], memory.view(self.index))
        return memory.view(self.table)[at]

    def write(self, memory: CoreMemory, values: Array) -> None:
        """Store them."""
        memory.view(self.dst)[...] = values


@dataclass(slots=True)
class ScatterPicked:
    """Rows of `updates` (n, w) into the part `dst` (r, w) of a table, in order.

    Rows that index (n, k) sends elsewhere than to table rows `low` … `low` + r - 1 stay out.
    `combine` is a numpy function such as np.add.at; None overwrites.
    """

    dst: Region
    updates: Region
    index: Region
    picks: Picks
    first: int
    low: int
    combine: Callable[..., Any] | None

    def accesses(self) -> list[Access]:
        """Any of the rows; those that no pick names stay."""
        return [*reads(self.index, self.updates), *reads(self.dst), *writes(self.dst)]

    def read(self, memory: CoreMemory) -> tuple[Array, Array]:
        """Rows of dst, and what goes there."""
        count = self.updates.shape[0]
        at = self.picks.targets(self.first, count, memory.view(self.index)) - self.low
        mine = (at >= 0) & (at < self.dst.shape[0])
        return at[mine], memory.view(self.updates)[mine]

    def write(self, memory: CoreMemory, values: tuple[Array, Array]) -> None:
        """Overwrite or combine, pick after pick."""
        at, rows = values
        dst = memory.view(self.dst)
        if self.combine is None:
            dst[at] = rows
            return
        with np.errstate(all="ignore"):
            self.combine(dst, at, rows)


@dataclass(slots=True)
class OwnRows:
    """Rows of picks that name table rows low … high - 1, into the same rows of dst (n, w).

    They come from src (n, w), a row a pick, or with `table` from src (high - low, w), that part of
    the table. Rows of other picks are left as they are, and nothing reads them.
    """

    dst: Region
    src: Region
    index: Region
    picks: Picks
    first: int
    low: int
    high: int
    table: bool = False

    def accesses(self) -> list[Access]:
        """Any of the rows."""
        return [*reads(self.index, self.src), *writes(self.dst)]

    def read(self, memory: CoreMemory) -> tuple[Array, Array]:
        """Which rows, and the rows."""
        at = self.picks.targets(self.first, self.dst.shape[0], memory.view(self.index))
        mine = (at >= self.low) & (at < self.high)
        return mine, memory.view(self.src)[at[mine] - self.low if self.table else mine]

    def write(self, memory: CoreMemory, values: tuple[Array, Array]) -> None:
        """Store them."""
        memory.view(self.dst)[values[0]] = values[1]


@dataclass(slots=True)
class CombineRows:
    """dst (n, w) = combine(dst, updates) for rows of picks of a part of `rows` rows from `low` on.

    Picks of one row go on from each other, in order. `combine` is a numpy function such as np.add.
    """

    dst: Region
    updates: Region
    index: Region
    picks: Picks
    first: int
    low: int
    rows: int
    combine: Callable[..., Array]

    def accesses(self) -> list[Access]:
        """All rows: which are the part's is known at run time only."""
        return [*reads(self.index, self.updates, self.dst), *writes(self.dst)]

    def read(self, memory: CoreMemory) -> dict[int, Array]:
        """The rows made."""
        before, updates = memory.view(self.dst), memory.view(self.updates)
        at = self.picks.targets(self.first, len(before), memory.view(self.index)) - self.low
        made: dict[int, Array] = {}
        last: dict[int, int] = {}
        for j, row in enumerate(at):
            if 0 <= row < self.rows:
                base = made[last[row]] if row in last else before[j]
                with np.errstate(all="ignore"):
                    made[j] = self.combine(base, updates[j])
                last[row] = j
        return made

    def write(self, memory: CoreMemory, values: dict[int, Array]) -> None:
        """Store them."""
        for j, row in values.items():
            memory.view(self.dst)[j] = row
