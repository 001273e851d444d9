"""MaxPool of volumes (NDC1HWC0) as CANN's static schedule (pooling3d_schedule) runs it.

A tile of outputs of one (n, c1) takes as many windows as fit half of UB, along W first, then H,
then D. Its input, padding included, folds along W, then along H, then along D. Nothing is
double-buffered: the next tile loads once the pass along W is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from math import prod

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels import vector_ops
from npusim.kernels.bands import Span, reach, spans, window_of
from npusim.kernels.grid import deal
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.rows import F16
from npusim.ops.window import Window
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

C0 = 16
AXES = ("D", "H", "W")
#: Cycles a repeat of a pass over rows apart in UB. Source: fit, MaxPool3D on the Ascend 310
#: (Ascend/workload_analysis); between 1.15 without a bank conflict and 2.1 with one.
PASS = 1.3


@dataclass(frozen=True)
class Job:
    """A launch: images, blocks of channels, window."""

    batch: int
    blocks: int
    window: Window

    @staticmethod
    def of(args: KernelArgs) -> Job:
        """From the launch's arguments."""
        n, _, c1 = args.operands[0].storage_shape[:3]
        return Job(n, c1, window_of(args, tuple(args.attr("kernel_shape"))))

    @property
    def slices(self) -> int:
        """(n, c1) pairs."""
        return self.batch * self.blocks

    def tiles(self, tiling: Tiling, axis: int) -> list[Span]:
        """Runs of outputs along an axis."""
        return spans(self.window, axis, tiling[AXES[axis]])


def _ub_bytes(w: Window, outputs: Sequence[int]) -> int:
    """UB of a tile: its input, the three folds."""
    d, h, across = (reach(w, a, n) for a, n in enumerate(outputs))
    folds = d * h * outputs[2] + d * outputs[1] * outputs[2] + prod(outputs)
    return (d * h * across + folds) * C0 * 2


