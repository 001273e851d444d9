"""The bias that attention adds to its scaled scores (CANN's `pse`), a tile of scores at a time.

Loaded in the stored type, taken to fp32 (where it is not) in a buffer that the tile's own work has
left, added. A
bias of one row for all queries is added 64 columns at a time: the row has repeat stride 0.
"""

from __future__ import annotations

from collections.abc import Iterator

from npusim.kernels.attention_shape import F32, LINE, Problem
from npusim.kernels.lang import Kernel
from npusim.kernels.queues import Alloc
from npusim.program.isa import Instr, Pipe
from npusim.program.region import Region


class Bias:
    """Adds the bias to tiles of up to `size` scores.

    Bias lies in UB in pieces of half a tile, as much as a mask of bytes takes.
    """

    def __init__(self, k: Kernel, p: Problem, size: int) -> None:
        self.k, self.p, self.room = k, p, size // 2
        self.queue = k.queue("UB", self.room * p.dtype.itemsize, 1, Pipe.MTE2, Pipe.V)

    def pieces(self, rows: int, width: int) -> Iterator[slice]:
        """Rows of a tile whose bias is in UB together; a row for all of them comes once."""
        step = max(1, self.room // width) if self.p.bias_rows > 1 else rows
        return (slice(r, min(rows, r + step)) for r in range(0, rows, step))

    def __call__(self, x: Region, columns: int, bias: Region, place: Alloc) -> Iterator[Instr]:
        """x (rows, width) += bias (rows or 1, columns); `place` has room for half of x in fp32."""
        k, width = self.k, x.shape[1]
        for rows in self.pieces(*x.shape):
            part = x[rows]
            n = part.shape[0] if self.p.bias_rows > 1 else 1
            src = bias[rows] if self.p.bias_rows > 1 else bias
            slot = yield from self.queue.alloc()
            narrow = slot.region((n, width), self.p.dtype)[:, :columns]
            key = (n, *part.shape, columns)
            yield k.memo(("load bias", *key), lambda a=narrow, b=src: k.load(a, b))  # type: ignore[misc]
            yield self.queue.enque()
            yield self.queue.deque()
            if self.p.dtype == F32:
                yield from self._add(part[:, :columns], narrow, key)
                yield self.queue.free()
                continue
            wide = place.region((n, width), F32)[:, :columns]
            yield k.memo(("bias", *key), lambda a=wide, b=narrow: k.vec("conv", a, b))  # type: ignore[misc]
            yield self.queue.free()
            yield from self._add(part[:, :columns], wide, key)

    def _add(self, x: Region, wide: Region, key: tuple[object, ...]) -> Iterator[Instr]:
        k, (n, columns) = self.k, x.shape
        if wide.shape[0] == n:
            yield k.memo(("add bias", *key), lambda: k.vec("add", x, x, wide))
            return
        for i in range(0, columns, LINE):
            a, b = x[:, i : i + LINE], wide[:, i : i + LINE]

            def add(a: Region = a, b: Region = b, later: bool = i > 0) -> Instr:
                ins = k.vec("add", a, a, b)
                ins.serial = ins.serial and not later  # blocks of one row do not overlap
                return ins

            yield k.memo(("add bias", i > 0, a.shape[1], *key), add)
