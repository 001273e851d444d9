"""Convolutions on chips with FIXP: forward, and the gradient by the input, in any C0.

Implicit GEMM: M runs over the output positions of an image in fractals of 16, N over output
channels in blocks of 16, K over blocks of C0 input channels and taps. The gradient is the
convolution of dY, with stride-1 zeros between its pixels, by the weights turned round: load3d
fetches the zeros, load2d picks the forward weights' blocks backwards and transposes them.

    for n tile: [weights → L1]  for image: for m tile: for chunk of C1: bands [and weights] → L1
        for k step: load3d → L0A, load2d → L0B, mmad          then FIXP: L0C → GM

Tiling: bb, bm, bn blocks over images, positions, channels; m0, n0, k0 the L0 tile; c1 blocks of
C0 of a chunk; held: an n tile's weights stay in L1; slots of the bands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir.layout import blocks, c0_of
from npusim.kernels import fixp_cube as fc
from npusim.kernels.cube_tiling import tile_sizes
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.queues import Alloc
from npusim.ops import get_operator
from npusim.ops.window import Window as OpWindow
from npusim.program.effects import Window
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

F32 = np.dtype(np.float32)
SPLITS = 4  #: block splits whose tiles are searched


@dataclass(frozen=True)
class Job:
    """A launch; sizes in elements but for c1, of the K side, in blocks of C0."""

    batch: int
    c1: int
    height: int
    width: int
    n: int
    m: int
    window: Window
    c0: int
    dtype: np.dtype
    gradient: bool
    kind: str  #: of the products: a key of core.cube.k
    bias: bool

    @property
    def taps(self) -> int:
        """kh·kw."""
        return self.window.kh * self.window.kw

    @property
    def n1(self) -> int:
        """Output channels in blocks of 16."""
        return blocks(self.n)

    @property
    def m1(self) -> int:
        """Positions in fractals."""
        return blocks(self.m)

    @property
    def fractal(self) -> int:
        """Bytes of 16 × C0 operands."""
        return 16 * self.c0 * self.dtype.itemsize

    @property
    def ratio(self) -> int:
        """Blocks of C0 in 16 channels."""
        return 16 // self.c0

    def band(self, first: int, rows: int) -> tuple[int, int]:
        """Rows [top, bottom) of the image that output positions need."""
        w = self.window
        low = first // w.out_width * w.stride_h - w.pad_top
        high = (first + rows - 1) // w.out_width * w.stride_h - w.pad_top
        high += (w.kh - 1) * w.dilation_h
        top, bottom = max(0, -(-low // w.spread_h)), min(self.height, high // w.spread_h + 1)
        return (top, bottom) if bottom > top else (0, 1)


@lru_cache(maxsize=256)
def job_of(args: KernelArgs) -> Job:
    """The launch; inputs X, W[, bias], or dY, W."""
    x, w, out = args.operands[0], args.operands[1], args.outputs[0]
    gradient = "Backprop" in args.op_type
    kh, kw = w.shape[2:]
    c0 = c0_of(x.dtype, x.layout)
    op = get_operator(args.op_type)
    size = out.shape[2:] if gradient else x.shape[2:]
    win = OpWindow.of(tuple(size), (kh, kw), {**op.attrs, **dict(args.attrs)})
    (sh, sw), (dh, dw), (top, left) = win.strides, win.dilations, win.begin
    h, wd = x.shape[2:]
    if gradient:
        window = Window(kh, kw, 1, 1, 1, 1, kh - 1 - top, kw - 1 - left, h, wd, size[1], sh, sw)
    else:
        window = Window(kh, kw, sh, sw, dh, dw, top, left, h, wd, out.shape[3])
    bias = len(args.inputs) > 2 and args.inputs[2] is not None
    m = out.shape[2] * out.shape[3]
    return Job(
        x.shape[0], blocks(x.shape[1], c0), h, wd, out.shape[1], m, window, c0, x.dtype.np,
        gradient, fc.cube_type(args), bias,
    )  # fmt: skip


@dataclass(frozen=True)
class Share:
    """A block's images, fractals of positions, blocks of 16 channels."""

    images: range
    rows: range
    columns: range


def _cut(n: int, parts: int, i: int) -> range:
    size = blocks(n, parts)
    return range(min(n, i * size), min(n, (i + 1) * size))


def share_of(job: Job, t: Tiling, block: int) -> Share:
    """What block `block` does."""
    rest, ni = divmod(block, t["bn"])
    bi, mi = divmod(rest, t["bm"])
    return Share(_cut(job.batch, t["bb"], bi), _cut(job.m1, t["bm"], mi), _cut(job.n1, t["bn"], ni))


