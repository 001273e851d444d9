"""The argmax pools of ResNet's first pool: rows straight in UB, no img2col.

CANN has a kernel of its own for 3 × 3 windows with stride 2 over images of 112 × 112, padded
behind (max_pool_with_argmax_resnet50.py, max_pool_grad_with_argmax_resnet50.py), for any number of
slices: one block a slice, eight rows of outputs a band, loads and stores double-buffered. The
vector unit walks the strided pixels by its block strides; the gradient adds up in fp16 and hands
the row that two bands share from one to the next.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.kernels import vector_ops
from npusim.kernels.argmax_backward import SELECT_PAIR
from npusim.kernels.argmax_job import BITS, C0, Band, Job, Operands, packed
from npusim.kernels.lang import Kernel
from npusim.kernels.rows import F16
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs
from npusim.program.region import Region

SIDE, KERNEL, STRIDE = 112, 3, 2  #: of the images that CANN's kernel is registered for
BAND = 8  #: rows of outputs a band


def by_rows(job: Job) -> bool:
    """Whether CANN takes its kernel by rows."""
    w = job.window
    return (w.size, w.kernel, w.strides) == ((SIDE,) * 2, (KERNEL,) * 2, (STRIDE,) * 2) and (
        w.dilations,
        w.begin,
        w.end,
    ) == ((1, 1), (0, 0), (1, 1))


class _Rows(Operands):
    """Bands of eight rows of outputs over a padded image in UB."""

    @staticmethod
    def rows(job: Job, chip: ChipSpec) -> int:
        """Eight, where the double-buffered bands fit."""
        outputs, image = BAND * job.window.out[1] * C0, (BAND * STRIDE + 1) * (SIDE + 1) * C0
        ub = 2 * 2 * (outputs + image) + 2 * outputs + (3 * 9 + 2) * outputs // 8
        return BAND if ub <= chip.core.ub.size else 0

    def __init__(self, k: Kernel, args: KernelArgs, job: Job, rows: int) -> None:
        super().__init__(k, args, job)
        self._shape = (BAND, self.w.out[1], C0)
        self._image = (BAND * STRIDE + KERNEL - STRIDE, SIDE + 1, C0)
        self._nbytes = 2 * BAND * self.w.out[1] * C0
        self._held = 2 * self._image[0] * self._image[1] * C0
        self._masks = self.w.taps * self._nbytes // C0

    def begin(self) -> Iterator[Instr]:
        """Nothing to do before the first band."""
        return iter(())

    def seen(self, image: Region, row: int, tap: int) -> Region:
        """What a tap sees of the image for a row of outputs: (columns, 16), every second pixel."""
        sh, sw, sc = image.strides
        i, j = divmod(tap, KERNEL)
        offset = image.offset + (row * STRIDE + i) * sh + j * sw
        return Region("UB", -1, offset, self._shape[1:], (STRIDE * sw, sc), F16)


class RowsForward(_Rows):
    """x → y, mask."""

    @staticmethod
    def bands(job: Job, rows: int) -> list[Band]:
        """Runs of eight outputs and the 17 rows that they see (16 at the end)."""
        firsts = range(0, job.window.out[0], BAND)
        return [Band(f, BAND, f, f + BAND, min(17, SIDE - f * STRIDE)) for f in firsts]

    def __init__(self, k: Kernel, args: KernelArgs, job: Job, rows: int) -> None:
        super().__init__(k, args, job, rows)
        self._x = k.queue("UB", self._held, 2, Pipe.MTE2, Pipe.V)
        self._y = k.queue("UB", self._nbytes, 2, Pipe.V, Pipe.MTE3)
        self._bits = k.queue("UB", self._masks, 2, Pipe.V, Pipe.MTE3)
        self._copy = k.alloc("UB", self._nbytes).region(self._shape, F16)
        self._all = k.alloc("UB", self._masks).region((self.w.taps, *self._shape[:2]), BITS)
        self._taken = k.alloc("UB", self._nbytes // C0).region(self._shape[:2], BITS)
        self._free = k.alloc("UB", self._nbytes // C0).region(self._shape[:2], BITS)

    def band(self, s: int, b: Band, following: tuple[int, Band] | None) -> Iterator[Instr]:
        """Eight rows of outputs of a slice."""
        k = self.k
        slot = yield from self._x.alloc()
        x, first = slot.region(self._image, F16), b.first * STRIDE
        yield k.load(x[: b.loaded, :SIDE], self.image(0)[s, first : first + b.loaded])
        yield self._x.enque()
        yield self._x.deque()
        edge = x[:, SIDE:]  # one column of blocks: eight rows a repeat
        per = k.chip.core.vector.repeat_bytes // (2 * C0)
        yield k.vec_by("dup", lambda: np.float16(-np.inf), self._copy[0, : 17 // per * per], edge)
        if b.loaded < self._image[0]:
            yield k.vec("dup", x[b.loaded :], scalar=-np.inf)
        place = yield from self._y.alloc()
        y = place.region(self._shape, F16)
        yield from self._largest(y, x)
        yield self._y.enque()
        yield self._y.deque()
        yield k.store(self.image(1)[s, b.low : b.high], y)
        yield self._y.free()
        yield from self._equal(y, x)
        yield self._x.free()
        yield from self._first_only(s, b)

    def _largest(self, y: Region, x: Region) -> Iterator[Instr]:
        """Maxima: two chains of vmax, a row of outputs each instruction."""
        k, fn, other = self.k, vector_ops.get("max").fn, self._copy

        def chain(dst: Region, first: int, second: int) -> Iterator[Instr]:
            for r in range(BAND):
                a = self.seen(x, r, first) if first >= 0 else dst[r]
                yield k.vec_by("max", fn, y[r], dst[r], a, self.seen(x, r, second))

        yield from chain(y, 0, 1)
        yield from chain(other, 4, 5)
        for tap in (2, 3):
            yield from chain(y, -1, tap)
            yield from chain(other, -1, tap + 4)
        for r in range(BAND):
            yield k.vec("max", y[r], y[r], other[r])
        yield from chain(y, -1, 8)

    def _equal(self, y: Region, x: Region) -> Iterator[Instr]:
        """Bits of every tap: a copy of what it sees, row by row, then one compare."""
        k, fn = self.k, vector_ops.get("copy").fn
        for t in range(self.w.taps):
            for r in range(BAND):
                yield k.vec_by("copy", fn, y[r], self._copy[r], self.seen(x, r, t))
            yield k.reduce("pack_equal", packed(self._all[t]), y, self._copy)

    def _first_only(self, s: int, b: Band) -> Iterator[Instr]:
        """Masks of the band, only the first maximum of a window marked."""
        k, seen, taken, free = self.k, self._all, self._taken, self._free
        room = yield from self._bits.alloc()
        bits = room.region(seen.shape, BITS)
        yield k.vec("copy", bits[0], seen[0])
        yield k.vec("copy", taken, seen[0])
        for t in range(1, self.w.taps):
            yield k.vec("not", free, taken)
            yield k.vec("or", taken, taken, seen[t])
            yield k.vec("and", bits[t], seen[t], free)
        yield self._bits.enque()
        yield self._bits.deque()
        wide = self._shape[1]
        target = self.mask(2)[s, :, b.first * wide : (b.first + BAND) * wide]
        source = Region.dense("UB", -1, bits.offset, target.shape, BITS)
        yield k.store(target, source)
        yield self._bits.free()


class RowsBackward(_Rows):
    """x, dy, mask → dx."""

    @staticmethod
    def bands(job: Job, rows: int) -> list[Band]:
        """Runs of eight outputs and the 16 rows that they complete."""
        firsts = range(0, job.window.out[0], BAND)
        return [Band(f, BAND, f * STRIDE, (f + BAND) * STRIDE, BAND) for f in firsts]

    def __init__(self, k: Kernel, args: KernelArgs, job: Job, rows: int) -> None:
        super().__init__(k, args, job, rows)
        self._dy = k.queue("UB", self._nbytes, 2, Pipe.MTE2, Pipe.V)
        self._bits = k.queue("UB", self._masks, 2, Pipe.MTE2, Pipe.V)
        self._out = k.queue("UB", self._held, 2, Pipe.V, Pipe.MTE3)
        self._chosen = k.alloc("UB", self._nbytes).region(self._shape, F16)
        self._before: Region | None = None

    def band(self, s: int, b: Band, following: tuple[int, Band] | None) -> Iterator[Instr]:
        """Sixteen rows of dx of a slice."""
        k, wide = self.k, self._shape[1]
        place = yield from self._out.alloc()
        image = place.region(self._image, F16)
        if b.first and self._before is not None:
            yield k.vec("copy", image[0], self._before[self._image[0] - 1])
            yield k.vec("dup", image[1:], scalar=0.0)
        else:
            yield k.vec("dup", image, scalar=0.0)
        self._before = image
        slot = yield from self._dy.alloc()
        dy = slot.region(self._shape, F16)
        yield k.load(dy, self.image(1)[s, b.first : b.first + BAND])
        yield self._dy.enque()
        yield self._dy.deque()
        room = yield from self._bits.alloc()
        source = self.mask(2)[s, :, b.first * wide : (b.first + BAND) * wide]
        yield k.load(Region.dense("UB", -1, room.offset, source.shape, BITS), source)
        yield self._bits.enque()
        yield self._bits.deque()
        bits = room.region((self.w.taps, *self._shape[:2]), BITS)
        for t in range(self.w.taps):
            yield from self._tap(image, dy, bits[t], t)
        yield self._dy.free()
        yield self._bits.free()
        yield self._out.enque()
        yield self._out.deque()
        yield k.store(self.image(3)[s, b.low : b.high], image[: BAND * STRIDE, :SIDE])
        yield self._out.free()

    def _tap(self, image: Region, dy: Region, bits: Region, t: int) -> Iterator[Instr]:
        """Select what a tap held, and add it where the tap came from, a row an instruction."""
        k, fn, chosen = self.k, vector_ops.get("select_bits").fn, self._chosen
        yield k.vec_by("select_bits", fn, dy, chosen, dy, packed(bits), per_repeat=SELECT_PAIR)
        for r in range(BAND):
            k.barrier()  # TIK holds in-place additions of a loop apart
            target = self.seen(image, r, t)
            yield k.vec_by("add", np.add, chosen[r], target, target, chosen[r])
