"""One value per column of a cube result (a bias, scales), kept on chip while the tiles leave.

A block loads its columns' values once, those of all groups of channels. In UB the values of a
strip are brought to the type of the work, and repeated four times where the strip lies as blocks:
a repeat is 64 lanes, of four rows of 16 columns.
"""

from __future__ import annotations

from collections.abc import Iterator

from npusim.kernels.lang import Kernel
from npusim.program.isa import Instr, Pipe
from npusim.program.region import Region

#: UB bytes per column block for the wide values and their fourfold copy (16 + 64 values).
STRIP = (16 + 64) * 4


class ColumnRow:
    """The values of an operand for a block's share.

    Life cycle: `yield from load(…)` once; `stored` then gives those of a strip. For work in UB,
    `allocate` before and `apply` per strip.

    Args:
        columns: first column of the share, and how many.
        groups: of columns, one after the other in the operand.
    """

    def __init__(self, k: Kernel, operand: int, columns: tuple[int, int], groups: int) -> None:
        self._k, self._operand, self._groups = k, operand, groups
        self._first, self._count = columns
        self._padded = -(-columns[1] // 16) * 16
        self._dtype = k.args.operands[operand].dtype.np
        self._at = (-1, -1, -1)

    def load(self, space: str, pipe: Pipe) -> Iterator[Instr]:
        """Into `space`, for `pipe`."""
        k, size = self._k, self._dtype.itemsize
        queue = k.queue(space, self._groups * self._padded * size, 1, Pipe.MTE2, pipe)
        self._held = yield from queue.alloc()
        shape = (self._groups, k.args.operands[self._operand].nbytes // size // self._groups)
        src = Region.dense("GM", self._operand, 0, shape, self._dtype)
        whole = self._held.region((self._groups, self._padded), self._dtype)
        loaded = src[:, self._first : self._first + self._count]
        short = self._count < self._padded
        yield k.load(whole[:, : self._count], loaded, whole if short else None)
        yield queue.enque()
        yield queue.deque()

    def stored(self, group: int, n1: int, nu: int) -> Region:
        """The values of column blocks n1 … n1+nu of a group, as they are stored."""
        offset = (group * self._padded + n1 * 16 - self._first) * self._dtype.itemsize
        return self._held.region((nu * 16,), self._dtype, offset)

    def allocate(self, nu: int) -> None:
        """UB for strips of `nu` column blocks."""
        self._wide = self._k.alloc("UB", nu * 16 * 4)
        self._repeated = self._k.alloc("UB", nu * 64 * 4)

    def apply(
        self, op: str, work: Region, place: tuple[int, int, int], m16: int, rows: bool
    ) -> Iterator[Instr]:
        """work = work `op` the values; kept between strips of the same columns.

        Args:
            work: the strip, flat; place: group, first column block, blocks; rows: it lies so.
        """
        k, nu, name = self._k, place[2], self._operand
        wide = self._wide.region((nu * 16,), work.dtype)
        if self._at != place:
            self._at = place
            change = "conv" if self._dtype.kind == "i" or self._dtype != work.dtype else "copy"
            yield k.memo(("row", name, nu), lambda: k.vec(change, wide, self.stored(*place)))
            if not rows:
                held = self._repeated.region((nu, 4, 16), work.dtype)
                yield k.memo(
                    ("repeat", name, nu),
                    lambda: k.vec("copy", held, wide.split(0, 16).expand(1)),
                )

        def instruction() -> Instr:
            shape = (m16, nu * 16) if rows else (nu, m16 // 4, 64)
            x = Region.dense("UB", -1, work.offset, shape, work.dtype)
            if rows:
                return k.vec(op, x, x, wide.expand(0))
            return k.vec(op, x, x, self._repeated.region((nu, 1, 64), work.dtype))

        yield k.memo(("apply", name, nu, m16), instruction)
