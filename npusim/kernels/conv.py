"""Conv2D: implicit GEMM on the cube, img2col on the way from L1 to L0A.

Input NC1HWC0, weights FRACTAL_Z (K = C1·kh·kw blocks, N = Co1 blocks), output NC1HWC0, optional
bias, fused epilogue (see `epilogue`). M runs over the output positions of one image, in 16-row
fractals. Work is split over blocks by image, M and N. A block walks tiles of its share as MatMul
does; a chunk of K is a range of C1, so that the input band of a chunk is loaded once for all taps.

int8 and uint8 are summed in int32, in blocks of 32 channels; `offset_x` is what pads the image.

Groups of whole blocks of channels are convolutions of their own, and count as images.

An image of at most 4 channels may come as NC1HWC0_C04 with weights in FRACTAL_Z_C04 (fp16, cores
that are whole): load3d then puts the 4 channels of four taps into a fractal (LoadData3DParamsV1's
cSize), at its usual cycles per fractal (assumed: the documents name no rate of its own).

Small images may share a tile, and so the weights: each has fractals of its own, or, packed, the
next begins where the last ends (see `ConvProblem.packed`).

Tiling: bb, bm, bn blocks over batch, M, N; m0, n0, k0 the L0 tile of one image (fractals); images
of a tile; c1 the C1 blocks of an L1 chunk; slots, panels the L1 buffers of a chunk and of a
resident operand; l0c the tiles that L0C holds at most; resident 0 none, 1 the input band of an m
tile (all C1), 2 the weights of an n tile.
untuned 1 where a training kernel has CANN's fallback split (see `ConvProblem.untuned`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.ir.layout import blocks, c0_of, whole_groups
from npusim.kernels import epilogue as ep
from npusim.kernels import epilogue_costs as costs
from npusim.kernels.conv_tiling import (
    ConvProblem,
    batch_tiles,
    conv_estimate,
    conv_problem,
    conv_tilings,
    l0_tile,
    max_band,
    n_tiles_once,
    span,
    tile_counts,
)
from npusim.kernels.cube_tiling import Share, share
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.queues import Alloc, Queue
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

Place = tuple[int, int, int, int]  #: images of the share, m tile, n tile, chunk of C1 blocks


@dataclass(frozen=True)
class ConvOutput:
    """NC1HWC0 result in GM (an `epilogue.OutputView`)."""

    m: int
    n1: int
    rows: bool = False

    def pieces(
        self, operand: Region, local: Region, n1: int, tile: ep.TileSpan
    ) -> list[tuple[Region, Region]]:
        """(GM, local) pairs of the strip `local` (nu, m16, 16) at channel block n1.

        Blocks of 32 channels: a strip (nu / 2, m16, 32) or (nu / 2, m16, 2, 16).
        """
        es, nu, c0 = operand.dtype.itemsize, local.shape[0], prod(local.shape[2:])
        c1, first = blocks(self.n1 * 16, c0), n1 * 16 // c0
        offset = ((tile.batch * c1 + first) * self.m + tile.row0) * c0 * es
        shape, strides = (nu, tile.rows, c0), (self.m * c0 * es, c0 * es, es)
        gm = Region(GM, operand.operand, offset, shape, strides, operand.dtype)
        return [(gm.split(2, 16) if len(local.shape) == 4 else gm, local[:, : tile.rows])]

    def bursts(self, nu: int, tile: ep.TileSpan) -> int:
        """One burst per channel block."""
        return nu


@kernel("Conv2D")
class Conv2D(TileKernel):
    """Convolution on the cube."""

    core_type = "AIC"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Rank, layout, dtype, group and epilogue this kernel does not do."""
        x, w = args.inputs[0], args.inputs[1]
        assert x is not None and w is not None
        if len(x.shape) != 4:
            return "only 2-D convolution runs on the cube"
        if x.dtype.value not in chip.core.cube.k or w.dtype is not x.dtype:
            return f"the cube takes {', '.join(chip.core.cube.k)}, not {x.dtype.value}"
        ends = bool(args.epilogue) and args.epilogue[-1].op_type in ep.QUANT_STEPS
        if not x.dtype.is_float and not ends and args.outputs[0].dtype is not DType.INT32:
            return "int32 sums leave as they are"
        if not whole_groups(x.shape[1], w.shape[0], args.get("group", 1), x.dtype):
            return "groups that are no whole blocks of channels: expand the weights first"
        if x.layout is Layout.NC1HWC0_C04:
            if w.layout is not Layout.FRACTAL_Z_C04 or x.dtype is not DType.FLOAT16:
                return "few channels come in float16, with weights in FRACTAL_Z_C04"
            if chip.core.fixp is not None:
                return "few channels in blocks of 4: only on cores without FIXP"
        elif x.layout is not Layout.NC1HWC0 or w.layout is not Layout.FRACTAL_Z:
            return "needs NC1HWC0 input and FRACTAL_Z weights"
        group = args.get("group", 1)
        if ends and group > 1 and w.shape[0] // group % c0_of(args.outputs[0].dtype):
            return "groups that share a block of channels of the result"
        return ep.refuse_epilogue(args, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Best block splits crossed with legal L0/L1 tiles."""
        return conv_tilings(conv_problem(args), chip)

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """max over the pipes of the largest block, plus what cannot overlap."""
        return conv_estimate(conv_problem(args), chip, tiling)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Traffic by the loop nest; classes by images, positions and bands, channels."""
        return conv_plan(conv_problem(args), args, tiling)

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """See the module's text."""
        p = conv_problem(args)
        return ConvBody(k, p, tiling, share(p, tiling, block)).run()


def conv_plan(p: ConvProblem, args: KernelArgs, tiling: Tiling) -> Plan:
    """The plan of a tiling; operands 0 image, 1 weights, output 0, and the epilogue's."""
    block_dim = tiling["bb"] * tiling["bm"] * tiling["bn"]
    x_total = w_total = y_total = bias_reads = 0
    keys, es = [], p.spec.out.itemsize
    bands: dict[tuple[int, int], tuple[int, ...]] = {}
    for block in range(block_dim):
        s = share(p, tiling, block)
        m_tiles, n_tiles = tile_counts(tiling, s)
        if (s.m0, s.m) not in bands:
            bands[s.m0, s.m] = tuple(p.band_bytes(*span(tiling, s, i)) for i in range(m_tiles))
        band = bands[s.m0, s.m]
        x_total += s.batches * sum(band) * (1 if tiling["resident"] == 1 else n_tiles)
        weights = p.k1 * blocks(s.n) * p.fractal
        once = n_tiles_once(tiling)
        w_total += weights * (1 if once else batch_tiles(tiling, s) * m_tiles)
        y_total += s.batches * blocks(s.n, 16 * p.spec.pair) * 16 * p.spec.pair * s.m * es
        bias_reads += s.n * p.groups
        keys.append((s.batches, s.m, s.n, band))
    x, w = args.inputs[0], args.inputs[1]
    assert x is not None and w is not None
    out = len(args.inputs)
    traffic = {
        0: Traffic(min(p.image_bytes, x_total), x_total),
        1: Traffic(w.nbytes, w_total),
        out: Traffic(y_total, y_total),
    }
    extra = costs.epilogue_bytes(args, p.spec.bias, y_total, bias_reads)
    traffic.update({i: Traffic(*v) for i, v in extra.items()})
    return Plan(tiling, block_dim, traffic, group_blocks(keys))


class ConvBody:
    """The program of one block."""

    output = ep.CubeOutput  #: how results leave L0C

    def __init__(self, k: Kernel, p: ConvProblem, t: Tiling, s: Share) -> None:
        self.k, self.p, self.t, self.s = k, p, t, s
        fractal = p.fractal
        (m0, n0), c1 = l0_tile(p, t), t["c1"]
        band = max_band(p, t["m0"], t["bm"]) * p.width * p.c0 * p.dtype.size * t["images"]
        weights = p.taps * n0 * fractal
        self.panel: Queue | None = None
        src, dst, slots = Pipe.MTE2, Pipe.MTE1, t["slots"]
        if t["resident"] == 0:
            self.l1 = k.queue("L1", band * c1, slots, src, dst, ("L1", weights * c1))
        elif t["resident"] == 1:
            self.panel = k.queue("L1", band * p.c1, t["panels"], src, dst)
            self.l1 = k.queue("L1", weights * c1, slots, src, dst)
        else:
            self.panel = k.queue("L1", weights * p.c1, t["panels"], src, dst)
            self.l1 = k.queue("L1", band * c1, slots, src, dst)
        self.l0 = k.queue(
            "L0A", m0 * t["k0"] * fractal, 2, Pipe.MTE1, Pipe.M, ("L0B", n0 * t["k0"] * fractal)
        )
        columns = (s.n0, s.n)
        view = ConvOutput(p.m, p.n1)
        self.out = self.output(k, p.spec, view, (m0, n0), columns, t["l0c"], p.groups)
        if t["untuned"]:
            self.out.release_early()

    def run(self) -> Iterator[Instr]:
        """All tiles of the share; n tiles outermost where their weights are resident."""
        s = self.s
        m_tiles, n_tiles = tile_counts(self.t, s)
        yield from self.out.prepare()
        if self.p.ahead:
            yield from self._fetch((0, 0, 0, 0))
        if self.t["resident"] == 2:
            for ni in self._loop(n_tiles, s.n % (self.t["n0"] * 16) == 0):
                yield from self._enter(0, 0, ni)
                for b in self.k.loop(batch_tiles(self.t, s)):
                    for mi in self._m_loop(m_tiles):
                        yield from self._tile(b, mi, ni)
                yield from self._leave()
            return
        for b in self.k.loop(batch_tiles(self.t, s)):
            for mi in self._m_loop(m_tiles):
                yield from self._enter(b, mi, 0)
                for ni in self._loop(n_tiles, s.n % (self.t["n0"] * 16) == 0):
                    yield from self._tile(b, mi, ni)
                yield from self._leave()

    def _loop(self, count: int, even: bool) -> Iterator[int]:
        """A loop; unlike iterations fold only where none loads what the last one needs."""
        return self.k.loop(count) if even or not self.p.ahead else iter(range(count))

    def _m_loop(self, count: int) -> Iterator[int]:
        """Tiles of an image; alike where all bands but the first and last have as many rows."""
        last = count if self.p.ahead else count - 1
        bands = [self.p.band(*span(self.t, self.s, i)) for i in range(1, last)]
        alike = len({bottom - top for top, bottom in bands}) <= 1
        return self.k.loop(count) if alike else iter(range(count))

    def _next(self, at: Place) -> Place | None:
        """The chunk after one, in the order of `run`."""
        m_tiles, n_tiles = tile_counts(self.t, self.s)
        order = (2, 0, 1, 3) if self.t["resident"] == 2 else (0, 1, 2, 3)
        batches = batch_tiles(self.t, self.s)
        counts = (batches, m_tiles, n_tiles, blocks(self.p.c1, self.t["c1"]))
        place = list(at)
        for axis in reversed(order):
            place[axis] += 1
            if place[axis] < counts[axis]:
                b, mi, ni, kc = place
                return b, mi, ni, kc
            place[axis] = 0
        return None

    def _fetch(self, at: Place) -> Iterator[Instr]:
        """Issue the loads of a chunk, and of the panel that begins with it."""
        b, mi, ni, kc = at
        starts = {0: False, 1: ni == kc == 0, 2: b == mi == kc == 0}[self.t["resident"]]
        if starts:
            yield from self._load_panel(b, mi, ni)
        c_first = kc * self.t["c1"]
        count = min(self.t["c1"], self.p.c1 - c_first)
        yield from self._load_chunk(b, mi, ni, c_first, count)

    def _enter(self, b: int, mi: int, ni: int) -> Iterator[Instr]:
        """MTE1 waits for the resident panel of the tiles that follow."""
        if self.panel is None:
            return
        if not self.p.ahead:
            yield from self._load_panel(b, mi, ni)
        yield self.panel.deque()

    def _leave(self) -> Iterator[Instr]:
        """The resident panel has been read."""
        if self.panel is not None:
            yield self.panel.free()

    def _cols(self, ni: int) -> tuple[int, int]:
        size = self.t["n0"] * 16
        return self.s.n0 + ni * size, min(size, self.s.n - ni * size)

    def _images(self, b: int) -> range:
        """The images of tile b of the share's batch."""
        first, size = b * self.t["images"], self.t["images"]
        return range(self.s.batch0 + first, self.s.batch0 + min(first + size, self.s.batches))

    def _load_band(
        self, alloc: Alloc, b: int, mi: int, c_first: int, c_count: int
    ) -> Iterator[Instr]:
        """C1 blocks of the input rows that m tile mi needs → (c_count, rows, W, C0) in L1.

        Of several images: one after the other, or, packed, (c_count, images, rows, W, C0).
        """
        p, images = self.p, self._images(b)
        top, bottom = p.band(*span(self.t, self.s, mi))
        x = self.k.args.inputs[0]
        assert x is not None
        rows = slice(images.start, images.stop), slice(c_first, c_first + c_count)
        src = p.image(0, x.shape)[*rows, slice(top, bottom)]
        n, c, *pixels = src.shape
        dst = alloc.region((c, n, *pixels) if p.packed else src.shape, p.dtype.np)
        for image in range(n):
            yield self.k.load(dst[:, image] if p.packed else dst[image], src[image])

    def _load_weights(self, alloc: Alloc, batch: int, ni: int, c_first: int, c_count: int) -> Instr:
        """Weights of C1 blocks, all taps, n tile ni → (K blocks, n blocks, 16, C0) in L1."""
        p = self.p
        col0, cols = self._cols(ni)
        lo, taps = batch % p.groups * p.n1 + col0 // 16, p.taps
        src = self.k.input(1)[c_first * taps : (c_first + c_count) * taps, lo : lo + blocks(cols)]
        return self.k.load(alloc.region(src.shape, p.dtype.np), src)

    def _load_panel(self, b: int, mi: int, ni: int) -> Iterator[Instr]:
        assert self.panel is not None
        batch = self._images(b).start
        alloc = yield from self.panel.alloc()
        if self.t["resident"] == 1:
            yield from self._load_band(alloc, b, mi, 0, self.p.c1)
        else:
            yield self._load_weights(alloc, batch, ni, 0, self.p.c1)
        yield self.panel.enque()

    def _span(self, b: int, mi: int) -> ep.TileSpan:
        """The rows of m tile mi of the images of batch tile b."""
        (row0, rows), images, p = span(self.t, self.s, mi), self._images(b), self.p
        pitch = rows if p.packed else blocks(rows) * 16
        m16 = p.fractals(rows, len(images)) * 16
        return ep.TileSpan(images.start, row0, rows, m16, len(images), pitch)

    def _tile(self, b: int, mi: int, ni: int) -> Iterator[Instr]:
        k, p, t, tile = self.k, self.p, self.t, self._span(b, mi)
        col0, cols = self._cols(ni)
        m_b, n_b = tile.m16 // 16, blocks(cols)
        c_alloc = yield from self.out.queue.alloc()
        c = c_alloc.region((n_b, m_b, 16, 16), self.out.sums)
        first = True
        for kc in self._loop(blocks(p.c1, t["c1"]), p.c1 % t["c1"] == 0):
            c_first = kc * t["c1"]
            count = min(t["c1"], p.c1 - c_first)
            if not self.p.ahead:
                yield from self._load_chunk(b, mi, ni, c_first, count)
            elif (after := self._next((b, mi, ni, kc))) is not None:
                yield from self._fetch(after)
            yield self.l1.deque()
            for ks in k.loop(blocks(count * p.taps, t["k0"])):
                lo = ks * t["k0"]
                width = min(t["k0"], count * p.taps - lo)
                yield from self._step(c, tile, (c_first, count), lo, width, first)
                first = False
            yield self.l1.free()
        yield self.out.queue.enque()
        yield from self.out.drain(col0 // 16, n_b, p.co, tile)

    def _load_chunk(self, b: int, mi: int, ni: int, c_first: int, count: int) -> Iterator[Instr]:
        alloc, batch = (yield from self.l1.alloc()), self._images(b).start
        if self.t["resident"] == 0:
            yield from self._load_band(alloc, b, mi, c_first, count)
            yield self._load_weights(self.l1.back_partner, batch, ni, c_first, count)
        elif self.t["resident"] == 1:
            yield self._load_weights(alloc, batch, ni, c_first, count)
        else:
            yield from self._load_band(alloc, b, mi, c_first, count)
        yield self.l1.enque()

    def _step(
        self,
        c: Region,
        tile: ep.TileSpan,
        chunk: tuple[int, int],
        lo: int,
        width: int,
        first: bool,
    ) -> Iterator[Instr]:
        """One k step: load3d, load2d, mmad. lo: K block within the chunk of C1 blocks."""
        k, p, resident = self.k, self.p, self.t["resident"]
        dtype: np.dtype = p.dtype.np
        n_b, m_b = c.shape[0], c.shape[1]
        c_first, count = chunk
        x_c1 = w_c1 = count
        x_lo = w_lo = lo
        x_src, w_src = self.l1.front, self.l1.front
        if resident == 0:
            w_src = self.l1.front_partner
        elif resident == 1:
            assert self.panel is not None
            x_src, x_c1, x_lo = self.panel.front, p.c1, c_first * p.taps + lo
        else:
            assert self.panel is not None
            w_src, w_c1, w_lo = self.panel.front, p.c1, c_first * p.taps + lo
        l0a = yield from self.l0.alloc()
        l0b = self.l0.back_partner

        def l0a_tile() -> Region:
            return l0a.region((m_b, width, 16, p.columns), dtype)

        def l0b_tile() -> Region:
            return l0b.region((width, n_b, 16, p.columns), dtype)

        def load_w() -> Instr:
            return self._load_l0b(l0b_tile(), w_src, w_c1, w_lo)

        key = (m_b, n_b, width)
        yield from self._load_l0a(l0a_tile, x_src, x_c1, x_lo, tile, key)
        yield k.memo(("load2d", *key), load_w)
        yield self.l0.enque()
        yield self.l0.deque()
        yield k.memo(("mmad", *key), lambda: k.mmad(c, l0a_tile(), l0b_tile(), not first))
        yield self.l0.free()

    def _load_l0a(
        self,
        whole: Callable[[], Region],
        src: Alloc,
        c1: int,
        lo: int,
        tile: ep.TileSpan,
        key: tuple[int, ...],
    ) -> Iterator[Instr]:
        """K blocks from `lo` of the bands of c1 channel blocks in L1 → L0A, image by image.

        Packed images are one, whose rows are all of theirs.
        """
        k, p = self.k, self.p
        images, rows, first = tile.images, tile.rows, tile.row0
        top, bottom = p.band(first, rows)
        tall, window = bottom - top, p.window
        if p.packed and images > 1:
            rows = tall = images * rows
            images, first, top, window = 1, 0, 0, replace(window, height=rows)

        def load(image: int) -> Instr:
            shape = (c1, tall, p.width, p.c0)
            band = src.region(shape, p.dtype.np, image * prod(shape) * p.dtype.size)
            dst, padding = whole(), k.args.get("offset_x", 0)
            if images > 1:
                dst = dst[image * blocks(rows) : (image + 1) * blocks(rows)]
            return k.load3d(dst, band, window, first, rows, lo, top, padding=padding)

        for image in range(images):
            yield k.memo(("load3d", *key), partial(load, image))

    def _load_l0b(self, dst: Region, src: Alloc, c1: int, lo: int) -> Instr:
        """K blocks from `lo` of the weights of c1 channel blocks in L1 → L0B."""
        width, n_b = dst.shape[:2]
        w = src.region((c1 * self.p.taps, n_b, 16, self.p.columns), dst.dtype)
        return self.k.load_l0(dst, w[lo : lo + width])
