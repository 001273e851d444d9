"""Forward of the argmax pools: img2col into UB, maxima, one bit a tap and position.

One load3d brings the taps of 16 positions (a fractal each); the columns of a band fill half of UB
and are not double-buffered, so img2col and vector unit take turns, while the next band is on its
way to L1. Every fractal and tap is one vmax and one vcmpv of two repeats; the bits of later taps
are cleared where an earlier tap has the maximum, one 32 B block a repeat.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.kernels import vector_ops
from npusim.kernels.argmax_job import BITS, C0, Band, Job, Operands, packed
from npusim.kernels.bands import reach, spans
from npusim.kernels.lang import Kernel
from npusim.kernels.rows import F16
from npusim.ops.window import Window
from npusim.program import effects
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs
from npusim.program.region import Region

FRACTAL = C0 * C0 * 2  #: bytes of 16 positions of 16 channels
BESIDE = 160  #: bytes that CANN reserves beside a position's columns (5 blocks of 32 B)


class Forward(Operands):
    """x → y, mask."""

    @staticmethod
    def rows(job: Job, chip: ChipSpec) -> int:
        """Rows of outputs a band: all, or as many as CANN's tiling takes; 0 when none fit."""
        w, half = job.window, chip.core.ub.size // 2
        high, wide = w.out
        column = w.taps * C0 * 2
        if high * wide * column <= half and _fits(w, high, chip):
            return high
        positions = half // (column + BESIDE)
        across = (w.size[1] + w.begin[1] + w.end[1]) // w.strides[1] + 1
        rows = max(1, positions // across - 1)
        if rows * w.strides[0] + reach(w, 0, 1) - w.strides[0] >= w.size[0]:
            rows = 1
        rows = rows if _fits(w, rows, chip) else 1
        return rows if _fits(w, rows, chip) else 0

    @staticmethod
    def bands(job: Job, rows: int) -> list[Band]:
        """Runs of `rows` outputs."""
        found = spans(job.window, 0, rows)
        return [Band(s.start, s.count, s.start, s.start + s.count, s.valid) for s in found]

    def __init__(self, k: Kernel, args: KernelArgs, job: Job, rows: int) -> None:
        super().__init__(k, args, job)
        w, self._rows, self._ahead = self.w, rows, False
        lines = min(w.size[0], reach(w, 0, rows))
        self._most = -(-rows * w.out[1] // C0)  # fractals of a band
        self._l1 = k.queue("L1", lines * w.size[1] * C0 * 2, 1, Pipe.MTE2, Pipe.MTE1)
        self._columns = k.queue("UB", w.taps * self._most * FRACTAL, 1, Pipe.MTE1, Pipe.V)
        self._y = k.queue("UB", self._most * FRACTAL, 1, Pipe.V, Pipe.MTE3)
        self._bits = k.queue("UB", w.taps * self._most * C0 * 2, 1, Pipe.V, Pipe.MTE3)
        self._taken = k.alloc("UB", self._most * C0 * 2)
        self._free = k.alloc("UB", self._most * C0 * 2)
        # One block a repeat meets no bank conflict: the rate of a unary instruction.
        self._rate = k.chip.core.vector.costs["unary"].b16 or 1.0
        (kh, kw), (sh, sw), (dh, dw) = w.kernel, w.strides, w.dilations
        (top, left), (height, width) = w.begin, w.size
        self._window = effects.Window(kh, kw, sh, sw, dh, dw, top, left, height, width, w.out[1])

    def begin(self) -> Iterator[Instr]:
        """Nothing to do before the first band."""
        return iter(())

    def band(self, s: int, b: Band, following: tuple[int, Band] | None) -> Iterator[Instr]:
        """The outputs of a band of a slice; the `following` band's lines are asked for."""
        k, w = self.k, self.w
        positions = b.outputs * w.out[1]
        if not self._ahead:
            yield from self._load(s, b)
        columns = yield from self._columns_of(b, positions)
        self._ahead = following is not None
        if following is not None:
            yield from self._load(*following)
        fractals = -(-positions // C0)
        place = yield from self._y.alloc()
        y = place.region((fractals, C0, C0), F16)
        yield k.vec("dup", y, scalar=-np.inf)
        for t in range(w.taps):
            for f in range(fractals):
                yield k.vec("max", y[f], y[f], columns[f, t])
        room = yield from self._bits.alloc()
        bits = room.region((w.taps, fractals, C0), BITS)
        for t in range(w.taps):
            for f in range(fractals):
                yield k.reduce("pack_equal", packed(bits[t, f]), y[f], columns[f, t])
        yield self._columns.free()
        yield self._y.enque()
        yield self._y.deque()
        target = self.image(1)[s, b.low : b.high]
        yield k.store(target, Region.dense("UB", -1, y.offset, target.shape, F16))
        yield self._y.free()
        yield from self._first_only(bits)
        yield self._bits.enque()
        yield self._bits.deque()
        first = b.first * w.out[1]
        for t in range(w.taps):
            source = Region.dense("UB", -1, bits[t].offset, (positions,), BITS)
            yield k.store(self.mask(2)[s, t, first : first + positions], source)
        yield self._bits.free()

    def _load(self, s: int, b: Band) -> Iterator[Instr]:
        """The lines that a band sees, to L1."""
        h = spans(self.w, 0, self._rows)[b.first // self._rows]
        slot = yield from self._l1.alloc()
        lines = slot.region((1, h.valid, self.w.size[1], C0), F16)
        yield self.k.load(lines, self.image(0)[s : s + 1, h.first : h.first + h.valid])
        yield self._l1.enque()

    def _columns_of(self, b: Band, positions: int) -> Generator[Instr, None, Region]:
        """What the taps see: (fractals, taps, 16, 16)."""
        k, w = self.k, self.w
        h = spans(w, 0, self._rows)[b.first // self._rows]
        yield self._l1.deque()
        lines = self._l1.front.region((1, h.valid, w.size[1], C0), F16)
        room = yield from self._columns.alloc()
        fractals = -(-positions // C0)
        for f in range(fractals):
            dst = room.region((1, w.taps, C0, C0), F16, f * w.taps * FRACTAL)
            first, count = b.first * w.out[1] + f * C0, min(C0, positions - f * C0)
            yield k.load3d(dst, lines, self._window, first, count, 0, h.first, padding=-np.inf)
        yield self._l1.free()
        yield self._columns.enque()
        yield self._columns.deque()
        return room.region((fractals, w.taps, C0, C0), F16)

    def _first_only(self, bits: Region) -> Iterator[Instr]:
        """Clear a tap's bits where an earlier tap has the maximum; a repeat takes one block."""
        k, per = self.k, self._rate * self.k.chip.core.vector.repeat_bytes / (2 * C0)
        shape = bits.shape[1:]
        taken, free = self._taken.region(shape, BITS), self._free.region(shape, BITS)

        def step(op: str, dst: Region, *srcs: Region) -> Instr:
            return k.vec_by(op, vector_ops.get(op).fn, dst, dst, *srcs, per_repeat=per)

        yield step("not", free, bits[0])
        yield k.vec("copy", taken, bits[0])
        for t in range(1, bits.shape[0]):
            yield step("or", taken, bits[t], taken)
            yield step("and", bits[t], free, bits[t])
            yield step("not", free, taken)


def _fits(w: Window, rows: int, chip: ChipSpec) -> bool:
    """Whether L1 holds the lines, and UB the columns, maxima and bits, of `rows` outputs."""
    fractals = -(-rows * w.out[1] // C0)
    lines = min(w.size[0], reach(w, 0, rows)) * w.size[1] * C0 * 2
    ub = fractals * ((w.taps + 1) * FRACTAL + (w.taps + 2) * C0 * 2)
    return lines <= chip.core.l1.size and ub <= chip.core.ub.size
