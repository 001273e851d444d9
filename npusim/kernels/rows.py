"""What kernels that reduce along an axis share: geometry, reductions in UB, spreading back.

Storage is seen as (outer, length, inner); `length` is reduced. With inner == 1 the lanes are
rows: a row is reduced by vcadd / vcmax, or by a halving tree where the chip lacks them, and a
row's statistic is spread by filling a 32 B block that instructions read with stride 0. With
inner > 1 lanes are columns: rows of the tile are folded onto each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.kernels.estimate import pipeline_cycles, port_rate
from npusim.kernels.lang import Alloc, Kernel, Queue
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import Tiling
from npusim.program.region import Region

PAD = 16  #: elements to which lines in UB are padded (32 B of fp16)
UB_SHARE = 0.75  #: of UB that tiles take
F32 = np.dtype(np.float32)
F16 = np.dtype(np.float16)
NEUTRAL = {"add": 0.0, "max": -np.inf, "min": np.inf, "mul": 1.0}


def padded(n: int, to: int = PAD) -> int:
    """n rounded up."""
    return -(-n // to) * to


@dataclass(frozen=True)
class Lanes:
    """(outer, length, inner): lanes of `length` elements, `inner` elements apart."""

    outer: int
    length: int
    inner: int

    @property
    def is_rows(self) -> bool:
        """Lanes are contiguous."""
        return self.inner == 1

    @property
    def shape(self) -> tuple[int, ...]:
        """In GM: (outer, length) of rows, (outer, length, inner) of columns."""
        rows = (self.outer, self.length)
        return rows if self.is_rows else (*rows, self.inner)

    def tile(self, tiling: Tiling) -> tuple[int, ...]:
        """Shape of a whole tile in UB: lines padded."""
        m, r, i = tiling["m"], tiling["r"], tiling["i"]
        return (m, padded(r)) if self.is_rows else (m, r, padded(i))

    def stat(self, tiling: Tiling) -> tuple[int, ...]:
        """Shape of one statistic per lane of a tile in UB."""
        return (tiling["m"],) if self.is_rows else (tiling["m"], padded(tiling["i"]))

    def blocks(self, tiling: Tiling) -> int:
        """Block dim."""
        return tiling["parts"] * tiling["columns"]

    def share(self, tiling: Tiling, block: int) -> Share:
        """What a block works on: balanced parts of outer times parts of inner."""
        p, c = divmod(block, tiling["columns"])
        o0, o1 = (self.outer * (p + j) // tiling["parts"] for j in (0, 1))
        grains = -(-self.inner // PAD)
        i0, i1 = (min(self.inner, grains * (c + j) // tiling["columns"] * PAD) for j in (0, 1))
        return Share(o0, o1, i0, i1)


@dataclass(frozen=True)
class Share:
    """Lanes of a block: outer [o0, o1) × inner [i0, i1)."""

    o0: int
    o1: int
    i0: int
    i1: int

    @property
    def size(self) -> tuple[int, int]:
        """(outer, inner) extents: blocks of equal size are identical."""
        return self.o1 - self.o0, self.i1 - self.i0


def lanes(shape: tuple[int, ...], axis: int) -> Lanes:
    """The lanes of one axis of a dense array."""
    axis %= len(shape)
    return Lanes(prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))


# -- tilings ----


def tilings(
    lanes: Lanes, chip: ChipSpec, min_lanes: int, footprint: Callable[[Tiling], int]
) -> Iterator[Tiling]:
    """Tilings whose `footprint(tiling)` fits UB: whole lanes, else pieces of one lane.

    Args:
        min_lanes: lanes per block below which another block does not pay.
        footprint: UB bytes of a tiling.
    """
    room = int(chip.core.ub.size * UB_SHARE)
    want = max(1, min(chip.vector_cores(), lanes.outer * lanes.inner // max(1, min_lanes)))
    parts = min(lanes.outer, want)
    columns = min(-(-lanes.inner // PAD), max(1, want // parts))
    share = -(-lanes.outer // parts)
    wide = min(lanes.inner, -(-padded(lanes.inner) // PAD // columns) * PAD)
    base = {"parts": parts, "columns": columns}

    def fits(m: int, r: int, i: int) -> bool:
        return footprint({"m": m, "r": r, "i": i, **base}) <= room

    narrow = min(wide, PAD)
    if fits(1, lanes.length, narrow):
        i = largest(wide, PAD, lambda n: fits(1, lanes.length, n))
        i = min(wide, padded(-(-wide // -(-wide // i))))
        most = largest(share, 1, lambda n: fits(n, lanes.length, i)) if i == wide else 1
        for m in sorted({-(-share // n) for n in (1, 2, 4)} | {-(-share // -(-share // most))}):
            if m <= most:
                yield {"m": m, "r": lanes.length, "i": i, **base}
    else:
        i = largest(wide, PAD, lambda n: n <= 512 and fits(1, 2 * PAD, n))
        most = largest(lanes.length, 1, lambda n: fits(1, n, i))
        if fits(1, most, i):
            r = -(-lanes.length // -(-lanes.length // most))
            r = min(most, padded(r)) if lanes.is_rows else r
            yield {"m": 1, "r": max(r, 1), "i": i, **base}


def largest(limit: int, step: int, fits: Callable[[int], bool]) -> int:
    """The largest multiple of `step` (or `limit`) that fits; at least min(step, limit)."""
    if fits(limit):
        return limit
    low, high = 1, -(-limit // step)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * step) else (low, middle)
    return min(limit, low * step)


# -- reductions in UB ----


def has_reduction(chip: ChipSpec, op: str, dtype: np.dtype) -> bool:
    """True when one instruction reduces a repeat: vcadd; vcmax, vcmin, for fp32 not on v100."""
    if op == "mul" or dtype.kind in "iu":
        return False
    return op == "add" or dtype.itemsize == 2 or chip.core.vector.lanes["float32"] != 32


class RowReducer:
    """dst[m] = op over the last axis of src[m, w]; src is kept."""

    def __init__(self, k: Kernel, op: str, rows: int, width: int, dtype: np.dtype) -> None:
        self.k, self.op, self.dtype = k, op, dtype
        self._direct = has_reduction(k.chip, op, dtype)
        self._folds = width == 2 * k.chip.core.vector.repeat_bytes // dtype.itemsize
        sizes = self.scratch(k.chip, op, rows, width, dtype)
        self._buffers = [k.alloc("UB", size) for size in sizes]

    @staticmethod
    def scratch(chip: ChipSpec, op: str, rows: int, width: int, dtype: np.dtype) -> list[int]:
        """Bytes of the intermediate buffers."""
        size = dtype.itemsize
        if not has_reduction(chip, op, dtype):
            half = padded(-(-width // 2), 8) if width > 8 else 0
            return [rows * half * size, 8 * padded(rows, 8) * size]
        per = chip.core.vector.repeat_bytes // size
        if width == 2 * per:  # see _by_repeats
            return [rows * per * size]
        sizes = []
        while (width := -(-width // per)) > 1:
            sizes.append(rows * padded(width) * size)
        return [padded(s, 32) for s in sizes]

    def __call__(self, dst: Region, src: Region) -> Iterator[Instr]:
        """Reduce `src` (rows may be padded: give the valid width)."""
        return self._by_repeats(dst, src) if self._direct else self._by_halves(dst, src)

    def _by_repeats(self, dst: Region, src: Region) -> Iterator[Instr]:
        per = self.k.chip.core.vector.repeat_bytes // self.dtype.itemsize
        level = 0
        if self._folds and src.shape[1] == 2 * per:  # one add is cheaper than a second level
            out = self._buffers[0].region((src.shape[0], per), self.dtype)
            yield self.k.vec(self.op, out, src[:, :per], src[:, per:])
            src = out
        while True:
            rows, width = src.shape
            whole, n = width // per, -(-width // per)
            if n == 1:
                yield self.k.reduce("c" + self.op, dst, src)
                return
            out = self._buffers[level].region((rows, padded(n)), self.dtype)[:, :n]
            body = src[:, : whole * per].split(1, per)
            yield self.k.reduce("c" + self.op, out[:, :whole], body)
            if whole < n:
                tail = src[:, whole * per :].split(1, width - whole * per)
                yield self.k.reduce("c" + self.op, out[:, whole:], tail)
            src, level = out, level + 1

    def _by_halves(self, dst: Region, src: Region) -> Iterator[Instr]:
        """Fold the row in halves down to 8 elements, transpose, fold the 8 rows."""
        k, rows, width = self.k, *src.shape
        while width > 8:
            half = padded(-(-width // 2), 8)
            out = src[:, :half]
            if src.offset != self._buffers[0].offset:
                out = self._buffers[0].region((rows, half), self.dtype)
                if 2 * half > width:
                    yield k.vec("copy", out[:, width - half :], src[:, width - half : half])
            low = src[:, : width - half]
            yield k.vec(self.op, out[:, : width - half], low, src[:, half:width])
            src, width = out, half
        wide = self._buffers[1].region((8, padded(rows, 8)), self.dtype)[:width, :rows]
        yield k.vec("transpose", wide, src.permute(1, 0))
        yield from fold_rows(k, self.op, dst, wide, wide)


class ColumnReducer:
    """dst[m, i] = op over the middle axis of src[m, r, i].

    `keep` folds into a buffer of its own; else src is overwritten.
    """

    def __init__(
        self, k: Kernel, op: str, shape: tuple[int, ...], dtype: np.dtype, keep: bool
    ) -> None:
        self.k, self.op = k, op
        self._buffer = k.alloc("UB", self.scratch(shape, dtype, keep)) if keep else None

    @staticmethod
    def scratch(shape: tuple[int, ...], dtype: np.dtype, keep: bool) -> int:
        """Bytes of the intermediate buffer."""
        m, r, i = shape
        return m * -(-r // 2) * i * dtype.itemsize if keep else 0

    def __call__(self, dst: Region, src: Region) -> Iterator[Instr]:
        """Reduce `src` by the reducer's own operation."""
        return self.fold(self.op, dst, src)

    def fold(self, op: str, dst: Region, src: Region) -> Iterator[Instr]:
        """Reduce `src` by `op`."""
        m, r, i = src.shape
        work = src
        if self._buffer is not None:
            work = self._buffer.region((m, -(-r // 2), i), src.dtype)
        return fold_rows(self.k, op, dst, src.permute(1, 0, 2), work.permute(1, 0, 2))


def fold_rows(k: Kernel, op: str, dst: Region, src: Region, work: Region) -> Iterator[Instr]:
    """dst[…] = op over the first axis of src[r, …], by halves in `work` (may be src itself)."""
    r = src.shape[0]
    if r == 1:
        yield k.vec("copy", dst, src[0])
        return
    while r > 1:
        half = -(-r // 2)
        out = work[:half] if r > 2 else dst.expand(0)
        pairs = r - half
        if half > pairs and src.offset != work.offset:
            yield k.vec("copy", out[pairs:half], src[pairs:half])
        yield k.vec(op, out[:pairs], src[:pairs], src[half : half + pairs])
        src, r = out, half


# -- buffers of a block ----


class Strip:
    """One block of a lane kernel at work: its share, its tile geometry, its GM transfers."""

    def __init__(self, k: Kernel, lanes: Lanes, tiling: Tiling, block: int) -> None:
        self.k, self.lanes, self.tiling = k, lanes, tiling
        self.share = lanes.share(tiling, block)
        self.shape = lanes.tile(tiling)
        self.stat_shape = lanes.stat(tiling)

    def counts(self) -> tuple[int, int, int]:
        """Tiles along outer, inner, length."""
        s, t = self.share, self.tiling
        spans = (s.o1 - s.o0, s.i1 - s.i0, self.lanes.length)
        return tuple(-(-n // t[c]) for n, c in zip(spans, "mir", strict=True))  # type: ignore[return-value]

    def cut(self, o: int, i: int, r: int) -> tuple[slice, slice, slice]:
        """GM slices (outer, length, inner) of a tile."""
        s, t = self.share, self.tiling
        start, column, row = s.o0 + o * t["m"], s.i0 + i * t["i"], r * t["r"]
        return (
            slice(start, min(s.o1, start + t["m"])),
            slice(row, min(self.lanes.length, row + t["r"])),
            slice(column, min(s.i1, column + t["i"])),
        )

    def work(self, place: Alloc, dtype: np.dtype, cut: tuple[slice, slice, slice]) -> Region:
        """The tile's lines in UB, padding included: what elementwise steps work on."""
        m, r, _ = (c.stop - c.start for c in cut)
        whole = place.region(self.shape, dtype)
        return whole[:m] if self.lanes.is_rows else whole[:m, :r]

    def valid(self, work: Region, cut: tuple[slice, slice, slice]) -> Region:
        """The tile without its padding."""
        _, r, i = (c.stop - c.start for c in cut)
        return work[:, :r] if self.lanes.is_rows else work[:, :, :i]

    def stat(self, place: Alloc, dtype: np.dtype, cut: tuple[slice, slice, slice]) -> Region:
        """One statistic per lane."""
        return place.region(self.stat_shape, dtype)[: cut[0].stop - cut[0].start]

    def load(
        self, queue: Queue, index: int, dtype: np.dtype, cut: tuple[slice, slice, slice]
    ) -> Iterator[Instr]:
        """Load a tile of GM operand `index` and hand it to the vector pipe."""
        place = yield from queue.alloc()
        gm = Region.dense("GM", index, 0, self.lanes.shape, dtype)
        gm = gm[cut[: len(self.lanes.shape)]]
        yield self.k.load(self.valid(self.work(place, dtype, cut), cut), gm)
        yield queue.enque()
        yield queue.deque()

    def store(
        self, queue: Queue, index: int, work: Region, cut: tuple[slice, slice, slice]
    ) -> Iterator[Instr]:
        """Hand a finished tile to MTE3 and store it."""
        yield queue.enque()
        yield queue.deque()
        gm = Region.dense("GM", index, 0, self.lanes.shape, work.dtype)
        yield self.k.store(gm[cut[: len(self.lanes.shape)]], self.valid(work, cut))
        yield queue.free()


class Spreader:
    """Brings a statistic per lane into a form that broadcasts over the tile."""

    def __init__(self, k: Kernel, strip: Strip) -> None:
        self.k, self.strip = k, strip
        self._blocks = k.alloc("UB", self.nbytes(strip.lanes, strip.tiling))

    @staticmethod
    def nbytes(lanes: Lanes, tiling: Tiling) -> int:
        """UB bytes."""
        return 32 * tiling["m"] if lanes.is_rows else 0

    def __call__(self, stat: Region) -> Iterator[Instr]:
        """Fill the blocks (rows only)."""
        if self.strip.lanes.is_rows:
            blocks = self._blocks.region((stat.shape[0], 8), F32)
            yield self.k.vec("brcb", blocks, stat.expand(1))

    def region(self, stat: Region) -> Region:
        """What an instruction on the tile reads."""
        if self.strip.lanes.is_rows:
            return self._blocks.region((stat.shape[0], 8), F32)[:, :1]
        return stat.expand(1)


def in_queue(k: Kernel, nbytes: int, slots: int = 2) -> Queue:
    """A queue from GM to the vector pipe."""
    return k.queue("UB", nbytes, slots, Pipe.MTE2, Pipe.V)


def out_queue(k: Kernel, nbytes: int, slots: int = 2) -> Queue:
    """A queue from the vector pipe to GM."""
    return k.queue("UB", nbytes, slots, Pipe.V, Pipe.MTE3)


def lane_estimate(
    lanes: Lanes, chip: ChipSpec, tiling: Tiling, passes: int, read: float, written: float
) -> float:
    """Cycles of a lane kernel: `passes` fp32 passes; bytes read and written by all blocks."""
    core, blocks = chip.core, lanes.blocks(tiling)
    per = core.vector.costs["binary"].b32 or core.vector.costs["binary"].b16 or 1.0
    outer = -(-lanes.outer // tiling["parts"])
    inner = -(-lanes.inner // tiling["columns"])
    tiles = -(-outer // tiling["m"]) * -(-inner // tiling["i"]) * -(-lanes.length // tiling["r"])
    elements = outer * inner * lanes.length
    vector = elements / (core.vector.repeat_bytes // 4) * per * passes
    vector += tiles * passes * (core.vector.head + core.vector.tail)
    into, out = (port_rate(chip, rate, blocks) for rate in (core.mte2.ub_rate, core.mte3.rate))
    move_in = read / blocks / into + tiles * core.mte2.head
    move_out = written / blocks / out + tiles * core.mte3.head
    shared = (read + written) / chip.hbm_rate
    return pipeline_cycles(chip, vector, move_in, move_out, shared, tiles)
