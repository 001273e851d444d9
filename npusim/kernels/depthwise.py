"""DepthwiseConv: one filter per channel, on the vector unit, NC1HWC0.

Lanes are channels: each tap is one multiply-add of a shifted view of the input tile with the
taps' 16 weights, in fp32. Weights come in ND (C, 1, kh, kw) and are transposed in UB to
(taps, 16), then repeated four times to fill a 64-lane repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import Layout
from npusim.kernels.bands import (
    UB_SHARE,
    Span,
    fill_padding,
    inside,
    reach,
    refuse_image,
    row_cycles,
    spans,
    tap,
    window_of,
)
from npusim.kernels.grid import Share, deal
from npusim.kernels.lang import Kernel, Queue, TileKernel
from npusim.ops.window import Window
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

_F32 = np.dtype(np.float32)
#: Fused operators and their instructions, with a tensor; with a constant, plus "s".
_STEPS = {"Relu": "max", "Add": "add", "Sum": "add", "Max": "max", "Min": "min"}
_QUAD = 4  #: positions of 16 channels in one fp32 repeat


@dataclass(frozen=True)
class _Shape:
    """A launch: images, blocks of channels, window, operands."""

    n: int
    c1: int
    channels: int
    window: Window
    dtype: np.dtype
    bias: bool
    residuals: tuple[int, ...]

    @staticmethod
    def of(args: KernelArgs) -> _Shape:
        """From the launch's arguments."""
        spec, weights = args.operands[0], args.operands[1]
        n, c1 = spec.storage_shape[:2]
        window = window_of(args, weights.shape[2:])
        fused = tuple(s.operand for s in args.epilogue if s.operand is not None)
        bias = len(args.inputs) > 2 and args.inputs[2] is not None and 2 not in fused
        return _Shape(n, c1, spec.shape[1], window, spec.dtype.np, bias, fused)

    @property
    def wide(self) -> bool:
        """True when tiles are converted to fp32."""
        return self.dtype != _F32

    @property
    def tap_rows(self) -> int:
        """Taps, rounded up to what a transposing instruction takes."""
        return -(-self.window.taps // 16) * 16

    def columns(self, cols: int) -> int:
        """Output columns that are computed: whole repeats when the taps are contiguous."""
        return -(-cols // _QUAD) * _QUAD if self.window.strides[1] == 1 else cols

    def sizes(self, rows: int, cols: int) -> tuple[int, int]:
        """Elements of the input and the output tile."""
        wide = self.columns(cols)
        need = reach(self.window, 0, rows) * reach(self.window, 1, wide)
        return need * 16, rows * wide * 16

    def ub_bytes(self, batch: int, rows: int, cols: int) -> int:
        """UB that everything takes for tiles of `rows` × `cols` outputs of `batch` images."""
        size = self.dtype.itemsize
        before, after = (batch * e for e in self.sizes(rows, cols))
        tiles = 2 * size * (before + after) + 4 * after + 4 * self.wide * before
        residuals = len(self.residuals) * after * (2 * size + 4 * self.wide)
        weights = self.tap_rows * 16 * 3 * size + self.window.taps * 256 + 256 + 4 * 64
        return tiles + residuals + weights


def _fit(s: _Shape, chip: ChipSpec, parts: int, images: int) -> tuple[int, int, int] | None:
    """(batch, rows, cols) of the largest tile for a part of the rows; None when none fits."""
    budget = int(chip.core.ub.size * UB_SHARE)
    ho, wo = s.window.out
    rows, cols = -(-ho // parts), wo
    while rows > 1 and s.ub_bytes(1, rows, cols) > budget:
        rows = (rows + 1) // 2
    while cols > 1 and s.ub_bytes(1, rows, cols) > budget:
        cols = (cols + 1) // 2
    if s.ub_bytes(1, rows, cols) > chip.core.ub.size:
        return None
    batch = 1
    if rows == ho and cols == wo:
        while batch < images and s.ub_bytes(2 * batch, rows, cols) <= budget:
            batch *= 2
    return min(batch, images), rows, cols


def _tilings(s: _Shape, chip: ChipSpec) -> Iterator[Tiling]:
    cores, seen = chip.vector_cores(), set()
    for waves in (1, 2, 3, 4):
        channels = min(-(-s.c1 // waves), cores)
        images = min(s.n, cores // channels)
        for most in (1, cores):
            parts = min(s.window.out[0], max(1, cores // (channels * images)), most)
            fit = _fit(s, chip, parts, -(-s.n // images))
            if fit is None or (channels, images, parts) in seen:
                continue
            seen.add((channels, images, parts))
            batch, rows, cols = fit
            yield {
                "channels": channels,
                "images": images,
                "parts": parts,
                "batch": batch,
                "rows": rows,
                "cols": cols,
            }


def _estimate(s: _Shape, chip: ChipSpec, t: Tiling) -> float:
    blocks = t["channels"] * t["images"] * t["parts"]
    bands = -(-s.window.out[0] // t["rows"]) * -(-s.window.out[1] // t["cols"])
    tiles = -(-s.c1 // t["channels"]) * -(-s.n // (t["images"] * t["batch"]))
    tiles *= -(-bands // t["parts"])
    before, after = (t["batch"] * e for e in s.sizes(t["rows"], t["cols"]))
    costs, size = chip.core.vector.costs, s.dtype.itemsize
    row = row_cycles(chip, costs["mla"].b32 or 0.0, s.window, s.columns(t["cols"]), 4)
    vector = s.window.taps * (t["batch"] * t["rows"] * row + chip.core.vector.tail)
    vector += (before + after) / 64 * (costs["conv"].b32 or 0.0) * s.wide
    rate = chip.l2_rate / blocks
    load = chip.core.mte2.head + before * size / min(rate, chip.core.mte2.ub_rate)
    store = chip.core.mte3.head + after * size / min(rate, chip.core.mte3.rate)
    steady = tiles * max(load, vector, store)
    return steady + load + store + blocks * chip.cycles(chip.scheduler.per_block)


def _bands(s: _Shape, t: Tiling, part: int) -> list[tuple[Span, Span]]:
    """The (rows, cols) spans of one part."""
    rows = spans(s.window, 0, t["rows"])
    share = deal([len(rows)], t["parts"], part)[0]
    cols = spans(s.window, 1, t["cols"])
    return [(h, w) for h in rows[share.start : share.start + share.count] for w in cols]


def _shares(s: _Shape, t: Tiling, block: int) -> tuple[Share, Share, int]:
    """A block's channel blocks, its images, its part of the rows."""
    rest, part = divmod(block, t["parts"])
    c, i = divmod(rest, t["images"])
    return deal([s.c1], t["channels"], c)[0], deal([s.n], t["images"], i)[0], part


def _lanes(s: _Shape, c: Share) -> int:
    """Channels that exist in a run of channel blocks."""
    return min(s.channels, (c.start + c.count) * 16) - min(s.channels, c.start * 16)


def _plan(s: _Shape, args: KernelArgs, t: Tiling) -> Plan:
    size, taps = s.dtype.itemsize, s.window.taps
    totals = {0: 0, 1: 0, **dict.fromkeys(s.residuals, 0), len(args.inputs): 0}
    if s.bias:
        totals[2] = 0
    keys: list[object] = []
    for block in range(t["channels"] * t["images"] * t["parts"]):
        c, i, part = _shares(s, t, block)
        bands = _bands(s, t, part)
        lanes, slices = _lanes(s, c), c.count * i.count
        read = sum(h.valid * w.valid for h, w in bands) * slices * 16 * size
        made = sum(h.count * w.count for h, w in bands) * slices * 16 * size
        totals[0] += read
        totals[1] += lanes * taps * args.operands[1].dtype.size
        for operand in (*s.residuals, len(args.inputs)):
            totals[operand] += made
        if s.bias:
            totals[2] += lanes * args.operands[2].dtype.size
        shape = tuple((h.count, h.before, h.valid, w.valid) for h, w in bands)
        keys.append((shape, c.count, i.count, lanes))
    traffic = {o: Traffic(min(n, args.operands[o].nbytes), n) for o, n in totals.items()}
    return Plan(t, len(keys), traffic, group_blocks(keys))


class _Tiles:
    """Queues and scratch of a depthwise convolution."""

    def __init__(self, k: Kernel, s: _Shape, args: KernelArgs, t: Tiling) -> None:
        self._k, self._s, self._args = k, s, args
        size = s.dtype.itemsize
        before, after = (t["batch"] * e for e in s.sizes(t["rows"], t["cols"]))
        self._in = k.queue("UB", before * size, 2, Pipe.MTE2, Pipe.V)
        self._out = k.queue("UB", after * size, 2, Pipe.V, Pipe.MTE3)
        self._sum = k.alloc("UB", after * 4)
        self._wide = k.alloc("UB", before * 4) if s.wide else None
        self._others: dict[int, Queue] = {
            o: k.queue("UB", after * size, 2, Pipe.MTE2, Pipe.V) for o in s.residuals
        }
        self._other = k.alloc("UB", after * 4) if s.wide and s.residuals else None
        self._raw = k.queue("UB", s.tap_rows * 16 * size, 2, Pipe.MTE2, Pipe.V)
        self._turned = k.alloc("UB", s.tap_rows * 16 * size)
        self._weights = k.alloc("UB", s.window.taps * 256)
        self._bias_in = k.queue("UB", 64, 2, Pipe.MTE2, Pipe.V) if s.bias else None
        self._bias = k.alloc("UB", 256)

    def load_weights(self, c1: int) -> Iterator[Instr]:
        """Weights (and bias) of one block of channels, made ready in UB."""
        k, s = self._k, self._s
        taps, lanes = s.window.taps, _lanes(s, Share(c1, 1))
        kind = self._args.operands[1].dtype.np
        gm = Region.dense(GM, 1, 0, (s.channels, taps), kind)
        slot = yield from self._raw.alloc()
        raw = slot.region((16, s.tap_rows), kind)
        yield k.load(raw[:lanes, :taps], gm[c1 * 16 : c1 * 16 + lanes], raw)
        yield self._raw.enque()
        yield self._raw.deque()
        turned = self._turned.region((s.tap_rows, 16), kind)
        yield k.vec("transpose", turned, raw.permute(1, 0))
        yield self._raw.free()
        four = self._weights.region((taps, _QUAD, 16), _F32)
        yield k.vec("conv", four, turned[:taps].expand(1))
        if self._bias_in is not None:
            kind = self._args.operands[2].dtype.np
            slot = yield from self._bias_in.alloc()
            row = slot.region((16,), kind)
            src = Region.dense(GM, 2, 0, (s.channels,), kind)
            yield k.load(row[:lanes], src[c1 * 16 : c1 * 16 + lanes], row)
            yield self._bias_in.enque()
            yield self._bias_in.deque()
            yield k.vec("conv", self._bias.region((_QUAD, 16), _F32), row)
            yield self._bias_in.free()

    def run(self, c1: int, first: int, batch: int, h: Span, w: Span) -> Iterator[Instr]:
        """One tile: `batch` images from `first`, the outputs of spans h × w."""
        k, s = self._k, self._s
        n, images = len(self._args.inputs), slice(first, first + batch)
        x_gm = _slice(self._args, 0, c1)[images, h.first : h.first + h.valid]
        slot = yield from self._in.alloc()
        row = reach(s.window, 1, s.columns(w.count))
        x = slot.region((batch, h.need, row, 16), s.dtype)
        yield k.load(inside(x, h, w), x_gm[:, :, w.first : w.first + w.valid])
        yield self._in.enque()
        for operand, queue in self._others.items():
            slot = yield from queue.alloc()
            other = slot.region((batch, h.count, w.count, 16), s.dtype)
            yield k.load(other, _outputs(_slice(self._args, operand, c1)[images], h, w))
            yield queue.enque()
        yield self._in.deque()
        yield from fill_padding(k, x[:, :, : w.need], h, w, 0.0)
        if self._wide is not None:
            wide = self._wide.region(x.shape, _F32)
            yield k.vec("conv", wide, x)
            x = wide
        total = self._sum.region((batch, h.count, s.columns(w.count), 16), _F32)
        yield from self._accumulate(total, x)
        yield self._in.free()
        total = total[:, :, : w.count]
        for step in self._args.epilogue:
            yield from self._step(step.op_type, step.operand, dict(step.attrs), total)
        room = yield from self._out.alloc()
        y = room.region((batch, h.count, w.count, 16), s.dtype)
        yield k.vec("conv" if s.wide else "copy", y, total)
        yield self._out.enque()
        yield self._out.deque()
        yield k.store(_outputs(_slice(self._args, n, c1)[images], h, w), y)
        yield self._out.free()

    def _accumulate(self, total: Region, x: Region) -> Iterator[Instr]:
        """total = bias + Σ taps · weights."""
        k, s = self._k, self._s
        batch, rows, cols, _ = total.shape
        shape = (batch, rows, cols, 16)
        lanes = 16
        if s.window.strides[1] == 1:  # four neighbouring positions make one repeat
            shape, lanes = (batch, rows, cols // _QUAD, 64), 64
        acc = Region.dense("UB", -1, total.offset, shape, _F32)
        weights = self._weights.region((s.window.taps, 64), _F32)[:, :lanes]
        if s.bias:
            yield k.vec("copy", acc, self._bias.region((64,), _F32)[:lanes])
        for index, (i, j) in enumerate(s.window.positions()):
            view = tap(x, s.window, i, j, rows, cols)
            if lanes == 64:
                view = _quads(view)
            if index == 0 and not s.bias:
                yield k.vec("mul", acc, view, weights[index])
            else:
                yield k.vec("mla", acc, acc, view, weights[index])

    def _step(
        self, op: str, operand: int | None, attrs: dict[str, float], total: Region
    ) -> Iterator[Instr]:
        """One fused operator on the running value."""
        k = self._k
        if operand is None:
            scalar = 0.0 if op == "Relu" else attrs["const1"]
            yield k.vec(_STEPS[op] + "s", total, total, scalar=scalar)
        else:
            queue = self._others[operand]
            yield queue.deque()
            other = queue.front.region(total.shape, self._s.dtype)
            if self._other is not None:
                wide = self._other.region(total.shape, _F32)
                yield k.vec("conv", wide, other)
                other = wide
            yield k.vec(_STEPS[op], total, total, other)
            yield queue.free()


def _quads(view: Region) -> Region:
    """(batch, rows, cols, 16) of neighbouring positions as (batch, rows, cols / 4, 64)."""
    batch, rows, cols, _ = view.shape
    sb, sh, sw, sc = view.strides
    shape, strides = (batch, rows, cols // _QUAD, 64), (sb, sh, _QUAD * sw, sc)
    return Region(view.space, view.operand, view.offset, shape, strides, view.dtype)


def _slice(args: KernelArgs, index: int, c1: int) -> Region:
    """One block of channels of an image operand: (N, H, W, 16)."""
    spec = args.operands[index]
    return Region.dense(GM, index, 0, spec.storage_shape, spec.dtype.np)[:, c1]


def _outputs(y: Region, h: Span, w: Span) -> Region:
    """The outputs of two spans of (N, H, W, 16)."""
    return y[:, h.start : h.start + h.count, w.start : w.start + w.count]


@kernel("DepthwiseConv")
class DepthwiseConv(TileKernel):
    """Conv with as many groups as input and output channels."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Depthwise 2-D convolutions of images in NC1HWC0."""
        x, weights, out = args.operands[0], args.operands[1], args.outputs[0]
        if args.op_type != "Conv" or len(x.shape) != 4:
            return f"operator {args.op_type} of rank {len(x.shape)}"
        if args.get("spread"):
            return "zeros between the input's pixels (a transposed convolution)"
        if not args.get("group", 1) == x.shape[1] == out.shape[1]:
            return "not one filter per channel (the cube's grouped convolution)"
        if weights.layout is not Layout.ND or weights.dtype != x.dtype:
            return "weights must be ND, of the image's type"
        if out.dtype != x.dtype:
            return f"{out.dtype.value} from {x.dtype.value}: results are of the image's type"
        for step in args.epilogue:
            if step.op_type not in _STEPS:
                return f"epilogue {step.op_type} is not one of {', '.join(_STEPS)}"
            if step.op_type != "Relu" and step.operand is None and "const1" not in dict(step.attrs):
                return f"epilogue {step.op_type} without an operand"
            other = None if step.operand is None else args.operands[step.operand]
            if other is not None and other != out:
                return f"epilogue {step.op_type} with an operand that is not like the output"
        return refuse_image(x, chip) or refuse_image(out, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Channels × images × row parts over the cores."""
        return _tilings(_Shape.of(args), chip)

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """Cycles of the busiest block."""
        return _estimate(_Shape.of(args), chip, tiling)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Channels × images × row parts."""
        return _plan(_Shape.of(args), args, tiling)

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """The block's channel blocks; weights once each, then image by image, band by band."""
        s = _Shape.of(args)
        c, images, part = _shares(s, tiling, block)
        bands, tiles, batch = _bands(s, tiling, part), _Tiles(k, s, args, tiling), tiling["batch"]
        whole, rest = divmod(images.count, batch)
        for i in k.loop(c.count):
            c1 = c.start + i
            yield from tiles.load_weights(c1)
            for b in k.loop(whole):
                for h, w in bands:
                    yield from tiles.run(c1, images.start + b * batch, batch, h, w)
            for h, w in bands if rest else ():
                yield from tiles.run(c1, images.start + whole * batch, rest, h, w)
