"""Conv2DBackpropFilter on chips with FIXP, in any C0, fp32 results.

dW [Co, C1·kh·kw·C0] = dYᵀ · img2col(X), summed over images and positions. load2d transposes dY
on the way to L0A, load3d turns X's windows by a quarter on the way to L0B. Images are split into
as many equal parts as go into the block count; the blocks of a part share rows or columns of dW.
Where there are several parts FIXP adds to GM atomically, which is slow: every block of a part
writes its whole share of dW.

Tiling: bb, bm, bn blocks over images, Co1, columns; m0, n0 the L0 tile in blocks of 16; k0 steps
of C0 positions; rows of results in a chunk; dy: dY's chunk of all Co blocks of the share stays in
L1 for all n tiles (0: it is loaded anew for every tile).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType
from npusim.ir.layout import blocks, c0_of
from npusim.kernels import fixp_cube as fc
from npusim.kernels.cube_tiling import tile_sizes
from npusim.kernels.lang import Kernel, TileKernel
from npusim.ops import get_operator
from npusim.ops.window import Window as OpWindow
from npusim.program import effects, isa
from npusim.program.access import Access
from npusim.program.effects import Window
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

F32 = np.dtype(np.float32)
#: Bytes per cycle and core of FIXP's atomic fp32 add, with 24 cores adding. From its busy time in
#: two gradients on the 910B2: 23 GB/s a core, eight blocks adding to every element.
ATOMIC_RATE = 12.6


@dataclass(frozen=True)
class Job:
    """A launch; co1 in blocks of 16; c1 of X in blocks of C0."""

    batch: int
    c1: int
    height: int
    width: int
    co1: int
    out_height: int
    window: Window
    c0: int
    dtype: np.dtype
    kind: str

    @property
    def taps(self) -> int:
        """kh·kw."""
        return self.window.kh * self.window.kw

    @property
    def ratio(self) -> int:
        """Blocks of C0 in 16 columns."""
        return 16 // self.c0

    @property
    def step(self) -> int:
        """Bytes of C0 positions × 16 channels in L0."""
        return 16 * self.c0 * self.dtype.itemsize

    def band(self, rows: range) -> tuple[int, int]:
        """Rows [top, bottom) of X under rows of results."""
        w = self.window
        top = max(0, rows.start * w.stride_h - w.pad_top)
        bottom = min(self.height, (rows.stop - 1) * w.stride_h - w.pad_top + w.kh)
        return (top, bottom) if bottom > top else (0, 1)


@lru_cache(maxsize=256)
def job_of(args: KernelArgs) -> Job:
    """The launch; inputs dY, X."""
    dy, x = args.operands[:2]
    co, _, kh, kw = args.outputs[0].shape
    op = get_operator(args.op_type)
    win = OpWindow.of(x.shape[2:], (kh, kw), {**op.attrs, **dict(args.attrs)})
    (sh, sw), (top, left) = win.strides, win.begin
    h, wd = x.shape[2:]
    window = Window(kh, kw, sh, sw, 1, 1, top, left, h, wd, dy.shape[3])
    c0 = c0_of(x.dtype, x.layout)
    return Job(
        x.shape[0], blocks(x.shape[1], c0), h, wd, blocks(co), dy.shape[2], window, c0,
        x.dtype.np, fc.cube_type(args),
    )  # fmt: skip


@dataclass(frozen=True)
class Share:
    """A block's images, Co blocks of 16, columns of dW in blocks of C0: (C1, taps)."""

    images: range
    rows: range
    columns: range


