"""Gradient of the argmax pools: select by the mask, col2img, tap by tap.

A band of dy, its rows padded to whole fractals, stays in UB with an fp32 image of what it spreads
over. Per tap the mask comes row by row (one short load each, so few outputs a row leave the band
to MTE2), then select, conversion to fp32 and col2img run over the whole band, ragged or not.
Bands share the outputs whose windows reach into both, and do their work twice. Windows of more
than two strides, and rows too wide for that, go by one row of outputs at a time; the rows of the
image that the next one adds to move to its front.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.kernels import vector_ops
from npusim.kernels.argmax_job import BITS, C0, Band, Job, Operands, packed
from npusim.kernels.lang import Kernel
from npusim.kernels.rows import F16, F32, padded
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs
from npusim.program.region import Region

#: Cycles of set_cmpmask + vsel of one repeat in a TIK loop. Source: fit, MaxPoolGradWithArgmax of
#: InceptionV3 and ResNet-50 (Huawei-Performance-Model/Ascend-910B), 14-16.
SELECT_PAIR = 15.0


class Backward(Operands):
    """x, dy, mask → dx."""

    @staticmethod
    def rows(job: Job, chip: ChipSpec) -> int:
        """Outputs a band: what keeps its fp16 image below CANN's share of UB; 0 when none fit."""
        w, shared = job.window, shared_of(job)
        size = chip.core.ub.size
        area = w.strides[0] * w.strides[1]
        limit = (size - 256) // (8 if area == 1 else 6 if area < 4 else 4)
        best = 0
        one = shared and w.out[0] > 1 and _reach(job, 0) > 2 * w.strides[0]
        for n in range(1, 2 if one else w.out[0] + 1):
            high, wide = image_of(job, n)
            dy = n * padded(w.out[1], C0)
            held = high * wide * C0 * 6 + dy * (C0 * 8 + 4) + 256
            if high * wide * C0 * 2 >= limit or held > size:
                break
            if n > shared or n in (1, w.out[0]):
                best = n
        return best

    @staticmethod
    def bands(job: Job, rows: int) -> list[Band]:
        """Runs of `rows` outputs, the shared ones at the beginning of all but the first."""
        w, shared = job.window, shared_of(job)
        top, bottom = w.begin[0], w.begin[0] + w.size[0]
        if rows <= shared:  # one at a time
            shared = 0
        found, first = [], 0
        while True:
            count = min(rows, w.out[0] - first)
            last = first + count == w.out[0]
            low = (first + shared) * w.strides[0] if first else top
            high = bottom if last else (first + count) * w.strides[0]
            low, high = (min(max(n, top), bottom) - top for n in (low, high))
            found.append(Band(first, count, low, max(low, high), count))
            if last:
                return found
            first += rows - shared

    def __init__(self, k: Kernel, args: KernelArgs, job: Job, rows: int) -> None:
        super().__init__(k, args, job)
        wide = padded(self.w.out[1], C0)
        self._rows, self._wide = rows, wide
        self._high, self._across = image_of(job, rows)
        dy, image = rows * wide * C0, self._high * self._across * C0
        self._dy = k.queue("UB", dy * 2, 1, Pipe.MTE2, Pipe.V)
        self._bits = k.queue("UB", rows * wide * 2, 2, Pipe.MTE2, Pipe.V)
        self._out = k.queue("UB", image * 2, 1, Pipe.V, Pipe.MTE3)
        self._cleared = k.flag_id()
        self._chosen = k.alloc("UB", dy * 2).region((rows, wide, C0), F16)
        self._exact = k.alloc("UB", dy * 4).region((rows, wide, C0), F32)
        shape = (self._high, self._across, C0)
        self._total = k.alloc("UB", image * 4).region(shape, F32)

    def begin(self) -> Iterator[Instr]:
        """Zeros behind the ends of dy's rows, which stay there."""
        slot = self._dy.slots[0]
        yield from self._clear(slot.region((self._rows, self._wide, C0), F16))

    def band(self, s: int, b: Band, following: tuple[int, Band] | None) -> Iterator[Instr]:
        """The rows of dx that belong to a band of a slice."""
        k, w = self.k, self.w
        kept = self._high - w.strides[0] if b.first and self._rows <= shared_of(self.job) else 0
        if kept > 0:
            yield k.vec("copy", self._total[:kept], self._total[w.strides[0] :])
        yield k.vec("dup", self._total[max(0, kept) :], scalar=0.0)
        slot = yield from self._dy.alloc()
        dy = slot.region((self._rows, self._wide, C0), F16)
        if b.outputs < self._rows:
            yield from self._clear(dy)
        yield k.load(dy[: b.outputs, : w.out[1]], self.image(1)[s, b.first : b.first + b.outputs])
        yield self._dy.enque()
        yield self._dy.deque()
        for t, at in enumerate(w.positions()):
            yield from self._tap(s, b, dy, t, (at[0], at[1]))
        yield self._dy.free()
        room = yield from self._out.alloc()
        image = room.region(self._total.shape, F16)
        yield k.vec("conv", image, self._total)
        yield self._out.enque()
        yield self._out.deque()
        if b.high > b.low:
            row, left = b.low + w.begin[0] - b.first * w.strides[0], w.begin[1]
            source = image[row : row + b.high - b.low, left : left + w.size[1]]
            yield k.store(self.image(3)[s, b.low : b.high], source)
        yield self._out.free()

    def _clear(self, dy: Region) -> Iterator[Instr]:
        """Zeros where there is no dy, before MTE2 fills the rest."""
        yield self.k.vec("dup", dy, scalar=0.0)
        yield self.k.set_flag(Pipe.V, Pipe.MTE2, self._cleared)
        yield self.k.wait_flag(Pipe.V, Pipe.MTE2, self._cleared)

    def _tap(self, s: int, b: Band, dy: Region, t: int, at: tuple[int, int]) -> Iterator[Instr]:
        """Add what one tap held to the band's image."""
        k, w, mask = self.k, self.w, self.mask(2)
        slot = yield from self._bits.alloc()
        bits = slot.region((self._rows, self._wide), BITS)
        for r in range(b.outputs):
            first = (b.first + r) * w.out[1]
            yield k.load(bits[r], mask[s, t, first : first + self._wide])
        yield self._bits.enque()
        yield self._bits.deque()
        select = vector_ops.get("select_bits").fn
        chosen, exact = self._chosen, self._exact
        yield k.vec_by("select_bits", select, dy, chosen, dy, packed(bits), per_repeat=SELECT_PAIR)
        yield self._bits.free()
        yield k.vec("conv", exact, chosen)
        sh, sw, sc = self._total.strides
        first = at[0] * w.dilations[0] * sh + at[1] * w.dilations[1] * sw
        target = Region(
            "UB",
            -1,
            self._total.offset + first,
            exact.shape,
            (sh * w.strides[0], sw * w.strides[1], sc),
            F32,
        )
        # col2img: a read, an add and a write of 16 positions each.
        yield k.vec_by("add", np.add, exact, target, target, exact)


def _reach(job: Job, axis: int) -> int:
    """Input elements that a window covers."""
    return (job.window.kernel[axis] - 1) * job.window.dilations[axis] + 1


def shared_of(job: Job) -> int:
    """Outputs of a band whose windows reach into the next band's rows."""
    return (_reach(job, 0) - 1) // job.window.strides[0]


def image_of(job: Job, rows: int) -> tuple[int, int]:
    """Rows and columns that `rows` outputs, padded to fractals, spread over, padding included."""
    w = job.window
    step = w.strides[0]
    past = w.begin[0] + w.size[0] - (w.out[0] - 1) * step - max(step, _reach(job, 0))
    high = (rows - 1) * step + max(step, _reach(job, 0)) + max(0, past)
    wide = (padded(w.out[1], C0) - 1) * w.strides[1] + _reach(job, 1)
    return high, max(wide, w.begin[1] + w.size[1])
