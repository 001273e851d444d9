"""ConvConv: a convolution and a 1×1 one behind it, tile by tile; the image between stays in L1.

    for image: for m tile i + 1: band → L1, load3d → L0A, mmad      first convolution
                                 L0C → UB → L1 (or by FIXP)         its tile, all channels
               of m tile i:      load2d → L0A, mmad                 second convolution
                                 L0C → UB → GM (or by FIXP)

Both weights stay in L1; those of the first arrive in pieces, so that the cube begins with the
first one. The cube is a tile ahead in the first convolution: while the vector unit brings a tile
of it into L1, the cube does the second convolution of the tile before.

A block takes images and positions, all channels. No halo: the second window is one position.

Tiling: bb, bm blocks over images and positions; m0 fractals of a tile; n0 columns of a tile of the
second; k0, k2 K steps of the first and the second; first, second tiles of each in L0C at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from npusim.chip.spec import ChipSpec
from npusim.ir import Layout
from npusim.ir.layout import blocks
from npusim.kernels import conv_depth_tiling as cd
from npusim.kernels import epilogue as ep
from npusim.kernels.conv import Conv2D, ConvOutput
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.queues import Alloc, Queue
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, kernel
from npusim.program.region import Region

At = tuple[int, int]  #: image of the share, m tile


@kernel("ConvConv")
class ConvConv(TileKernel):
    """Two convolutions in one, the second 1×1."""

    core_type = "AIC"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """What `Conv2D` refuses of either; no way into L1; weights that do not fit there."""
        x = args.inputs[0]
        assert x is not None
        if x.dtype.size != 2:
            return f"{x.dtype.value} between the convolutions: 16 bits only"
        if x.layout is not Layout.NC1HWC0:
            return f"an image in {x.layout.value}"
        for which, launch in (("first", cd.first_of(args)), ("second", cd.second_of(args))):
            if reason := Conv2D.refuse(launch, chip):
                return f"the {which}: {reason}"
        if chip.core.fixp is None and chip.core.mte3.l1_rate is None:
            return f"{chip.name} has no way from UB into L1"
        weights = cd.pair_of(args).weights
        if weights > chip.core.l1.size:
            return f"both weights take {weights:,} B of L1, which has {chip.core.l1.size:,} B"
        return ""

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Best block splits crossed with tiles that fit."""
        return cd.tilings(cd.pair_of(args), chip)

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """See `conv_depth_tiling`."""
        return cd.estimate(cd.pair_of(args), chip, tiling)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """See `conv_depth_tiling`."""
        return cd.plan(cd.pair_of(args), args, tiling)

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """See the module's text."""
        return Block(k, cd.pair_of(args), tiling, block).run()


class _Between(ep.CubeOutput):
    """Tiles of the first convolution: out of L0C, and into L1 as fractals."""

    tag = "between"

    def to(self, queue: Queue) -> None:
        """Where tiles go."""
        self._panel = queue

    def drain(self, n1: int, n_blocks: int, n_valid: int, tile: ep.TileSpan) -> Iterator[Instr]:
        """As any tile; MTE1 is told when all of it is in L1."""
        self._place = yield from self._panel.alloc()
        yield from super().drain(n1, n_blocks, n_valid, tile)
        yield self._panel.enque()

    def _inside(self, local: Region, n1: int) -> Region:
        """Where a strip lies in the L1 tile."""
        strip = n1 * local.shape[1] * 16 * self._spec.out.itemsize
        return self._place.region(local.shape, self._spec.out, strip)

    def _store(self, local: Region, n1: int, tile: ep.TileSpan) -> Instr:
        return self._k.ub_to_l1(self._inside(local, n1), local)

    def _target(self, local: Region, n1: int, tile: ep.TileSpan) -> list[tuple[Region, Region]]:
        return [(self._inside(local, n1), local)]

    def _by_fixp(
        self, pairs: list[tuple[Region, Region]], bursts: int, biases: list[Region], relu: bool
    ) -> Instr:
        ((dst, src),) = pairs
        return self._k.fixpipe_l1(dst, src, biases, relu)