def _tiles(span: range, size: int) -> list[range]:
    return [range(lo, min(lo + size, span.stop)) for lo in range(span.start, span.stop, size)]


def _positions(job: Job, rows: range) -> tuple[int, int]:
    """First position and count of fractals."""
    return rows.start * 16, min(job.m, rows.stop * 16) - rows.start * 16


def _band(job: Job, rows: range) -> int:
    top, bottom = job.band(*_positions(job, rows))
    return bottom - top


def splits(batch: int, m1: int, n1: int, cores: int) -> list[tuple[int, int, int]]:
    """(bb, bm, bn): even shares first, then what needs least loading."""
    found = {}
    for bb in {blocks(batch, blocks(batch, i)) for i in range(1, min(batch, cores) + 1)}:
        for bm in range(1, min(m1, cores // bb) + 1):
            bn = min(n1, cores // bb // bm)
            nb, mc, nc = blocks(batch, bb), blocks(m1, bm), blocks(n1, bn)
            key = (bb, blocks(m1, mc), blocks(n1, nc))
            found[key] = (nb * mc * nc, nb * (mc + nc))
    best = min(v[0] for v in found.values())
    return sorted(found, key=lambda s: (round(found[s][0] / best, 1), found[s][1]))[:SPLITS]


@kernel("FixpConv2D")
class FixpConv2D(TileKernel):
    """Conv (X, W[, bias]) and Conv2DBackpropInput (dY, W) where L0C leaves through FIXP."""

    core_type = "AIC"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Types and layouts; nothing fused but the bias; whole blocks of 16 result channels."""
        if args.op_type not in ("Conv", "Conv2DBackpropInput") or args.epilogue:
            return f"{args.op_type} with {len(args.epilogue)} fused steps"
        most = 2 if args.op_type == "Conv2DBackpropInput" else 3
        if len(args.inputs) > most or args.get("group", 1) != 1:
            return "fused operands, or groups"
        out = len(args.inputs)
        if reason := fc.refuse_types(args, chip, (0, out), 1):
            return reason
        if args.outputs[0].dtype is not args.operands[0].dtype:
            return "results of another type"
        _, blocks_of_c0, _, _, c0 = args.outputs[0].storage_shape
        if blocks_of_c0 * c0 % 16:
            return f"{args.outputs[0].shape[1]} result channels: whole blocks of 16"
        return ""

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Block splits crossed with legal tiles."""
        job = job_of(args)
        for split in splits(job.batch, job.m1, job.n1, chip.cores.count):
            yield from _tilings(job, chip, split)

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """The slowest pipe of the first block, and some of the others."""
        return _estimate(job_of(args), chip, tiling)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Traffic by the loop nest."""
        job, t, out = job_of(args), tiling, len(args.inputs)
        n = t["bb"] * t["bm"] * t["bn"]
        x_total = w_total = y_total = bias = 0
        keys = []
        es = job.dtype.itemsize
        for s in (share_of(job, t, b) for b in range(n)):
            m_tiles, n_tiles = _tiles(s.rows, t["m0"]), _tiles(s.columns, t["n0"])
            bands = tuple(_band(job, m) for m in m_tiles)
            x_total += len(s.images) * len(n_tiles) * sum(bands) * job.width * job.c1 * job.c0 * es
            loads = 1 if t["held"] else len(s.images) * len(m_tiles)
            w_total += len(s.columns) * loads * _weight_bytes(job, t, args)
            valid = sum(_positions(job, m)[1] for m in m_tiles)
            y_total += len(s.images) * len(s.columns) * 16 * valid * es
            bias += _bias_range(job, s)[1] * 4
            keys.append((len(s.images), bands, valid, len(s.columns)))
        x, w = args.operands[0].nbytes, args.operands[1].nbytes
        traffic = {
            0: Traffic(min(x, x_total), x_total),
            1: Traffic(min(w, w_total), w_total),
            out: Traffic(y_total, y_total),
        }
        if job.bias:
            traffic[2] = Traffic(args.operands[2].nbytes, bias)
        return Plan(tiling, n, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """See the module's text."""
        job = job_of(args)
        return _Run(k, job, tiling, share_of(job, tiling, block)).run()


def _bias_range(job: Job, s: Share) -> tuple[int, int]:
    """First and count of the channels whose bias a block loads."""
    if not job.bias:
        return 0, 0
    first = s.columns.start * 16
    return first, min(job.n, s.columns.stop * 16) - first


def _whole(job: Job) -> int:
    """K blocks of C0 channels whose weights an n tile has: of a gradient whole blocks of 16."""
    return blocks(job.c1, job.ratio) * job.ratio if job.gradient else job.c1


def _chunks(job: Job, t: Tiling) -> list[range]:
    return _tiles(range(job.c1), t["c1"])


def _weight_bytes(job: Job, t: Tiling, args: KernelArgs) -> int:
    """Bytes of the weights of one block of 16 result channels, as they are loaded."""
    chunks = [range(job.c1)] if t["held"] else _chunks(job, t)
    if not job.gradient:
        return job.c1 * job.taps * job.fractal
    co = sum(blocks(c.stop, job.ratio) - c.start // job.ratio for c in chunks)
    return job.ratio * job.taps * co * 16 * job.c0 * job.dtype.itemsize


def _tilings(job: Job, chip: ChipSpec, split: tuple[int, int, int]) -> Iterator[Tiling]:
    bb, bm, bn = split
    mc, nc, core = blocks(job.m1, bm), blocks(job.n1, bn), chip.core
    half_a, half_b = core.l0a.size // 2 // job.fractal, core.l0b.size // 2 // job.fractal
    room = core.l1.size - (blocks(job.n1 * 64, 512) * 512 if job.bias else 0)
    for m0 in tile_sizes(mc, half_a):
        band = max(_band(job, m) for m in _tiles(range(job.m1), m0))
        if bm > 1:  # tiles of a share may begin anywhere
            band = min(job.height, band + job.window.stride_h)
        x = band * job.width * job.c0 * job.dtype.itemsize
        for n0 in tile_sizes(nc, half_b):
            if m0 * n0 * 1024 > core.l0c.size:
                continue
            w = job.taps * n0 * job.fractal
            for held in (0, 1):
                for slots in (2, 1):
                    free = room - (w * _whole(job) if held else 0)
                    c1 = min(job.c1, free // slots // (x if held else x + w))
                    c1 = c1 if c1 >= job.c1 else c1 // job.ratio * job.ratio
                    if c1 < 1:
                        continue
                    k0 = min(half_a // m0, half_b // n0, c1 * job.taps)
                    yield {
                        "bb": bb, "bm": bm, "bn": bn, "m0": m0, "n0": n0, "k0": k0, "c1": c1,
                        "held": held, "slots": slots,
                    }  # fmt: skip
                    break


def _estimate(job: Job, chip: ChipSpec, t: Tiling) -> float:
    core, s, es = chip.core, share_of(job, t, 0), job.dtype.itemsize
    m_tiles, n_tiles = _tiles(s.rows, t["m0"]), _tiles(s.columns, t["n0"])
    nb, mc, nc = len(s.images), len(s.rows), len(s.columns)
    k1, tiles = job.c1 * job.taps, nb * len(m_tiles) * len(n_tiles)
    steps = tiles * sum(blocks(len(c) * job.taps, t["k0"]) for c in _chunks(job, t))
    cube = (
        nb * core.cube.blocks(mc, nc) * k1 * job.c0 / core.cube.k[job.kind] + steps * core.cube.head
    )
    transposed = fc.TURNED if job.gradient and es == 4 else 1.0
    per = core.mte1.load3d_cycles * job.fractal / 512 * job.window.stride_w
    mte1 = nb * mc * len(n_tiles) * k1 * per + steps * (core.mte1.load3d_head + core.mte1.head)
    mte1 += nb * nc * len(m_tiles) * k1 * job.fractal / core.mte1.l0b_rate * transposed
    rate = min(core.mte2.rate, chip.l2_rate / (t["bb"] * t["bm"] * t["bn"]))
    bands = sum(_band(job, m) for m in m_tiles) * job.width * job.c0 * es * job.c1
    loads = 1 if t["held"] else nb * len(m_tiles)
    mte2 = (nb * len(n_tiles) * bands + loads * nc * k1 * job.fractal) / rate
    mte2 += tiles * len(_chunks(job, t)) * core.mte2.head
    assert core.fixp is not None
    out = nb * nc * 16 * mc * 16 * es / core.fixp.rate + tiles * core.fixp.head
    scalar = steps * (11 * core.scalar.issue + core.scalar.load3d_interval)
    pipes = [cube, mte1, mte2, scalar]
    if t["slots"] == 1:
        mte2 *= 2
    serial = out if 2 * t["m0"] * t["n0"] * 1024 > core.l0c.size else out / tiles
    return max(*pipes, mte2, out) + 0.1 * sum(pipes) + serial


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, job: Job, t: Tiling, s: Share) -> None:
        self.k, self.job, self.t, self.s = k, job, t, s
        core, es = k.chip.core, job.dtype.itemsize
        m0, n0, c1 = t["m0"], t["n0"], t["c1"]
        tall = max(_band(job, m) for m in _tiles(s.rows, m0))
        x = tall * job.width * job.c0 * es * c1
        whole = _whole(job)
        w = job.taps * n0 * job.fractal
        chunk = w * (c1 if c1 < job.c1 else whole)
        if t["held"]:
            self.panel = k.queue("L1", w * whole, 1, Pipe.MTE2, Pipe.MTE1)
            self.l1 = k.queue("L1", x, t["slots"], Pipe.MTE2, Pipe.MTE1)
        else:
            self.l1 = k.queue("L1", x, t["slots"], Pipe.MTE2, Pipe.MTE1, ("L1", chunk))
        size = t["k0"] * job.fractal
        self.l0 = k.queue("L0A", m0 * size, 2, Pipe.MTE1, Pipe.M, ("L0B", n0 * size))
        slots = 2 if 2 * m0 * n0 * 1024 <= core.l0c.size else 1
        self.l0c = k.queue("L0C", m0 * n0 * 1024, slots, Pipe.M, Pipe.FIXP)
        if job.bias:
            self.bias = k.queue("L1", len(s.columns) * 64, 1, Pipe.MTE2, Pipe.FIXP)

    def run(self) -> Iterator[Instr]:
        """All tiles of the share."""
        k, s = self.k, self.s
        m_tiles, n_tiles = _tiles(s.rows, self.t["m0"]), _tiles(s.columns, self.t["n0"])
        if self.job.bias:
            yield from self._load_bias()
        if self.t["held"]:
            for columns in n_tiles:
                slot = yield from self.panel.alloc()
                yield self._load_weights(slot, columns, range(self.job.c1))
                yield self.panel.enque()
                yield self.panel.deque()
                for image in k.loop(len(s.images)):
                    for rows in m_tiles:
                        yield from self.tile(s.images.start + image, rows, columns)
                yield self.panel.free()
            return
        for image in k.loop(len(s.images)):
            for rows in m_tiles:
                for columns in n_tiles:
                    yield from self.tile(s.images.start + image, rows, columns)

    def _load_bias(self) -> Iterator[Instr]:
        first, count = _bias_range(self.job, self.s)
        slot = yield from self.bias.alloc()
        whole = slot.region((len(self.s.columns) * 16,), F32)
        src = Region.dense(GM, 2, first * 4, (count,), F32)
        yield self.k.load(whole[:count], src, whole if count < whole.size else None)
        yield self.bias.enque()
        yield self.bias.deque()

    def tile(self, image: int, rows: range, columns: range) -> Iterator[Instr]:
        """One L0C tile, from its loads to its way out."""
        k, job = self.k, self.job
        place = yield from self.l0c.alloc()
        c = place.region((len(columns), len(rows), 16, 16), F32)
        for chunk in _chunks(job, self.t):
            slot = yield from self.l1.alloc()
            yield self._load_band(slot, image, rows, chunk)
            if not self.t["held"]:
                yield self._load_weights(self.l1.back_partner, columns, chunk)
            yield self.l1.enque()
            yield self.l1.deque()
            for lo in range(0, len(chunk) * job.taps, self.t["k0"]):
                width = min(self.t["k0"], len(chunk) * job.taps - lo)
                yield from self._step(c, rows, chunk, lo, width)
            yield self.l1.free()
        yield self.l0c.enque()
        yield self.l0c.deque()
        first, count = _positions(job, rows)
        key = ("fixp", len(columns), count)
        yield k.memo(key, lambda: self._store(c, image, first, count, columns))
        yield self.l0c.free()

    def _load_band(self, slot: Alloc, image: int, rows: range, chunk: range) -> Instr:
        job = self.job
        top, bottom = job.band(*_positions(job, rows))
        shape = (job.batch, job.c1, job.height, job.width, job.c0)
        src = Region.dense(GM, 0, 0, shape, job.dtype)[image, chunk.start : chunk.stop, top:bottom]
        return self.k.load(slot.region(src.shape, job.dtype), src)

    def _load_weights(self, slot: Alloc, columns: range, chunk: range) -> Instr:
        """Forward: (K blocks, N1, 16, C0). Gradient: (C1, taps, Co1, 16, C0), as in GM."""
        job, w = self.job, self.k.input(1)
        if not job.gradient:
            lo, hi = chunk.start * job.taps, chunk.stop * job.taps
            src = w[lo:hi, columns.start : columns.stop]
        else:
            co1 = w.shape[1]
            whole = Region.dense(
                GM, 1, 0, (w.shape[0] // job.taps, job.taps, co1, 16, job.c0), job.dtype
            )
            r = job.ratio
            co = slice(chunk.start // r, blocks(chunk.stop, r))
            src = whole[columns.start * r : columns.stop * r, :, co]
        return self.k.load(slot.region(src.shape, job.dtype), src)

    def _step(self, c: Region, rows: range, chunk: range, lo: int, width: int) -> Iterator[Instr]:
        """One k step: K blocks [lo, lo + width) of a chunk."""
        k, job, held = self.k, self.job, self.t["held"]
        n_b, m_b = c.shape[:2]
        slot = yield from self.l0.alloc()
        a = slot.region((m_b, width, 16, job.c0), job.dtype)
        b = self.l0.back_partner.region((width, n_b, 16, job.c0), job.dtype)
        source = self.panel.front if held else self.l1.front_partner
        span = range(job.c1) if held else chunk
        at = (chunk.start - span.start) * job.taps + lo
        key = (m_b, n_b, width)
        rate = fc.load3d_rate(k.chip, job.fractal, job.dtype.itemsize)
        first, count = _positions(job, rows)
        top, bottom = job.band(first, count)

        def load_a() -> Instr:
            shape = (len(chunk), bottom - top, job.width, job.c0)
            band = self.l1.front.region(shape, job.dtype)
            return k.load3d(a, band, job.window, first, count, lo, top, rate)

        yield k.memo(("load3d", *key), load_a)
        if job.gradient:
            yield from self._turned(b, source, span, at)
        else:

            def load_b() -> Instr:
                w = source.region((len(span) * job.taps, n_b, 16, job.c0), job.dtype)
                return k.load_l0(b, w[at : at + width])

            yield k.memo(("load2d", *key), load_b)
        yield self.l0.enque()
        yield self.l0.deque()
        more = chunk.start + lo > 0
        yield k.memo(("mmad", *key), lambda: fc.mmad(k, job.kind, c, a, b, more))
        yield self.l0.free()

    def _turned(self, b: Region, source: Alloc, span: range, at: int) -> Iterator[Instr]:
        """K blocks from `at` of the turned weights → L0B, each transposed."""
        k, job = self.k, self.job
        width, n_b, r, c0 = b.shape[0], b.shape[1], job.ratio, job.c0

        def load() -> Instr:
            first = span.start // r
            shape = (n_b * r, job.taps, blocks(span.stop, r) - first, 16, c0)
            w = source.region(shape, job.dtype)
            pairs = []
            for i in range(width):
                block, tap = divmod(at + i, job.taps)
                block += span.start
                co, half = block // r - first, block % r
                part = w[:, job.taps - 1 - tap, co, half * c0 : (half + 1) * c0]
                pairs.append((b[i].split(1, c0), part.split(0, r).permute(0, 1, 3, 2)))
            return k.load_l0_pairs(pairs)

        yield k.memo(("turned", n_b, width), load)
        if job.dtype.itemsize == 4:
            cycles = round(b.nbytes / k.chip.core.mte1.l0b_rate * (fc.TURNED - 1))
            yield k.memo(("turning", n_b, width), lambda: k.stall(Pipe.MTE1, cycles))

    def _store(self, c: Region, image: int, first: int, count: int, columns: range) -> Instr:
        """FIXP: the tile, in blocks of C0 channels, to GM; with the bias."""
        k, job, r = self.k, self.job, self.job.ratio
        es, n_b = job.dtype.itemsize, c.shape[0]
        local = Region(
            c.space, -1, c.offset, (n_b, c.shape[1] * 16, 16), (c.strides[0], 64, 4), F32
        )
        local = fc.by_channel_blocks(local[:, :count], job.c0)
        line = job.m * job.c0 * es
        offset = (image * job.n1 * r + columns.start * r) * line + first * job.c0 * es
        shape, strides = (n_b, r, count, job.c0), (r * line, line, job.c0 * es, es)
        operand = len(k.args.inputs)
        gm = Region(GM, operand, offset, shape, strides, job.dtype)
        biases = []
        if job.bias:
            at = columns.start - self.s.columns.start
            row = self.bias.front.region((len(self.s.columns) * 16,), F32).split(0, 16)
            row = row[at : at + n_b].expand(1).broadcast((n_b, count, 16))
            biases = [fc.by_channel_blocks(row, job.c0)]
        return k.fixpipe([(gm, local)], n_b * r, biases)
