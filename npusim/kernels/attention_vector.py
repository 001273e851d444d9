"""What a vector core does to its half of a band's scores in the forward kernel (dav-2201).

A tile of whole scores (8 rows of 1024, or more rows of fewer) at a time: scale, mask, online
softmax, probabilities in the stored type (ProcessVec1 of CANN's kernel); then the products with V
that came before are taken to the new maximum and summed up through GM (ProcessVec2).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from npusim.kernels.attention_bias import Bias
from npusim.kernels.attention_shape import F32, LINE, Problem, up
from npusim.kernels.lang import Kernel
from npusim.kernels.queues import Queue
from npusim.kernels.row_softmax import RowSoftmax, tile_rows
from npusim.ops.training_attention import HIDDEN, STATS
from npusim.program.isa import Instr, Pipe
from npusim.program.region import Region

#: Scalar cycles that an Ascend C call takes to issue its instruction: 21 scalar instructions, as
#: CANN's TIK cycle model has for one. The scalar unit of CANN's kernel is busy 91-96 % (msprof).
CALL = 43
U8 = np.dtype(np.uint8)
F16 = np.dtype(np.float16)


def hide(k: Kernel, x: Region, mask: Region, wide: Region, key: tuple[object, ...]) -> list[Instr]:
    """x ← HIDDEN where the byte mask is not 0 (SelectWithBytesMask).

    The bytes become fp16 in `wide`, a compare packs them to bits (over the bytes), a select reads
    those. x and `wide` have the mask's shape.
    """
    bits = Region.dense("UB", -1, mask.offset, (-(-mask.size // 8),), U8)

    def pack(values: np.ndarray) -> np.ndarray:
        return np.packbits(values.reshape(-1) == 0, bitorder="little")

    def select(scores: np.ndarray, kept: np.ndarray) -> np.ndarray:
        keep = np.unpackbits(kept, count=scores.size, bitorder="little")
        return np.where(keep.reshape(scores.shape), scores, HIDDEN)

    return [
        k.memo(("mask", *key), lambda: k.vec("conv", wide, mask)),
        k.memo(("mask bits", *key), lambda: k.vec_by("eq", pack, wide, bits, wide)),
        k.memo(("mask select", *key), lambda: k.vec_by("sel", select, x, x, x, bits)),
    ]


def cast_to(k: Kernel, dst: Region, src: Region) -> Instr:
    """fp32 → the stored type."""
    return k.vec("conv", dst, src)


class Softmax:
    """First part: scores of a task → probabilities; statistics of up to `rows` rows.

    `tile`: scores that are in UB together.
    """

    def __init__(self, k: Kernel, p: Problem, rows: int, tile: int) -> None:
        self.k, self.p, self.tile = k, p, tile
        self.stats = RowSoftmax(k, rows, 2, floored=p.bias >= 0)
        self.scores = k.queue("UB", tile * 4, 1, Pipe.MTE2, Pipe.V)
        # In fp32 there is nothing to convert: probabilities are worked out where they leave from.
        self.work = k.alloc("UB", tile * 4) if p.dtype != F32 else None
        self.out = k.queue("UB", tile * p.dtype.itemsize, 1, Pipe.V, Pipe.MTE3)
        self.mask = k.queue("UB", tile, 1, Pipe.MTE2, Pipe.V) if p.mask >= 0 else None
        self.bias = Bias(k, p, tile) if p.bias >= 0 else None
        self._kept = k.flag_id()  #: the maximum left UB before the next band's is written
        self._stored = 0

    def task(
        self,
        scores: Region,
        out: Region,
        masks: list[Region | None],
        biases: list[Region],
        columns: int,
        first: bool,
        copies: tuple[int, int],
    ) -> Iterator[Instr]:
        """scores (rows, whole blocks) in GM → out (the same) in GM.

        Args:
            masks: per tile of `tile_rows` rows; biases: the same, or none; columns: valid ones;
                copies: of sums, factors.
        """
        k = self.k
        if first and self._stored:
            yield k.wait_flag(Pipe.MTE3, Pipe.V, self._kept)
        rows, stored = scores.shape
        width = up(columns, LINE)
        step = tile_rows(width, rows, self.tile)
        for i, row in enumerate(range(0, rows, step)):
            n = min(step, rows - row)
            yield from self._load(scores[row : row + n], width, masks[i])
            place = None if self.work else (yield from self.out.alloc())
            x = (place or self.work).region((n, width), F32)  # type: ignore[union-attr]
            yield from self._prepare(x, columns, masks[i], biases[i] if biases else None)
            yield from self.stats(x, row, first, *copies)
            narrow = x
            if place is None:
                narrow = (yield from self.out.alloc()).region((n, width), self.p.dtype)
                yield k.memo(("p", n, width), lambda d=narrow, s=x: cast_to(k, d, s))  # type: ignore[misc]
            yield self.out.enque()
            yield self.out.deque()
            dst = out[row : row + n]
            yield k.memo(
                ("store p", *dst.shape, width),
                lambda d=dst, s=narrow: k.store(d, s[:, :stored]),  # type: ignore[misc]
            )
            yield self.out.free()

    def _load(self, scores: Region, width: int, mask: Region | None) -> Iterator[Instr]:
        k, (n, stored) = self.k, scores.shape
        slot = yield from self.scores.alloc()
        tile = slot.region((n, width), F32)[:, :stored]
        yield k.memo(("scores", n, stored, width), lambda: k.load(tile, scores))
        yield self.scores.enque()
        if mask is not None:
            assert self.mask is not None
            slot = yield from self.mask.alloc()
            bytes_ = slot.region((n, width), U8)[:, : mask.shape[1]]
            yield k.memo(("load mask", width, *mask.shape), lambda: k.load(bytes_, mask))
            yield self.mask.enque()
        yield self.scores.deque()

    def _prepare(
        self, x: Region, columns: int, mask: Region | None, bias: Region | None
    ) -> Iterator[Instr]:
        """x ← scale · scores + bias, hidden where the mask says and beyond the valid columns."""
        k, key = self.k, x.shape
        loaded = self.scores.front.region(x.shape, F32)
        scale = self.p.scale
        yield k.memo(("scale", *key), lambda: k.vec("muls", x, loaded, scalar=scale))
        if mask is not None:
            assert self.mask is not None
            yield self.mask.deque()
            # The scores have been read: their buffer takes the mask in fp16.
            wide = self.scores.front.region(x.shape, F16)
            yield from hide(k, x, self.mask.front.region(x.shape, U8), wide, key)
            yield self.mask.free()
        if bias is not None:
            assert self.bias is not None
            yield from self.bias(x, columns, bias, self.scores.front)
        yield self.scores.free()
        if columns < x.shape[1]:
            edge = x[:, columns:]
            yield k.memo(("edge", columns, *key), lambda: k.vec("dup", edge, scalar=HIDDEN))

    def keep_top(self, rows: int, dst: Region) -> Iterator[Instr]:
        """Store the maximum of a finished band (rows, 8)."""
        k = self.k
        event = self._kept
        yield k.set_flag(Pipe.V, Pipe.MTE3, event)
        yield k.wait_flag(Pipe.V, Pipe.MTE3, event)
        src = self.stats.stat(self.stats.top, 0, rows)
        yield k.memo(("keep top", rows), lambda: k.store(dst, src))
        yield k.set_flag(Pipe.MTE3, Pipe.V, event)
        self._stored += 1


class Accumulate:
    """Second part: the products with V, brought to the newest maximum and summed through GM.

    `tile`: elements that are in UB together.
    """

    def __init__(self, k: Kernel, p: Problem, stats: RowSoftmax, tile: int) -> None:
        self.k, self.p, self.stats = k, p, stats
        self.rows = tile // p.shape.d  #: of a tile
        self.new = k.alloc("UB", tile * 4)
        self.old: Queue = k.queue("UB", tile * 4, 1, Pipe.MTE2, Pipe.V)
        self._loaded, self._ready, self._left = (k.flag_id() for _ in range(3))
        self._sums = [k.flag_id(), k.flag_id()]  #: copy of the sums → it left UB
        self._kept = [0, 0]

    def task(
        self,
        products: Region,
        saved: Region,
        first: bool,
        out: Region | None,
        copies: tuple[int, int],
    ) -> Iterator[Instr]:
        """products, saved: (rows, D) fp32 in GM; out: where the last task's result goes."""
        k, d = self.k, self.p.shape.d
        rows = products.shape[0]
        for row in range(0, rows, self.rows):
            n = min(self.rows, rows - row)
            part = slice(row, row + n)
            # What was stored so far is in GM, and the buffer is free: a tile waits for the last.
            yield k.set_flag(Pipe.MTE3, Pipe.MTE2, self._left)
            yield k.wait_flag(Pipe.MTE3, Pipe.MTE2, self._left)
            new = self.new.region((n, d), F32)
            src = products[part]
            yield k.memo(("products", n), lambda a=new, b=src: k.load(a, b))  # type: ignore[misc]
            if not first:
                slot = yield from self.old.alloc()
                old = slot.region((n, d), F32)
                before = saved[part]
                yield k.memo(("saved", n), lambda a=old, b=before: k.load(a, b))  # type: ignore[misc]
                yield self.old.enque()
            yield k.set_flag(Pipe.MTE2, Pipe.V, self._loaded)
            yield k.wait_flag(Pipe.MTE2, Pipe.V, self._loaded)
            if not first:
                yield from self._add(new, row, copies[1])
            if out is None:
                yield from self._leave(new, saved[part], ("save", n))
            else:
                yield from self._finish(new, row, copies[0], out[part])

    def _add(self, new: Region, row: int, factor: int) -> Iterator[Instr]:
        k = self.k
        yield self.old.deque()
        old = self.old.front.region(new.shape, F32)
        lane = self.stats.lane(self.stats.factors[factor], row, new.shape[0])
        yield k.memo(("to maximum", new.shape), lambda: k.vec("mul", old, old, lane))
        yield k.memo(("add", new.shape), lambda: k.vec("add", new, new, old))
        yield self.old.free()

    def _leave(
        self, src: Region, dst: Region, key: tuple[object, ...], event: int | None = None
    ) -> Iterator[Instr]:
        """V tells MTE3, which stores."""
        k, ready = self.k, self._ready if event is None else event
        yield k.set_flag(Pipe.V, Pipe.MTE3, ready)
        yield k.wait_flag(Pipe.V, Pipe.MTE3, ready)
        yield k.memo(key, lambda: k.store(dst, src))

    def _finish(self, x: Region, row: int, total: int, out: Region) -> Iterator[Instr]:
        """out ← x / sum, in the stored type (over x itself)."""
        k = self.k
        lane = self.stats.lane(self.stats.sums[total], row, x.shape[0])
        yield k.memo(("divide", x.shape), lambda: k.vec("div", x, x, lane))
        narrow = Region.dense("UB", -1, x.offset, x.shape, self.p.dtype)
        if narrow.dtype != F32:
            yield k.memo(("cast", x.shape), lambda: cast_to(k, narrow, x))
        yield from self._leave(narrow, out, ("out", x.shape))

    def keep_sums(self, rows: int, copy: int, dst: Region) -> Iterator[Instr]:
        """Store the sums of a finished band (rows, 8)."""
        src = self.stats.stat(self.stats.sums[copy], 0, rows)
        event = self._sums[copy]
        yield from self._leave(src, dst, ("sums", rows), event)
        yield self.k.set_flag(Pipe.MTE3, Pipe.V, event)
        self._kept[copy] += 1

    def wait_sums(self, copy: int) -> Iterator[Instr]:
        """Before a copy of the sums is written again."""
        if self._kept[copy]:
            yield self.k.wait_flag(Pipe.MTE3, Pipe.V, self._sums[copy])


def stat_rows(index: int, p: Problem, batch: int, head: int, row: int, rows: int) -> Region:
    """(rows, 8) of a statistic in GM."""
    start = ((batch * p.shape.heads + head) * p.shape.s1 + row) * STATS * 4
    return Region.dense("GM", index, start, (rows, STATS), F32)
