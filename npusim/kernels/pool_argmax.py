"""MaxPoolWithArgmax and its gradient, first-generation style, on NC1HWC0.

Forward: img2col into UB, into one buffer for all taps, so that it is not hidden behind the vector
unit; per tap one maximum and one compare into the mask. Gradient: per tap a select by mask (which
does not repeat), a conversion to fp32 and an add into the strided positions that the tap came
from, 16 channels a repeat. Bands of rows of the result; rows that windows share are read again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.bands import UB_SHARE, reach, spans, window_of
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.rows import F16, F32, padded
from npusim.kernels.stage import Stage
from npusim.ops.window import Window
from npusim.program import effects
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

C0 = 16
BYTE = np.dtype(np.uint8)
BITS = np.dtype(np.uint16)
FORWARD, BACKWARD = "MaxPoolWithArgmax", "MaxPoolGradWithArgmax"


@dataclass(frozen=True)
class Job:
    """A launch: slices (n, c1), its window, its result's rows."""

    slices: int
    window: Window
    forward: bool

    @property
    def rows(self) -> int:
        """Rows of the result."""
        return self.window.out[0] if self.forward else self.window.size[0]

    def band(self, r0: int, r1: int) -> tuple[int, int]:
        """Gradient: outputs [o0, o1) whose windows touch input rows [r0, r1)."""
        w = self.window
        low = r0 + w.begin[0] - w.kernel[0] + 1
        o0 = max(0, -(-low // w.strides[0]))
        o1 = min(w.out[0], (r1 - 1 + w.begin[0]) // w.strides[0] + 1)
        return min(o0, o1), o1

    def ub_bytes(self, rows: int) -> int:
        """UB that a band of `rows` takes."""
        w = self.window
        if self.forward:
            per = w.taps * (C0 * 2 + 4) + C0 * 4 + 8
            return padded(rows * w.out[1]) * per
        outs = rows // w.strides[0] + w.kernel[0]
        width = w.size[1] + w.begin[1] + w.end[1]
        size = outs * w.out[1] * (C0 * (4 + 2 + 4) + w.taps * 4)
        return size + rows * width * C0 * 8

    def units(self, tiling: Tiling, block: int) -> tuple[int, int]:
        """(slice, band) pairs of a block, flat."""
        total = self.slices * -(-self.rows // tiling["rows"])
        u0, u1 = (total * (block + j) // tiling["blocks"] for j in (0, 1))
        return u0, u1


def _job(args: KernelArgs) -> Job:
    n, c1 = args.operands[0].storage_shape[:2]
    window = window_of(args, tuple(args.attr("kernel_shape")))
    return Job(n * c1, window, args.op_type == FORWARD)


@kernel("PoolArgmax")
class PoolArgmax(TileKernel):
    """MaxPoolWithArgmax (x → y, mask), MaxPoolGradWithArgmax (x, dy, mask → dx), fp16."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        if args.op_type not in (FORWARD, BACKWARD) or args.epilogue:
            return f"no program for {args.op_type}"
        spec = args.operands[0]
        if spec.layout is not Layout.NC1HWC0 or spec.shape[1] % C0 or not spec.nbytes:
            return "takes NC1HWC0 with whole blocks of 16 channels"
        if spec.dtype is not DType.FLOAT16:
            return f"{args.op_type} of {spec.dtype.value}"
        if chip.cores.split:
            return "img2col into UB, which split cores do not have"
        return ""

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        job = _job(args)
        room = int(chip.core.ub.size * UB_SHARE)
        for parts in range(1, job.rows + 1):
            rows = -(-job.rows // parts)
            if job.ub_bytes(rows) <= room:
                total = job.slices * -(-job.rows // rows)
                yield {"rows": rows, "blocks": min(total, chip.vector_cores())}
                if total % chip.vector_cores() == 0 or parts > 8:
                    return

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        job = _job(args)
        units = -(-job.slices * -(-job.rows // tiling["rows"]) // tiling["blocks"])
        return units * (tiling["rows"] + 1) * job.window.out[1] * job.window.taps

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        job, n = _job(args), tiling["blocks"]
        bands = [_band_cost(job, tiling, b) for b in range(-(-job.rows // tiling["rows"]))]
        if job.forward:
            x, y, mask = args.operands
            read = sum(b[1] for b in bands) * job.window.size[1] * C0 * 2 * job.slices
            bits = job.window.taps * job.window.out[0] * job.window.out[1] * 2 * job.slices
            traffic = {
                0: Traffic(min(x.nbytes, read), read),
                1: Traffic(y.nbytes, y.nbytes),
                2: Traffic(bits, bits),
            }
        else:
            _, dy, mask, dx = args.operands
            outs = sum(b[1] for b in bands) * job.window.out[1] * job.slices
            grads, bits = outs * C0 * 2, outs * job.window.taps * 2
            traffic = {
                1: Traffic(min(dy.nbytes, grads), grads),
                2: Traffic(min(mask.nbytes, bits), bits),
                3: Traffic(dx.nbytes, dx.nbytes),
            }
        keys = []
        for b in range(n):
            u0, u1 = job.units(tiling, b)
            keys.append((u0 % len(bands), u1 - u0))
        return Plan(tiling, n, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        job = _job(args)
        run = (_Forward if job.forward else _Backward)(k, args, job, tiling)
        bands = -(-job.rows // tiling["rows"])
        u0, u1 = job.units(tiling, block)
        for i in k.loop(u1 - u0) if bands == 1 else range(u1 - u0):
            s, b = divmod(u0 + i, bands)
            r0 = b * tiling["rows"]
            yield from run.band(s, r0, min(job.rows, r0 + tiling["rows"]))


def _band_cost(job: Job, tiling: Tiling, b: int) -> tuple[int, int]:
    """(rows of the result, rows read) of a band."""
    r0 = b * tiling["rows"]
    r1 = min(job.rows, r0 + tiling["rows"])
    if job.forward:
        return r1 - r0, spans(job.window, 0, tiling["rows"])[b].valid
    o0, o1 = job.band(r0, r1)
    return r1 - r0, o1 - o0


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, job: Job, tiling: Tiling) -> None:
        self.k, self.args, self.job, self.w = k, args, job, job.window
        self.tiling, self.stage = tiling, Stage(k)

    def image(self, index: int) -> Region:
        """An operand as (slices, H, W, 16)."""
        spec = self.args.operands[index]
        return Region.dense(GM, index, 0, (self.job.slices, *spec.storage_shape[2:]), F16)

    def mask(self, index: int, s: int, o0: int, o1: int) -> Region:
        """The mask of output rows [o0, o1) of a slice: (taps, positions)."""
        shape = (self.job.slices, *self.args.operands[index].shape[2:])
        whole = Region.dense(GM, index, 0, shape, BITS)
        return whole[s, :, o0 * self.w.out[1] : o1 * self.w.out[1]]


class _Forward(_Run):
    """x → y, mask. The band goes to L1, and tap by tap through img2col into UB."""

    def __init__(self, k: Kernel, args: KernelArgs, job: Job, tiling: Tiling) -> None:
        super().__init__(k, args, job, tiling)
        w = self.w
        rows = min(w.size[0], reach(w, 0, tiling["rows"]))
        self.most = padded(tiling["rows"] * w.out[1])
        self.l1 = k.queue("L1", rows * w.size[1] * C0 * 2, 2, Pipe.MTE2, Pipe.MTE1)
        self.columns = k.queue("UB", w.taps * self.most * C0 * 2, 1, Pipe.MTE1, Pipe.V)
        (kh, kw), (sh, sw), (dh, dw) = w.kernel, w.strides, w.dilations
        (top, left), (height, width) = w.begin, w.size
        self.window = effects.Window(kh, kw, sh, sw, dh, dw, top, left, height, width, w.out[1])

    def band(self, s: int, r0: int, r1: int) -> Iterator[Instr]:
        """Output rows [r0, r1) of a slice."""
        k, w, positions = self.k, self.w, (r1 - r0) * self.w.out[1]
        taps = yield from self._taps(s, r0, positions)
        y = yield from self.stage.out(1, (positions, C0), F16, self.most * C0)
        yield k.vec("copy", y, taps[0])
        for seen in taps[1:]:
            yield k.vec("max", y, y, seen)
        bits = yield from self.stage.out(2, (w.taps, positions), BITS, w.taps * self.most)
        taken = self.stage.temp("taken", (positions,), BITS, self.most)
        free = self.stage.temp("free", (positions,), BITS, self.most)
        for t, seen in enumerate(taps):
            packed = Region.dense(bits.space, -1, bits[t].offset, (positions, 2), BYTE)
            yield k.reduce("pack_equal", packed, y, seen)
            if t:
                yield k.vec("not", free, taken)
                yield k.vec("and", bits[t], bits[t], free)
                yield k.vec("or", taken, taken, bits[t])
            else:
                yield k.vec("copy", taken, bits[0])
        yield self.columns.free()
        target = self.image(1)[s, r0:r1]
        yield from self.stage.store(target, Region.dense(y.space, -1, y.offset, target.shape, F16))
        yield from self.stage.store(self.mask(2, s, r0, r1), bits)

    def _taps(self, s: int, r0: int, positions: int) -> Generator[Instr, None, list[Region]]:
        """What each tap sees of the band: (positions, 16)."""
        k, w = self.k, self.w
        h = spans(w, 0, self.tiling["rows"])[r0 // self.tiling["rows"]]
        slot = yield from self.l1.alloc()
        band = slot.region((1, h.valid, w.size[1], C0), F16)
        yield k.load(band, self.image(0)[s : s + 1, h.first : h.first + h.valid])
        yield self.l1.enque()
        yield self.l1.deque()
        room = yield from self.columns.alloc()
        found, fractals = [], padded(positions) // C0
        for t in range(w.taps):
            place = t * self.most * C0 * 2
            dst = room.region((fractals, 1, C0, C0), F16, place)
            first = r0 * w.out[1]
            yield k.load3d(dst, band, self.window, first, positions, t, h.first, padding=-np.inf)
            found.append(room.region((positions, C0), F16, place))
        yield self.l1.free()
        yield self.columns.enque()
        yield self.columns.deque()
        return found


class _Backward(_Run):
    """dy, mask → dx."""

    def band(self, s: int, r0: int, r1: int) -> Iterator[Instr]:
        """Input rows [r0, r1) of a slice."""
        k, w, wo = self.k, self.w, self.w.out[1]
        o0, o1 = self.job.band(r0, r1)
        outs = self.tiling["rows"] // w.strides[0] + w.kernel[0]
        width = w.size[1] + w.begin[1] + w.end[1]
        total = self.stage.temp(
            "total", (r1 - r0, width, C0), F32, self.tiling["rows"] * width * C0
        )
        yield k.vec("dup", total, scalar=0.0)
        if o1 > o0:
            dy = yield from self.stage.load(self.image(1)[s, o0:o1], outs * wo * C0)
            mask = self.mask(2, s, o0, o1)
            bits = yield from self.stage.load(mask, w.taps * outs * wo)
            for t, (i, j) in enumerate(w.positions()):
                yield from self._tap(total, dy, bits[t], (i, j), (r0, r1, o0, o1))
            yield self.stage.free(1)
            yield self.stage.free(2)
        out = yield from self.stage.out(
            3, (r1 - r0, w.size[1], C0), F16, self.tiling["rows"] * w.size[1] * C0
        )
        yield k.vec("conv", out, total[:, w.begin[1] : w.begin[1] + w.size[1]])
        yield from self.stage.store(self.image(3)[s, r0:r1], out)

    def _tap(
        self,
        total: Region,
        dy: Region,
        bits: Region,
        at: tuple[int, int],
        span: tuple[int, int, int, int],
    ) -> Iterator[Instr]:
        """Add what one tap held to the band."""
        k, w, wo = self.k, self.w, self.w.out[1]
        r0, r1, o0, o1 = span
        step, shift = w.strides[0], at[0] * w.dilations[0] - w.begin[0]
        a = max(o0, -(-(r0 - shift) // step))
        b = min(o1, (r1 - 1 - shift) // step + 1)
        if a >= b:
            return
        shape = (b - a, wo, C0)
        room = dy.shape[0] * wo * C0
        most = max(room, (self.tiling["rows"] // step + w.kernel[0]) * wo * C0)
        chosen = self.stage.temp("chosen", shape, F16, most)
        wide = self.stage.temp("wide", shape, F32, most)
        part = bits[(a - o0) * wo : (b - o0) * wo]
        packed = Region.dense(part.space, -1, part.offset, (b - a, wo, 2), BYTE)
        yield k.reduce("select_bits", chosen, dy[a - o0 : b - o0], packed)
        yield k.vec("conv", wide, chosen)
        sh, sw, sc = total.strides
        first = total.offset + (a * step + shift - r0) * sh + at[1] * w.dilations[1] * sw
        strides = (sh * step, sw * w.strides[1], sc)
        target = Region(total.space, -1, first, shape, strides, F32)
        yield k.vec("add", target, target, wide)