class Block:
    """The program of one block."""

    output = ep.CubeOutput  #: how results of the second convolution leave L0C

    def __init__(self, k: Kernel, p: cd.Pair, t: Tiling, block: int) -> None:
        self.k, self.p, self.t, self.s = k, p, t, p.share(t, block)
        self.tiles = p.tiles(t, self.s)
        one, two, m0, n0 = p.first, p.second, t["m0"], t["n0"]
        size, count = p.pieces(t)
        row = p.mid * one.fractal
        self.w1 = k.queue("L1", size * row, count, Pipe.MTE2, Pipe.MTE1)
        self.w2 = k.queue("L1", n0 * row, blocks(two.n1, n0), Pipe.MTE2, Pipe.MTE1)
        self.band = k.queue("L1", p.band(t), p.slots(t), Pipe.MTE2, Pipe.MTE1)
        filler = Pipe.FIXP if k.chip.core.fixp is not None else Pipe.MTE3
        self.between = k.queue("L1", m0 * row, p.slots(t), filler, Pipe.MTE1)
        l0a = m0 * max(t["k0"], t["k2"]) * one.fractal
        l0b = max(p.mid * t["k0"], n0 * t["k2"]) * one.fractal
        self.l0 = k.queue("L0A", l0a, 2, Pipe.MTE1, Pipe.M, ("L0B", l0b))
        specs = p.parts(k.chip, m0)
        view = ConvOutput(one.m, p.mid)
        self.out1 = _Between(k, specs[0], view, (m0, p.mid), (0, one.co), t["first"])
        self.out1.to(self.between)
        view = ConvOutput(two.m, two.n1)
        self.out = self.output(k, specs[1], view, (m0, n0), (0, two.co), t["second"])

    def run(self) -> Iterator[Instr]:
        """All tiles; the first convolution is one ahead."""
        yield from self._load_band((0, 0))
        w, size = self.k.input(1), self.p.pieces(self.t)[0]
        for lo in range(0, self.p.first.k1, size):
            yield from self._load_weights(self.w1, w[lo : lo + size])
        yield from self.out1.prepare()
        yield from self.out.prepare()
        w, size = self.k.input(3), self.t["n0"]
        for lo in range(0, self.p.second.n1, size):
            yield from self._load_weights(self.w2, w[:, lo : lo + size])
        yield from self._image(0)
        for image in self.k.loop(self.s.batches - 1):
            yield from self._image(image + 1)
        yield from self._second((self.s.batches - 1, len(self.tiles) - 1))

    def _image(self, image: int) -> Iterator[Instr]:
        """The first convolution of an image's tiles, the second of the tile before each."""
        for mi in range(len(self.tiles)):
            at = image, mi
            after = (image, mi + 1) if mi + 1 < len(self.tiles) else (image + 1, 0)
            if after[0] < self.s.batches:
                yield from self._load_band(after)
            yield from self._first(at)
            if at != (0, 0):
                yield from self._second((image, mi - 1) if mi else (image - 1, len(self.tiles) - 1))

    def _load_band(self, at: At) -> Iterator[Instr]:
        """The image's rows that a tile needs → (C1, rows, W, C0) in L1."""
        p = self.p.first
        top, bottom = p.band(*self.tiles[at[1]])
        x = self.k.args.inputs[0]
        assert x is not None
        src = p.image(0, x.shape)[self.s.batch0 + at[0], :, top:bottom]
        place = yield from self.band.alloc()
        yield self.k.load(place.region(src.shape, p.dtype.np), src)
        yield self.band.enque()

    def _load_weights(self, queue: Queue, piece: Region) -> Iterator[Instr]:
        place = yield from queue.alloc()
        yield self.k.load(place.region(piece.shape, piece.dtype), piece)
        yield queue.enque()

    def _span(self, at: At) -> ep.TileSpan:
        row0, rows = self.tiles[at[1]]
        return ep.TileSpan(self.s.batch0 + at[0], row0, rows, blocks(rows) * 16)

    def _first(self, at: At) -> Iterator[Instr]:
        """A tile of the first convolution, into L1."""
        p, tile = self.p.first, self._span(at)
        place = yield from self.out1.queue.alloc()
        c = place.region((self.p.mid, tile.m16 // 16, 16, 16), self.out1.sums)
        size = self.p.pieces(self.t)[0]
        yield self.band.deque()
        for lo in range(0, p.k1, self.t["k0"]):
            if at == (0, 0) and lo % size == 0:
                yield self.w1.deque()
            width = min(self.t["k0"], p.k1 - lo)
            a = partial(self._windows, tile, lo, width)
            w = self.w1.slots[lo // size].region((size, self.p.mid, 16, p.c0), p.dtype.np)
            yield from self._step("load3d", c, a, w[lo % size : lo % size + width], lo > 0)
        yield self.band.free()
        yield self.out1.queue.enque()
        yield from self.out1.drain(0, self.p.mid, p.co, tile)

    def _windows(self, tile: ep.TileSpan, lo: int, width: int, l0a: Alloc) -> Instr:
        """load3d: K blocks from `lo` of a tile's windows."""
        p = self.p.first
        top, bottom = p.band(tile.row0, tile.rows)
        band = self.band.front.region((p.c1, bottom - top, p.width, p.c0), p.dtype.np)
        dst = l0a.region((tile.m16 // 16, width, 16, p.c0), p.dtype.np)
        return self.k.load3d(dst, band, p.window, tile.row0, tile.rows, lo, top)

    def _second(self, at: At) -> Iterator[Instr]:
        """A tile of the second convolution, to GM."""
        p, tile = self.p.second, self._span(at)
        yield self.between.deque()
        for i, first in enumerate(range(0, p.n1, self.t["n0"])):
            if at == (0, 0):
                yield self.w2.deque()
            n_b = min(self.t["n0"], p.n1 - first)
            w = self.w2.slots[i].region((self.p.mid, n_b, 16, p.c0), p.dtype.np)
            place = yield from self.out.queue.alloc()
            c = place.region((n_b, tile.m16 // 16, 16, 16), self.out.sums)
            for lo in range(0, self.p.mid, self.t["k2"]):
                part = w[lo : lo + self.t["k2"]]
                a = partial(self._between, tile, lo, part.shape[0])
                yield from self._step("load2d", c, a, part, lo > 0)
            if first + n_b == p.n1:
                yield self.between.free()
            yield self.out.queue.enque()
            yield from self.out.drain(first, n_b, p.co, tile)

    def _between(self, tile: ep.TileSpan, lo: int, width: int, l0a: Alloc) -> Instr:
        """load2d: channel blocks from `lo` of a tile between."""
        m_b, dtype = tile.m16 // 16, self.p.second.dtype.np
        src = self.between.front.region((self.p.mid, m_b, 16, 16), dtype)
        dst = l0a.region((m_b, width, 16, 16), dtype)
        return self.k.load_l0(dst, src[lo : lo + width].permute(1, 0, 2, 3))

    def _step(
        self, name: str, c: Region, load_a: Callable[[Alloc], Instr], w: Region, more: bool
    ) -> Iterator[Instr]:
        """One K step: L0A by `load_a`, the weights w (K, N, 16, C0) → L0B, mmad."""
        k, (width, n_b), m_b = self.k, w.shape[:2], c.shape[1]
        key = m_b, n_b, width
        l0a = yield from self.l0.alloc()
        l0b = self.l0.back_partner
        yield k.memo((name, *key), lambda: load_a(l0a))
        yield k.memo(("weights", *key), lambda: k.load_l0(l0b.region(w.shape, w.dtype), w))
        yield self.l0.enque()
        yield self.l0.deque()

        def mmad() -> Instr:
            a = l0a.region((m_b, width, 16, w.shape[3]), w.dtype)
            return k.mmad(c, a, l0b.region(w.shape, w.dtype), more)

        yield k.memo(("mmad", *key), mmad)
        yield self.l0.free()