@kernel("Pool3D")
class Pool3D(TileKernel):
    """MaxPool over three spatial dimensions, fp16."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        if args.op_type != "MaxPool" or len(args.outputs) > 1:
            return f"no program for {args.op_type} with {len(args.outputs)} outputs"
        spec = args.operands[0]
        if spec.layout is not Layout.NDC1HWC0 or spec.dtype is not DType.FLOAT16:
            return f"takes float16 in NDC1HWC0, not {spec.dtype.value} in {spec.layout.value}"
        return ""

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Windows that fit half of UB, W first; `D`, `H`, `W`: outputs a tile."""
        job = Job.of(args)
        w, size = job.window, chip.core.ub.size
        kd, kh, _ = w.kernel
        steps = prod(max(reach(w, a, 1), w.strides[a]) for a in range(3))
        left = size // 2 // ((steps + kd * kh + kd + 1) * C0 * 2)
        tile = [1, 1, 1]
        for axis in (2, 1, 0):
            tile[axis] = max(1, min(w.out[axis], left))
            left = left // tile[axis] if tile[axis] == w.out[axis] else 1
        while _ub_bytes(w, tile) > size and max(tile) > 1:
            wide = max(range(3), key=lambda a: tile[a])
            tile[wide] = -(-tile[wide] // 2)
        if _ub_bytes(w, tile) <= size:
            blocks = min(job.slices, chip.vector_cores())
            yield {"blocks": blocks} | dict(zip(AXES, tile, strict=True))

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling; a figure for comparison with other kernels."""
        job = Job.of(args)
        return job.slices * prod(job.window.out) * job.window.taps / 4 / tiling["blocks"]

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        job, blocks = Job.of(args), tiling["blocks"]
        x, y = args.operands[0], args.operands[len(args.inputs)]
        parts = [job.tiles(tiling, a) for a in range(3)]
        read = prod(sum(s.valid for s in p) for p in parts) * C0 * 2 * job.slices
        seen = [len({n for s in p for n in range(s.first, s.first + s.valid)}) for p in parts]
        unique = min(x.nbytes, prod(seen) * C0 * 2 * job.slices)
        traffic = {0: Traffic(unique, read), len(args.inputs): Traffic(y.nbytes, y.nbytes)}
        keys = [deal([job.slices], blocks, b)[0].count for b in range(blocks)]
        return Plan(tiling, blocks, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        job = Job.of(args)
        run = _Run(k, args, job, tiling)
        share = deal([job.slices], tiling["blocks"], block)[0]
        depth, high, wide = (job.tiles(tiling, a) for a in range(3))
        for i in k.loop(share.count):
            for deep in _alike(depth):
                for j in k.loop(len(deep)):
                    for lines in _alike(high):
                        for m in k.loop(len(lines)):
                            for w in wide:
                                yield from run.tile(share.start + i, (deep[j], lines[m], w))


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, job: Job, tiling: Tiling) -> None:
        self.k, self.job, self.w = k, job, job.window
        most = [tiling[a] for a in AXES]
        need = [reach(self.w, a, n) for a, n in enumerate(most)]
        d, c1 = args.operands[0].storage_shape[1:3]
        self._x = self._volume(0, d, c1, self.w.size[1:])
        self._y = self._volume(len(args.inputs), self.w.out[0], c1, self.w.out[1:])
        self._in = k.queue("UB", prod(need) * C0 * 2, 1, Pipe.MTE2, Pipe.V)
        self._out = k.queue("UB", prod(most) * C0 * 2, 1, Pipe.V, Pipe.MTE3)
        self._rows = k.alloc("UB", need[0] * need[1] * most[2] * C0 * 2)
        self._planes = k.alloc("UB", need[0] * most[1] * most[2] * C0 * 2)
        self._rate = PASS
        self._lanes = k.chip.core.vector.repeat_bytes // 2

    def _volume(self, index: int, d: int, c1: int, plane: tuple[int, ...]) -> Region:
        """An operand as (N, D, C1, H, W, 16)."""
        return Region.dense(GM, index, 0, (self.job.batch, d, c1, *plane, C0), F16)

    def tile(self, s: int, at: tuple[Span, Span, Span]) -> Iterator[Instr]:
        """The outputs of spans d × h × w of a slice."""
        k, (d, h, w) = self.k, at
        n, c1 = divmod(s, self.job.blocks)
        slot = yield from self._in.alloc()
        x = slot.region((d.need, h.need, w.need, C0), F16)
        inner = x[d.before : d.before + d.valid, h.before : h.before + h.valid]
        source = self._x[n, d.first : d.first + d.valid, c1, h.first : h.first + h.valid]
        source = source[:, :, w.first : w.first + w.valid]
        yield k.load(inner[:, :, w.before : w.before + w.valid], source)
        yield self._in.enque()
        yield self._in.deque()
        yield from self._pad(x, at)
        rows = self._rows.region((d.need, h.need, w.count, C0), F16)
        yield from self._fold(rows, x, 2)
        yield self._in.free()
        planes = self._planes.region((d.need, h.count, w.count, C0), F16)
        yield from self._fold(planes, rows, 1)
        place = yield from self._out.alloc()
        out = place.region((d.count, h.count, w.count, C0), F16)
        yield from self._deep(out, planes)
        yield self._out.enque()
        yield self._out.deque()
        target = self._y[n, d.start : d.start + d.count, c1, h.start : h.start + h.count]
        yield k.store(target[:, :, w.start : w.start + w.count], out)
        yield self._out.free()

    def _pad(self, x: Region, at: tuple[Span, Span, Span]) -> Iterator[Instr]:
        """Write the padding of a tile."""
        for axis, span in enumerate(at):
            for low, n in ((0, span.before), (span.before + span.valid, span.after)):
                part = [slice(None)] * 3
                part[axis] = slice(low, low + n)
                if n:
                    yield self.k.vec("dup", x[tuple(part)], scalar=-np.inf)

    def _fold(self, dst: Region, x: Region, axis: int) -> Iterator[Instr]:
        """dst (d, h, w, 16) = the maxima along H (1) or W (2), a pass a tap."""
        w, (deep, high, wide, _) = self.w, dst.shape
        sd, sh, sw, sc = x.strides
        step = (sh, sw)[axis - 1]
        strides = (sh * w.strides[1], sw, sc) if axis == 1 else (sh, sw * w.strides[2], sc)
        lanes = wide * C0
        for tap, i in product(range(w.kernel[axis]), range(deep)):
            first = x.offset + i * sd + tap * w.dilations[axis] * step
            to, seen = dst[i], Region("UB", -1, first, dst.shape[1:], strides, F16)
            if axis == 1 and w.strides[1] == 1:  # the rows lie one after the other
                yield self._step(tap, to, seen, _apart(to, 1, high * lanes))
            elif lanes <= self._lanes or lanes % self._lanes == 0:
                yield self._step(tap, to, seen, _apart(to, high, lanes))
            else:  # rows of whole repeats and a tail: one by one
                for r in range(high):
                    yield self._step(tap, to[r], seen[r], _apart(to, 1, lanes))

    def _deep(self, dst: Region, planes: Region) -> Iterator[Instr]:
        """dst (d, h, w, 16) = the maxima along D."""
        w = self.w
        for tap, i in product(range(w.kernel[0]), range(dst.shape[0])):
            seen = planes[i * w.strides[0] + tap * w.dilations[0]]
            yield self._step(tap, dst[i], seen, _apart(dst, 1, dst[i].size))

    def _step(self, tap: int, dst: Region, seen: Region, walked: Region) -> Instr:
        """One pass: the first tap is copied, the others compared."""
        if tap == 0:
            fn = vector_ops.get("copy").fn
            return self.k.vec_by("copy", fn, walked, dst, seen, per_repeat=self._rate)
        fn = vector_ops.get("max").fn
        return self.k.vec_by("max", fn, walked, dst, dst, seen, per_repeat=self._rate)


def _alike(runs: list[Span]) -> list[list[Span]]:
    """Neighbours that cost the same, together."""
    return [list(g) for _, g in groupby(runs, lambda s: (s.count, s.before, s.valid))]


def _apart(like: Region, rows: int, lanes: int) -> Region:
    """What the vector unit walks: rows of so many lanes, each begun with a new repeat."""
    return Region("UB", -1, like.offset, (rows, lanes), (lanes * 2 + 32, 2), F16)
