"""MaxPoolWithArgmaxV1 and MaxPoolGradWithArgmaxV1: the argmax pools of cores without load3d.

After CANN's max_pool_with_argmaxv1.py and max_pool_grad_with_argmax_*_v1.py where
`is_support_load3dv1` is false. img2col is copies on the vector unit, one an output position and row
of the window, each with addresses that the scalar unit works out; maxima and bits follow as in
`argmax_forward`. The gradient takes one tap after the other: masks row by row, select, and an add
a row of outputs straight into the image of dx. Nothing is double-buffered.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import Layout
from npusim.kernels import vector_ops
from npusim.kernels.argmax_backward import Backward, image_of, shared_of
from npusim.kernels.argmax_job import BITS, C0, OP_TYPES, Band, Job, Operands, packed
from npusim.kernels.bands import Span, fill_padding, inside, reach, spans
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.rows import padded
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import Region

#: Cycles that a copied position waits for its addresses. Source: fit, MaxPoolWithArgmaxV1 on the
#: 910B2 (Ascend/msinsight, AlexNet): 46 cycles a copy, of which the vector unit is busy 24.
ADDRESS = 24.0
#: Cycles of set_cmpmask + vsel of one repeat. Source: fit, MaxPoolGradWithArgmaxV1, as above.
SELECT_PAIR = 16.0


@kernel("PoolArgmaxV1")
class PoolArgmaxV1(TileKernel):
    """MaxPoolWithArgmax (x → y, mask) and its gradient (x, dy, mask → dx), fp16 or fp32."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        if args.op_type not in OP_TYPES or args.epilogue:
            return f"no program for {args.op_type}"
        spec = args.operands[0]
        if spec.layout is not Layout.NC1HWC0 or spec.shape[1] % C0 or not spec.nbytes:
            return "takes NC1HWC0 with whole blocks of 16 channels"
        if spec.dtype.value not in ("float16", "float32"):
            return f"{args.op_type} of {spec.dtype.value}"
        return "" if chip.cores.split else "cores with img2col into UB have another kernel"

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """`rows` of outputs a band, as many as fit; more blocks than slices share out bands."""
        job, size = Job.of(args), args.operands[0].dtype.size
        parts = max(1, chip.vector_cores() // job.slices)
        shared = 0 if job.forward else shared_of(job)
        most = min(job.window.out[0], -(-(job.window.out[0] - shared) // parts) + shared)
        fits = _fits_forward if job.forward else _fits_backward
        rows = max((n for n in range(1, most + 1) if fits(job, n, size, chip)), default=0)
        if rows <= shared and rows < job.window.out[0]:
            return
        bands = len(_bands(job, rows))
        units = job.slices * (bands if parts > 1 else 1)
        per = -(-units // chip.vector_cores())
        loose = int(parts > 1)
        yield {"rows": rows, "bands": bands, "loose": loose, "per": per, "blocks": -(-units // per)}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling; a figure for comparison with other kernels."""
        job = Job.of(args)
        return 100.0 * job.slices * job.window.out[0] * job.window.out[1] / tiling["blocks"]

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        job, size = Job.of(args), args.operands[0].dtype.size
        bands, w = _bands(job, tiling["rows"]), job.window
        loads = sum(b.loaded for b in bands) * job.slices * C0 * size
        rows = sum(b.outputs for b in bands) * job.slices
        if job.forward:
            x, y, _ = args.operands
            bits = rows * w.out[1] * w.taps * 2
            read = loads * spans(w, 1, w.out[1])[0].valid
            traffic = {0: Traffic(min(x.nbytes, read), read), 1: Traffic(y.nbytes, y.nbytes)}
            traffic[2] = Traffic(bits, bits)
        else:
            _, dy, mask, dx = args.operands
            read, bits = loads * w.out[1], rows * padded(w.out[1], C0) * w.taps * 2
            traffic = {1: Traffic(min(dy.nbytes, read), read), 3: Traffic(dx.nbytes, dx.nbytes)}
            traffic[2] = Traffic(min(mask.nbytes, bits), bits)
        units = [_units(job, tiling, b) for b in range(tiling["blocks"])]
        phase = len(bands) if tiling["loose"] else 1
        keys = [(u.start % phase, len(u)) for u in units]
        return Plan(tiling, tiling["blocks"], traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        job = Job.of(args)
        run = (_Forward if job.forward else _Backward)(k, args, job, tiling["rows"])
        bands, units = _bands(job, tiling["rows"]), _units(job, tiling, block)
        yield from run.begin()
        if tiling["loose"]:
            for u in units:
                yield from run.band(u // len(bands), bands[u % len(bands)])
            return
        for i in k.loop(len(units)):
            for b in bands:
                yield from run.band(units[i], b)


def _bands(job: Job, rows: int) -> list[Band]:
    """Bands of a slice."""
    if not job.forward:
        return Backward.bands(job, rows)
    found = spans(job.window, 0, rows)
    return [Band(s.start, s.count, s.start, s.start + s.count, s.valid) for s in found]


def _units(job: Job, tiling: Tiling, block: int) -> range:
    """A block's slices, or its (slice, band) pairs."""
    total = job.slices * (tiling["bands"] if tiling["loose"] else 1)
    per = tiling["per"]
    return range(min(block * per, total), min((block + 1) * per, total))


def _fits_forward(job: Job, rows: int, size: int, chip: ChipSpec) -> bool:
    """Whether UB holds the lines, columns, maxima and bits of a band."""
    w = job.window
    lines = reach(w, 0, rows) * reach(w, 1, w.out[1])
    fractals = -(-rows * w.out[1] // C0)
    held = lines * C0 * size + fractals * C0 * ((w.taps + 1) * C0 * size + (w.taps + 2) * 2)
    return held <= chip.core.ub.size


def _fits_backward(job: Job, rows: int, size: int, chip: ChipSpec) -> bool:
    """Whether UB holds dy, what is selected, a tap's bits, and the image of dx, of a band."""
    high, wide = image_of(job, rows)
    dy = rows * padded(job.window.out[1], C0)
    return (high * wide + 2 * dy) * C0 * size + dy * 2 <= chip.core.ub.size


class _Forward(Operands):
    """x → y, mask."""

    def __init__(self, k: Kernel, args: KernelArgs, job: Job, rows: int) -> None:
        super().__init__(k, args, job)
        w, self._rows = self.w, rows
        size = self.kind.itemsize
        self._across: Span = spans(w, 1, w.out[1])[0]
        self._most = -(-rows * w.out[1] // C0)
        block = self._most * C0 * C0 * size
        lines = reach(w, 0, rows) * reach(w, 1, w.out[1]) * C0 * size
        self._x = k.queue("UB", lines, 1, Pipe.MTE2, Pipe.V)
        self._y = k.queue("UB", block, 1, Pipe.V, Pipe.MTE3)
        self._bits = k.queue("UB", w.taps * self._most * C0 * 2, 1, Pipe.V, Pipe.MTE3)
        self._columns = k.alloc("UB", w.taps * block)
        self._taken = k.alloc("UB", self._most * C0 * 2)
        self._free = k.alloc("UB", self._most * C0 * 2)

    def begin(self) -> Iterator[Instr]:
        """Nothing to do before the first band."""
        return iter(())

    def band(self, s: int, b: Band) -> Iterator[Instr]:
        """The outputs of a band of a slice."""
        k, w = self.k, self.w
        positions = b.outputs * w.out[1]
        fractals = -(-positions // C0)
        columns = self._columns.region((fractals, w.taps, C0, C0), self.kind)
        yield from self._gather(s, b, columns, positions)
        place = yield from self._y.alloc()
        y = place.region((fractals, C0, C0), self.kind)
        yield k.vec("dup", y, scalar=-np.inf)
        for t in range(w.taps):
            for f in range(fractals):
                yield k.vec("max", y[f], y[f], columns[f, t])
        room = yield from self._bits.alloc()
        bits = room.region((w.taps, fractals, C0), BITS)
        for t in range(w.taps):
            for f in range(fractals):
                yield k.reduce("pack_equal", packed(bits[t, f]), y[f], columns[f, t])
        yield self._y.enque()
        yield self._y.deque()
        target = self.image(1)[s, b.low : b.high]
        yield k.store(target, Region.dense("UB", -1, y.offset, target.shape, self.kind))
        yield self._y.free()
        yield from self._first_only(bits)
        yield self._bits.enque()
        yield self._bits.deque()
        first = b.first * w.out[1]
        for t in range(w.taps):
            source = Region.dense("UB", -1, bits[t].offset, (positions,), BITS)
            yield k.store(self.mask(2)[s, t, first : first + positions], source)
        yield self._bits.free()

    def _gather(self, s: int, b: Band, columns: Region, positions: int) -> Iterator[Instr]:
        """The columns of a band: a copy per position and row of the window."""
        k, w = self.k, self.w
        h, across = spans(w, 0, self._rows)[b.first // self._rows], self._across
        slot = yield from self._x.alloc()
        x = slot.region((1, h.need, across.need, C0), self.kind)
        source = self.image(0)[s : s + 1, h.first : h.first + h.valid]
        source = source[:, :, across.first : across.first + across.valid]
        for r in range(h.valid):  # one command a row
            yield k.load(inside(x, h, across)[:, r : r + 1], source[:, r : r + 1])
        yield self._x.enque()
        yield self._x.deque()
        yield from fill_padding(k, x, h, across, -np.inf)
        (kh, kw), (sh, sw), (dh, dw) = w.kernel, w.strides, w.dilations
        _, line, pixel, lane = x.strides
        copy = vector_ops.get("copy").fn
        for p in range(positions):
            row, column = divmod(p, w.out[1])
            f, at = divmod(p, C0)
            for i in range(kh):
                first = x.offset + (row * sh + i * dh) * line + column * sw * pixel
                seen = Region("UB", -1, first, (kw, C0), (dw * pixel, lane), self.kind)
                dst = columns[f, i * kw : (i + 1) * kw, at]
                walked = Region.dense("UB", -1, first, (kw * C0,), self.kind)
                yield k.vec_by("copy", copy, walked, dst, seen, per_repeat=ADDRESS)
        yield self._x.free()

    def _first_only(self, bits: Region) -> Iterator[Instr]:
        """Clear a tap's bits where an earlier tap has the maximum; a repeat takes one block."""
        k, lanes = self.k, self.k.chip.core.vector.repeat_bytes // 2
        per = (k.chip.core.vector.costs["unary"].b16 or 1.0) * lanes / C0
        taken, free = (a.region(bits.shape[1:], BITS) for a in (self._taken, self._free))

        def step(op: str, dst: Region, *srcs: Region) -> Instr:
            return k.vec_by(op, vector_ops.get(op).fn, dst, dst, *srcs, per_repeat=per)

        yield step("not", free, bits[0])
        yield k.vec("copy", taken, bits[0])
        for t in range(1, bits.shape[0]):
            yield step("or", taken, bits[t], taken)
            yield step("and", bits[t], free, bits[t])
            yield step("not", free, taken)


class _Backward(Operands):
    """x, dy, mask → dx."""

    def __init__(self, k: Kernel, args: KernelArgs, job: Job, rows: int) -> None:
        super().__init__(k, args, job)
        wide, size = padded(self.w.out[1], C0), self.kind.itemsize
        self._shape = (rows, wide, C0)
        high, across = image_of(job, rows)
        self._image = (high, across, C0)
        self._dy = k.queue("UB", rows * wide * C0 * size, 1, Pipe.MTE2, Pipe.V)
        self._bits = k.queue("UB", rows * wide * 2, 1, Pipe.MTE2, Pipe.V)
        self._out = k.queue("UB", high * across * C0 * size, 1, Pipe.V, Pipe.MTE3)
        self._chosen = k.alloc("UB", rows * wide * C0 * size).region(self._shape, self.kind)
        self._cleared = k.flag_id()

    def begin(self) -> Iterator[Instr]:
        """Zeros behind the ends of dy's rows, which stay there."""
        yield from self._clear(self._dy.slots[0].region(self._shape, self.kind))

    def _clear(self, dy: Region) -> Iterator[Instr]:
        """Zeros where there is no dy, before MTE2 fills the rest."""
        yield self.k.vec("dup", dy, scalar=0.0)
        yield self.k.set_flag(Pipe.V, Pipe.MTE2, self._cleared)
        yield self.k.wait_flag(Pipe.V, Pipe.MTE2, self._cleared)

    def band(self, s: int, b: Band) -> Iterator[Instr]:
        """The rows of dx that belong to a band of a slice."""
        k, w = self.k, self.w
        room = yield from self._out.alloc()
        image = room.region(self._image, self.kind)
        yield k.vec("dup", image, scalar=0.0)
        slot = yield from self._dy.alloc()
        dy = slot.region(self._shape, self.kind)
        if b.outputs < self._shape[0]:
            yield from self._clear(dy)
        yield k.load(dy[: b.outputs, : w.out[1]], self.image(1)[s, b.first : b.first + b.outputs])
        yield self._dy.enque()
        yield self._dy.deque()
        for t, at in enumerate(w.positions()):
            yield from self._tap(s, b, (dy, image), t, (at[0], at[1]))
        yield self._dy.free()
        yield self._out.enque()
        yield self._out.deque()
        if b.high > b.low:
            row, left = b.low + w.begin[0] - b.first * w.strides[0], w.begin[1]
            source = image[row : row + b.high - b.low, left : left + w.size[1]]
            yield k.store(self.image(3)[s, b.low : b.high], source)
        yield self._out.free()

    def _tap(
        self, s: int, b: Band, tiles: tuple[Region, Region], t: int, at: tuple[int, int]
    ) -> Iterator[Instr]:
        """Add what one tap held to the band's image, a row of outputs an instruction."""
        k, w, (dy, image) = self.k, self.w, tiles
        slot = yield from self._bits.alloc()
        bits = slot.region(self._shape[:2], BITS)
        for r in range(b.outputs):
            first = (b.first + r) * w.out[1]
            yield k.load(bits[r], self.mask(2)[s, t, first : first + self._shape[1]])
        yield self._bits.enque()
        yield self._bits.deque()
        select, chosen = vector_ops.get("select_bits").fn, self._chosen
        yield k.vec_by("select_bits", select, dy, chosen, dy, packed(bits), per_repeat=SELECT_PAIR)
        yield self._bits.free()
        sh, sw, sc = image.strides
        for r in range(b.outputs):
            line = r * w.strides[0] + at[0] * w.dilations[0]
            first = image.offset + line * sh + at[1] * w.dilations[1] * sw
            strides = (sw * w.strides[1], sc)
            target = Region("UB", -1, first, chosen.shape[1:], strides, self.kind)
            yield k.vec_by("add", np.add, chosen[r], target, target, chosen[r])