def share_of(job: Job, t: Tiling, block: int) -> Share:
    """What block `block` does."""

    def cut(n: int, parts: int, i: int) -> range:
        return range(*(n * (i + j) // parts for j in (0, 1)))

    rest, ni = divmod(block, t["bn"])
    bi, mi = divmod(rest, t["bm"])
    n, r = job.c1 * job.taps, job.ratio
    pairs = cut(blocks(n, r), t["bn"], ni)
    columns = range(pairs.start * r, min(n, pairs.stop * r))
    return Share(cut(job.batch, t["bb"], bi), cut(job.co1, t["bm"], mi), columns)


def _tiles(span: range, size: int) -> list[range]:
    return [range(lo, min(lo + size, span.stop)) for lo in range(span.start, span.stop, size)]


def _n_tiles(job: Job, t: Tiling, s: Share) -> list[tuple[range, range]]:
    """Per n tile: its blocks of C0 columns (C1, taps), and the C1 blocks that they touch."""
    found = []
    for tile in _tiles(s.columns, t["n0"] * job.ratio):
        found.append((tile, range(tile.start // job.taps, blocks(tile.stop, job.taps))))
    return found


@kernel("FixpFilterGrad")
class FixpFilterGrad(TileKernel):
    """dW where L0C leaves through FIXP. The output is zeroed before where blocks add to it."""

    core_type = "AIC"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Types and layouts."""
        if args.op_type != "Conv2DBackpropFilter" or len(args.inputs) != 2 or args.epilogue:
            return f"{args.op_type} of {len(args.inputs)} inputs"
        if reason := fc.refuse_types(args, chip, (0, 1), 2):
            return reason
        if args.outputs[0].dtype is not DType.FLOAT32:
            # C0 of fp32 results is that of the inputs' layout
            return "results in fp32"
        return ""

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Shares of Co or of C1, crossed with legal tiles."""
        job, cores = job_of(args), chip.cores.count
        bb = gcd(job.batch, cores)
        bb = bb if bb > 1 or job.batch == 1 else min(job.batch, cores)
        rest = cores // bb
        for bm in (d for d in range(1, min(rest, job.co1) + 1) if rest % d == 0):
            whole = blocks(job.c1 * job.taps, job.ratio)
            yield from _tilings(job, chip, (bb, bm, min(rest // bm, whole)))

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """The slowest pipe of the first block, and some of the others."""
        return _estimate(job_of(args), chip, tiling)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Traffic by the loop nest."""
        job, t = job_of(args), tiling
        n, es = t["bb"] * t["bm"] * t["bn"], job.dtype.itemsize
        totals, keys = [0, 0, 0], []
        chunks = _tiles(range(job.out_height), t["rows"])
        bands = sum(b - a for a, b in map(job.band, chunks))
        positions = job.out_height * job.window.out_width
        for s in (share_of(job, t, b) for b in range(n)):
            tiles, m_tiles = _n_tiles(job, t, s), _tiles(s.rows, t["m0"])
            reads = 1 if t["dy"] else len(tiles)
            dy = _dy_blocks(args, job, s.rows) * job.c0 * es
            totals[0] += len(s.images) * positions * dy * reads
            touched = sum(len(c) for _, c in tiles) * len(m_tiles)
            totals[1] += len(s.images) * bands * job.width * touched * job.c0 * es
            totals[2] += len(s.columns) * len(s.rows) * 16 * job.c0 * 4
            lengths = tuple((len(n), len(c)) for n, c in tiles)
            keys.append((len(s.images), dy, len(s.rows), lengths))
        nbytes = [o.nbytes for o in args.operands]
        traffic = {i: Traffic(min(nbytes[i], x), x) for i, x in enumerate(totals)}
        return Plan(tiling, n, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """Tile by tile: all images and positions, then out."""
        job = job_of(args)
        return _Run(k, job, tiling, share_of(job, tiling, block)).run()


def _dy_blocks(args: KernelArgs, job: Job, rows: range) -> int:
    """Blocks of C0 of dY's channels in blocks of 16."""
    stored = args.operands[0].storage_shape[1]
    return min(stored, rows.stop * job.ratio) - rows.start * job.ratio


def _tilings(job: Job, chip: ChipSpec, split: tuple[int, int, int]) -> Iterator[Tiling]:
    bb, bm, bn = split
    core, es = chip.core, job.dtype.itemsize
    mc, whole = blocks(job.co1, bm), blocks(job.c1 * job.taps, job.ratio)
    nc = blocks(whole, bn)
    half_a, half_b = core.l0a.size // 2 // job.step, core.l0b.size // 2 // job.step
    for m0 in tile_sizes(mc, half_a):
        for n0 in tile_sizes(nc, half_b):
            if m0 * n0 * 1024 > core.l0c.size:
                continue
            c1 = min(job.c1, blocks(n0 * job.ratio - 1, job.taps) + 1)
            for held in (0, 1):
                if held and m0 < mc:
                    continue
                # Whole images where they fit, else a few rows at a time.
                for rows in sorted({job.out_height, *tile_sizes(job.out_height, 16)}, reverse=True):
                    steps = blocks(rows * job.window.out_width, job.c0)
                    dy = m0 * 16 * steps * job.c0 * es
                    tall = min(job.height, (rows - 1) * job.window.stride_h + job.window.kh)
                    x = tall * job.width * c1 * job.c0 * es
                    kept = dy * blocks(job.batch, bb) if held and rows == job.out_height else 0
                    need = kept + 2 * x if held else 2 * (dy + x)
                    if need <= core.l1.size and (kept or not held):
                        yield {
                            "bb": bb, "bm": bm, "bn": bn, "m0": m0, "n0": n0,
                            "k0": min(half_a // m0, half_b // n0, steps), "rows": rows,
                            "dy": held,
                        }  # fmt: skip
                        break


def _estimate(job: Job, chip: ChipSpec, t: Tiling) -> float:
    core, s, es = chip.core, share_of(job, t, 0), job.dtype.itemsize
    m_tiles, n_tiles = blocks(len(s.rows), t["m0"]), _n_tiles(job, t, s)
    chunks = _tiles(range(job.out_height), t["rows"])
    k = sum(blocks(len(c) * job.window.out_width, job.c0) for c in chunks) * len(s.images)
    n = blocks(len(s.columns), job.ratio)
    per = blocks(t["rows"] * job.window.out_width, job.c0)
    steps = len(s.images) * len(chunks) * blocks(per, t["k0"]) * m_tiles * len(n_tiles)
    cube = (
        k * core.cube.blocks(len(s.rows), n) * job.c0 / core.cube.k[job.kind]
        + steps * core.cube.head
    )
    wide = fc.TRANSPOSED if es == 4 else 1.0
    mte1 = k * len(s.rows) * len(n_tiles) * job.step / core.mte1.l0a_rate * wide
    mte1 += k * n * m_tiles * job.step / core.mte1.l0b_rate * job.window.stride_w
    mte1 += steps * (core.mte1.load3d_head + core.mte1.head)
    touched = sum(len(c) for _, c in n_tiles) * m_tiles
    bands = sum(b - a for a, b in map(job.band, chunks))
    loads = len(s.images) * bands * job.width * touched * job.c0 * es
    reads = 1 if t["dy"] else len(n_tiles)
    loads += len(s.images) * job.out_height * job.window.out_width * len(s.rows) * 16 * es * reads
    rate = min(core.mte2.rate, chip.l2_rate / (t["bb"] * t["bm"] * t["bn"]))
    mte2 = loads / rate + 2 * len(s.images) * len(chunks) * m_tiles * len(n_tiles) * core.mte2.head
    assert core.fixp is not None
    out = n * len(s.rows) * 1024 / (ATOMIC_RATE if t["bb"] > 1 else core.fixp.rate)
    pipes = (cube, mte1, mte2, out)
    serial = out if 2 * t["m0"] * t["n0"] * 1024 > core.l0c.size else 0.0
    return max(pipes) + 0.1 * sum(pipes) + serial


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, job: Job, t: Tiling, s: Share) -> None:
        self.k, self.job, self.t, self.s = k, job, t, s
        es, m0, n0 = job.dtype.itemsize, t["m0"], t["n0"]
        self.chunks = _tiles(range(job.out_height), t["rows"])
        steps = blocks(t["rows"] * job.window.out_width, job.c0)
        dy = m0 * 16 * steps * job.c0 * es
        tall = max(b - a for a, b in map(job.band, self.chunks))
        c1 = max(len(c) for _, c in _n_tiles(job, t, s))
        x = tall * job.width * c1 * job.c0 * es
        if t["dy"]:
            self.panel = k.queue("L1", dy * len(s.images), 1, Pipe.MTE2, Pipe.MTE1)
            self.l1 = k.queue("L1", x, 2, Pipe.MTE2, Pipe.MTE1)
        else:
            self.l1 = k.queue("L1", x, 2, Pipe.MTE2, Pipe.MTE1, ("L1", dy))
        size = t["k0"] * job.step
        self.l0 = k.queue("L0A", m0 * size, 2, Pipe.MTE1, Pipe.M, ("L0B", n0 * size))
        slots = 2 if 2 * m0 * n0 * 1024 <= k.chip.core.l0c.size else 1
        self.l0c = k.queue("L0C", m0 * n0 * 1024, slots, Pipe.M, Pipe.FIXP)

    def run(self) -> Iterator[Instr]:
        """All tiles of the share."""
        for rows in _tiles(self.s.rows, self.t["m0"]):
            if self.t["dy"]:
                slot = yield from self.panel.alloc()
                yield self._load_dy(slot.region(self._dy_shape(rows, len(self.s.images)),
                                                self.job.dtype), self.s.images, rows,
                                    self.chunks[0])  # fmt: skip
                yield self.panel.enque()
                yield self.panel.deque()
            for columns, channels in _n_tiles(self.job, self.t, self.s):
                yield from self._tile(rows, columns, channels)
            if self.t["dy"]:
                yield self.panel.free()

    def _dy_shape(self, rows: range, images: int, chunk: range | None = None) -> tuple[int, ...]:
        """dY in L1: images, blocks of C0 channels, positions in whole steps, C0."""
        chunk = chunk or self.chunks[0]
        steps = blocks(len(chunk) * self.job.window.out_width, self.job.c0)
        return images, len(rows) * self.job.ratio, steps * self.job.c0, self.job.c0

    def _load_dy(self, dst: Region, images: range, rows: range, chunk: range) -> Instr:
        """dY of some images and rows of results; what is not there is zero."""
        job, width = self.job, self.job.window.out_width
        stored = self.k.args.operands[0].storage_shape[1]
        shape = (job.batch, stored, job.out_height * width, job.c0)
        src = Region.dense(GM, 0, 0, shape, job.dtype)[images.start : images.stop]
        lo, hi = rows.start * job.ratio, min(stored, rows.stop * job.ratio)
        src = src[:, lo:hi, chunk.start * width : chunk.stop * width]
        inside = dst[:, : hi - lo, : len(chunk) * width]
        return self.k.load(inside, src, dst if inside.size < dst.size else None)

    def _tile(self, rows: range, columns: range, channels: range) -> Iterator[Instr]:
        """Sum one tile over images and positions, and store it."""
        k, job = self.k, self.job
        place = yield from self.l0c.alloc()
        n_b = blocks(len(columns), job.ratio)
        c = place.region((n_b, len(rows), 16, 16), F32)
        for i in k.loop(len(self.s.images)) if len(self.chunks) == 1 else range(len(self.s.images)):
            for chunk in self.chunks:
                yield from self._load(self.s.images.start + i, rows, channels, chunk)
                yield self.l1.deque()
                steps = blocks(len(chunk) * job.window.out_width, job.c0)
                for lo in range(0, steps, self.t["k0"]):
                    width = min(self.t["k0"], steps - lo)
                    more = i + chunk.start + lo > 0
                    yield from self._step(c, i, rows, (columns, channels), chunk, (lo, width, more))
                yield self.l1.free()
        yield self.l0c.enque()
        yield self.l0c.deque()
        yield k.memo(("out", len(columns), len(rows)), lambda: self._store(c, rows, columns))
        yield self.l0c.free()

    def _load(self, image: int, rows: range, channels: range, chunk: range) -> Iterator[Instr]:
        job, slot = self.job, (yield from self.l1.alloc())
        if not self.t["dy"]:
            dst = self.l1.back_partner.region(self._dy_shape(rows, 1, chunk), job.dtype)
            yield self._load_dy(dst, range(image, image + 1), rows, chunk)
        top, bottom = job.band(chunk)
        shape = (job.batch, job.c1, job.height, job.width, job.c0)
        src = Region.dense(GM, 1, 0, shape, job.dtype)[image, channels.start : channels.stop]
        src = src[:, top:bottom]
        yield self.k.load(slot.region(src.shape, job.dtype), src)
        yield self.l1.enque()

    def _step(
        self, c: Region, image: int, rows: range, at: tuple[range, range], chunk: range,
        step: tuple[int, int, bool],
    ) -> Iterator[Instr]:  # fmt: skip
        """One k step: `width` steps of C0 positions from `lo` of a chunk."""
        k, job, r, c0 = self.k, self.job, self.job.ratio, self.job.c0
        (columns, channels), (lo, width, more) = at, step
        n_b, m_b = c.shape[:2]
        slot = yield from self.l0.alloc()
        a = slot.region((m_b, width, 16, c0), job.dtype)
        b = self.l0.back_partner.region((width, n_b, 16, c0), job.dtype)
        key = (m_b, len(columns), width)

        def load_a() -> Instr:
            held = self.t["dy"]
            source = self.panel.front if held else self.l1.front_partner
            shape = self._dy_shape(rows, len(self.s.images) if held else 1, chunk)
            dy = source.region(shape, job.dtype)[image if held else 0]
            part = dy[:, lo * c0 : (lo + width) * c0].split(1, c0).split(0, r)
            return k.load_l0(a.split(2, c0), part.permute(0, 2, 1, 4, 3))

        def load_b() -> Instr:
            top, bottom = job.band(chunk)
            shape = (len(channels), bottom - top, job.width, c0)
            x = self.l1.front.region(shape, job.dtype)
            dst = Region(
                b.space, -1, b.offset, (width, n_b * r, c0, c0),
                (b.strides[0], c0 * c0 * job.dtype.itemsize, c0 * job.dtype.itemsize,
                 job.dtype.itemsize), job.dtype,
            )  # fmt: skip
            dst = dst[:, : len(columns)].permute(0, 1, 3, 2)
            valid = min(width * c0, len(chunk) * job.window.out_width - lo * c0)
            first = chunk.start * job.window.out_width + lo * c0
            k_first = columns.start - channels.start * job.taps
            # L0B is half as wide as L0A.
            rate = 2 * fc.load3d_rate(k.chip, c0 * c0 * job.dtype.itemsize, job.dtype.itemsize)
            return k.load3d(dst, x, job.window, first, valid, k_first, top, rate)

        yield k.memo(("load2d", *key), load_a)
        if job.dtype.itemsize == 4:  # the second half of the pairs of fractals
            cycles = round(a.nbytes / k.chip.core.mte1.l0a_rate * (fc.TRANSPOSED - 1))
            yield k.memo(("pairs", *key), lambda: k.stall(Pipe.MTE1, cycles))
        yield k.memo(("load3d", *key), load_b)
        yield self.l0.enque()
        yield self.l0.deque()
        yield k.memo(("mmad", *key), lambda: fc.mmad(k, job.kind, c, a, b, more))
        yield self.l0.free()

    def _store(self, c: Region, rows: range, columns: range) -> Instr:
        """FIXP: the tile to FRACTAL_Z, added where images are split."""
        k, job, r, (n_b, m_b) = self.k, self.job, self.job.ratio, c.shape[:2]
        local = Region(
            c.space, -1, c.offset, (n_b, r, m_b, 16, job.c0),
            (c.strides[0], job.c0 * 4, c.strides[1], 64, 4), F32,
        )  # fmt: skip
        whole = k.output(0)[:, rows.start : rows.stop]  # (C1·taps, Co1, 16, C0)
        full, pairs = len(columns) // r, []
        for blocks_, lo, hi in ((full, 0, full * r), (1, full * r, len(columns))):
            if hi > lo:
                dst = whole[columns.start + lo : columns.start + hi]
                dst = dst.split(0, (hi - lo) // blocks_)
                pairs.append((dst, local[lo // r : lo // r + blocks_, : (hi - lo) // blocks_]))
        if self.t["bb"] == 1:
            return k.fixpipe(pairs, len(columns))
        fixp = k.chip.core.fixp
        assert fixp is not None
        effect = _AddAll(tuple(effects.AtomicAdd(d, s) for d, s in pairs)) if k.functional else None
        nbytes = sum(d.nbytes for d, _ in pairs)
        return isa.gm_transfer(
            Pipe.FIXP, "fixpipe_add", k.chip.core.scalar.issue, fixp.head, nbytes, ATOMIC_RATE,
            pairs[0][0].operand, True, effect,
        )  # fmt: skip


@dataclass(slots=True)
class _AddAll:
    """Several atomic adds as one command."""

    parts: tuple[effects.AtomicAdd, ...]

    def accesses(self) -> list[Access]:
        """Those of every add."""
        return [access for part in self.parts for access in part.accesses()]

    def read(self, memory: isa.CoreMemory) -> list[np.ndarray]:
        """The addends."""
        return [p.read(memory) for p in self.parts]

    def write(self, memory: isa.CoreMemory, values: list[np.ndarray]) -> None:
        """Accumulate."""
        for part, value in zip(self.parts, values, strict=True):
            part.write(memory, value)
