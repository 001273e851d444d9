"""ConvVector: fp32 2-D convolution on the vector unit, where the cube does not take fp32.

Operands as for Conv2D: input and output NC1HWC0, weights FRACTAL_Z, optional bias, fused
epilogue. A tile is rows × cols output positions (m) by n0 output channels (n); for each C1 block
and tap it is a matrix product over the block's channels (see `vector_macs`):

    for image: for n tile: for spatial tile:
        for C1 block: MTE2: input band → UB; V: write its padding
            for group of taps: MTE2: weights → UB
                for tap: V: spread what the tap sees; transpose the weights; multiply-accumulate
        V: epilogue; MTE3: → GM

Accumulators lie as (position, channel); MTE3 stores them 64 B by 64 B into channel blocks.

Tiling: bb, bn, bh, bw blocks over images, channels, rows, columns; rows, cols, n0 the tile;
taps a group of taps; ways the accumulators.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from npusim.chip.spec import ChipSpec
from npusim.ir import Layout
from npusim.ir.layout import BLOCK, blocks
from npusim.kernels import epilogue as ep
from npusim.kernels import epilogue_costs as costs
from npusim.kernels import vector_macs as vm
from npusim.kernels.bands import UB_SHARE, Span, fill_padding, inside, reach, spans, tap, window_of
from npusim.kernels.lang import Alloc, Kernel, TileKernel
from npusim.ops.window import WINDOW_ATTRS, Window
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

COLUMNS = (512, 256, 128, 64)  #: output channels of a tile, besides the whole share
POSITION = BLOCK * 4  #: bytes of a position of one channel block


@dataclass(frozen=True)
class _Conv:
    """A launch: images, input and output channels, window, epilogue."""

    batch: int
    channels: int
    co: int
    window: Window
    spec: ep.EpilogueSpec

    @property
    def c1(self) -> int:
        """Input channel blocks."""
        return blocks(self.channels)

    @property
    def depth(self) -> int:
        """Input channels of a block that hold data."""
        return min(BLOCK, self.channels)

    def ub_bytes(self, t: Tiling) -> int:
        """UB of a tile: double-buffered band and weights, spread band, one tap's weights."""
        w, m = self.window, t["rows"] * t["cols"]
        band = reach(w, 0, t["rows"]) * reach(w, 1, t["cols"]) * POSITION
        weights = t["taps"] * t["n0"] * POSITION
        operands = 2 * band + 2 * weights + m * self.depth * vm.SPREAD * 4 + t["n0"] * POSITION
        return operands + vm.result_bytes(self.spec, t["ways"], m, t["n0"])


@lru_cache(maxsize=256)
def _conv(args: KernelArgs) -> _Conv:
    """The launch; 1 × 1 windows of stride 1 see the image as one column."""
    x, w = args.operands[0], args.operands[1]
    window = window_of(args, w.shape[2:])
    unpadded = window.strides == (1, 1) and not any((*window.begin, *window.end))
    if window.pointwise and unpadded:
        height, width = window.size
        window = Window.of((height * width, 1), (1, 1), WINDOW_ATTRS)
    return _Conv(x.shape[0], x.shape[1], w.shape[0], window, ep.make_spec(args))


class _Share(NamedTuple):
    """A block's part: images, output channels (whole blocks of 16), row and column spans."""

    image0: int
    images: int
    n0: int
    n: int
    rows: list[Span]
    cols: list[Span]


def _unit(p: _Conv, chip: ChipSpec) -> int:
    """Channels that blocks share: a repeat's worth, or all there are."""
    return min(vm.lanes_of(chip), blocks(p.co) * BLOCK)


def _shares(p: _Conv, chip: ChipSpec, t: Tiling) -> list[_Share]:
    """The parts of all blocks, by image, channels, rows, columns."""
    unit = _unit(p, chip)
    images = blocks(p.batch, t["bb"])
    width = blocks(blocks(p.co, unit), t["bn"]) * unit
    runs = []
    for axis, size, parts in ((0, "rows", "bh"), (1, "cols", "bw")):
        tiles = spans(p.window, axis, t[size])
        per = blocks(len(tiles), t[parts])
        runs.append([tiles[i * per : (i + 1) * per] for i in range(t[parts])])
    top = blocks(p.co) * BLOCK
    return [
        _Share(
            b * images,
            min(images, p.batch - b * images),
            n * width,
            min(width, top - n * width),
            rows,
            cols,
        )
        for b in range(t["bb"])
        for n in range(t["bn"])
        for rows in runs[0]
        for cols in runs[1]
    ]


@kernel("ConvVector")
class ConvVector(TileKernel):
    """fp32 convolution on the vector unit."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """2-D, ungrouped, fp32; NC1HWC0 and FRACTAL_Z; what the epilogue can do."""
        x, w, y = args.inputs[0], args.inputs[1], args.outputs[0]
        assert x is not None and w is not None
        if args.op_type != "Conv" or len(x.shape) != 4:
            return f"operator {args.op_type} of rank {len(x.shape)}: 2-D Conv only"
        if args.get("spread"):
            return "zeros between the input's pixels (a transposed convolution)"
        if args.get("group", 1) != 1:
            return "grouped convolution: expand the weights first"
        layouts = (x.layout, w.layout, y.layout)
        if layouts != (Layout.NC1HWC0, Layout.FRACTAL_Z, Layout.NC1HWC0):
            return "needs NC1HWC0 input and output and FRACTAL_Z weights"
        reason = vm.refuse_vector(args, chip)
        if not reason and y.shape[1] % BLOCK and vm.on_zero(args.epilogue):
            return "an epilogue that changes the zeros of padded channels"
        return reason

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Best block splits crossed with channels and groups of taps; the largest tile in UB."""
        p = _conv(args)
        for split in _splits(p, chip):
            yield from _tiles(p, chip, split)

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """The slower of vector and MTE2 in the largest block, plus what cannot overlap."""
        return _estimate(_conv(args), chip, tiling)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Traffic by the loop nest; classes by images, channels and spans."""
        p = _conv(args)
        shares = _shares(p, chip, tiling)
        x_total = w_total = bias_reads = 0
        keys: list[object] = []
        for s in shares:
            n_tiles, tiles = blocks(s.n, tiling["n0"]), len(s.rows) * len(s.cols)
            seen = sum(h.valid for h in s.rows) * sum(w.valid for w in s.cols)
            x_total += s.images * n_tiles * seen * p.c1 * POSITION
            w_total += s.images * tiles * p.window.taps * p.c1 * s.n * POSITION
            bias_reads += s.images * tiles * min(s.n, p.co - s.n0)
            shapes = tuple(tuple((h.count, h.before, h.valid) for h in r) for r in (s.rows, s.cols))
            keys.append((s.images, s.n, min(s.n, p.co - s.n0), shapes))
        out = args.outputs[0].nbytes
        traffic = {
            0: Traffic(min(x_total, args.operands[0].nbytes), x_total),
            1: Traffic(args.operands[1].nbytes, w_total),
            len(args.inputs): Traffic(out, out),
        }
        extra = costs.epilogue_bytes(args, p.spec.bias, out, bias_reads)
        traffic.update({i: Traffic(*v) for i, v in extra.items()})
        return Plan(tiling, len(shares), traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """See the module's text."""
        p = _conv(args)
        return _Body(k, p, tiling, _shares(p, k.chip, tiling)[block]).run()


def _counts(n: int, most: int) -> list[int]:
    """Block counts worth trying for n units: divisors, and as many as there can be (all busy)."""
    most = blocks(n, blocks(n, min(n, most)))
    return sorted({most, *(d for d in range(1, most + 1) if n % d == 0)})


def _splits(p: _Conv, chip: ChipSpec) -> list[Tiling]:
    """The most promising bb, bn, bh, bw: by the largest share (in tenths), then by overlap."""
    cores, units = chip.vector_cores(), blocks(p.co, _unit(p, chip))
    ho, wo = p.window.out
    found = []
    for bb in _counts(p.batch, cores):
        for bn in _counts(units, cores // bb):
            for bw in _counts(wo, min(8, cores // bb // bn)):
                bh = min(ho, cores // bb // bn // bw)
                rows, cols = blocks(ho, bh), blocks(wo, bw)
                work = blocks(p.batch, bb) * blocks(units, bn) * rows * cols
                band = blocks(p.batch, bb) * reach(p.window, 0, rows) * reach(p.window, 1, cols)
                found.append((work, bw, band, {"bb": bb, "bn": bn, "bh": bh, "bw": bw}))
    best = min(f[0] for f in found)
    found.sort(key=lambda f: (round(f[0] / best, 1), f[1], f[2]))
    return [f[3] for f in found[:6]]


def _tiles(p: _Conv, chip: ChipSpec, split: Tiling) -> Iterator[Tiling]:
    """Weights by rows of taps; tap by tap where that leaves room for a larger tile."""
    share = min(blocks(blocks(p.co, _unit(p, chip)), split["bn"]) * _unit(p, chip), 1024)
    for n0 in dict.fromkeys((share, *(n for n in COLUMNS if n < share), BLOCK)):
        rows = _largest_tile(p, chip, {**split, "n0": n0, "taps": p.window.kernel[1]})
        single = _largest_tile(p, chip, {**split, "n0": n0, "taps": 1})
        if rows is not None:
            yield rows
        if single is not None and (rows is None or single != {**rows, "taps": 1}):
            yield single


def _largest_tile(p: _Conv, chip: ChipSpec, split: Tiling) -> Tiling | None:
    """The tiling with as many columns, then rows of outputs, then ways as fit in UB."""
    budget = int(chip.core.ub.size * UB_SHARE)
    t = {**split, "rows": 1, "cols": 1, "ways": 1}

    def fits(key: str, value: int) -> bool:
        return p.ub_bytes({**t, key: value}) <= budget

    if not fits("ways", 1):
        return None
    for key, out, parts in (("cols", p.window.out[1], "bw"), ("rows", p.window.out[0], "bh")):
        share = blocks(out, split[parts])

        def too_large(n: int, key: str = key) -> bool:
            return not fits(key, n)

        most = bisect_left(range(1, share + 1), True, key=too_large)
        t[key] = blocks(share, blocks(share, most))
        tiles = blocks(out, t[key])
        t[parts] = blocks(tiles, blocks(tiles, split[parts]))
    repeats = t["rows"] * t["cols"] * blocks(t["n0"], vm.lanes_of(chip))
    t["ways"] = vm.choose_ways(repeats, p.depth, lambda ways: fits("ways", ways))
    return t


def _estimate(p: _Conv, chip: ChipSpec, t: Tiling) -> float:
    core, w = chip.core, p.window
    block_dim = t["bb"] * t["bn"] * t["bh"] * t["bw"]
    m, n0 = t["rows"] * t["cols"], t["n0"]
    per_tap = vm.macs_cost(chip, (t["ways"], m, n0), p.depth)[0] + 2 * core.vector.tail
    per_tap += vm.spread_cycles(chip, m * p.depth)
    band = reach(w, 0, t["rows"]) * reach(w, 1, t["cols"]) * POSITION
    vector = w.taps * (per_tap + vm.pass_cycles(chip, n0 * p.depth))
    rate = min(core.mte2.ub_rate, chip.l2_rate / block_dim)
    loads = 1 + blocks(w.taps, t["taps"])
    load = (band + w.taps * n0 * POSITION) / rate + loads * core.mte2.head
    unit = _unit(p, chip)
    share = blocks(blocks(p.co, unit), t["bn"]) * unit
    tiles = blocks(p.batch, t["bb"]) * blocks(share, n0)
    for out, size, parts in zip(w.out, ("rows", "cols"), ("bh", "bw"), strict=True):
        tiles *= blocks(blocks(out, t[size]), t[parts])
    drain = vm.result_passes(p.spec, t["ways"]) * vm.pass_cycles(chip, m * n0)
    body = tiles * (p.channels / p.depth * max(vector, load) + drain)
    store = m * n0 * 4 / core.mte3.rate + core.mte3.head
    launch = block_dim * chip.cycles(chip.scheduler.per_block)
    return body + load / loads + store + launch


class _Body:
    """The program of one block."""

    def __init__(self, k: Kernel, p: _Conv, t: Tiling, s: _Share) -> None:
        self.k, self.p, self.t, self.s = k, p, t, s
        w, m = p.window, t["rows"] * t["cols"]
        band = reach(w, 0, t["rows"]) * reach(w, 1, t["cols"]) * POSITION
        self.bands = k.queue("UB", band, 2, Pipe.MTE2, Pipe.V)
        self.weights = k.queue("UB", t["taps"] * t["n0"] * POSITION, 2, Pipe.MTE2, Pipe.V)
        self.spread = k.alloc("UB", m * p.depth * vm.SPREAD * 4)
        self.turned = k.alloc("UB", t["n0"] * POSITION)
        self.results = vm.Results(k, p.spec, t["ways"], m, t["n0"])
        self.x = Region.dense(GM, 0, 0, (p.batch, p.c1, *w.size, BLOCK), vm.F32)

    def run(self) -> Iterator[Instr]:
        """All tiles of the share."""
        k, s, n0 = self.k, self.s, self.t["n0"]
        for b in k.loop(s.images):
            for i in k.loop(blocks(s.n, n0)):
                column, n = s.n0 + i * n0, min(n0, s.n - i * n0)
                for h in s.rows:
                    for w in s.cols:
                        yield from self._tile(s.image0 + b, self._target(b, column, n, h, w), h, w)

    def _target(self, b: int, column: int, n: int, h: Span, w: Span) -> vm.Tile:
        """The tile of image `b` of the share: channels from `column`, spans h × w."""
        p, image, n1 = self.p, self.s.image0 + b, column // BLOCK

        def gm(operand: int) -> Region:
            shape = (p.batch, blocks(p.co), *p.window.out, BLOCK)
            whole = Region.dense(GM, operand, 0, shape, vm.F32)[image, n1 : n1 + n // BLOCK]
            part = whole[:, h.start : h.start + h.count, w.start : w.start + w.count]
            return part.permute(1, 2, 0, 3)

        def local(slot: Alloc) -> Region:
            return slot.region((h.count, w.count, n // BLOCK, BLOCK), vm.F32)

        valid = min(n, p.co - column)
        return vm.Tile(h.count * w.count, n, n, column, valid, gm, local)

    def _tile(self, image: int, tile: vm.Tile, h: Span, w: Span) -> Iterator[Instr]:
        k, p, taps = self.k, self.p, self.p.window.taps
        group = self.t["taps"]
        c = yield from self.results.begin(tile)
        for c1 in k.loop(p.c1):
            slot = yield from self.bands.alloc()
            x = slot.region((1, h.need, w.need, BLOCK), vm.F32)
            rows = self.x[image, c1 : c1 + 1, h.first : h.first + h.valid]
            if h.valid and w.valid:
                yield k.load(inside(x, h, w), rows[:, :, w.first : w.first + w.valid])
            yield self.bands.enque()
            yield self.bands.deque()
            yield from fill_padding(k, x, h, w, 0.0)
            depth = min(BLOCK, p.channels - c1 * BLOCK)
            for g in k.loop(blocks(taps, group)):
                first, count = g * group, min(group, taps - g * group)
                yield from self._load_weights(c1 * taps + first, count, tile)
                for i in range(count):
                    yield from self._tap(c, x, (h.count, w.count), first + i, i, depth)
                yield self.weights.free()
            yield self.bands.free()
        yield from self.results.finish(tile, c)

    def _load_weights(self, row: int, count: int, tile: vm.Tile) -> Iterator[Instr]:
        """Weights of `count` taps from row `row` of FRACTAL_Z, the tile's channels."""
        n1 = tile.column // BLOCK
        src = self.k.input(1)[row : row + count, n1 : n1 + tile.n // BLOCK]
        slot = yield from self.weights.alloc()
        yield self.k.load(slot.region(src.shape, vm.F32), src)
        yield self.weights.enque()
        yield self.weights.deque()

    def _tap(
        self, c: Region, x: Region, size: tuple[int, int], position: int, slot: int, depth: int
    ) -> Iterator[Instr]:
        """c += what the tap at `position` sees of x, times its weights (`slot` of the group)."""
        k, window = self.k, self.p.window
        _, m, n = c.shape
        i, j = divmod(position, window.kernel[1])
        seen = tap(x, window, i, j, *size)[0, :, :, :depth].expand(3)
        yield k.vec("brcb", self.spread.region((*size, depth, vm.SPREAD), vm.F32), seen)
        shape = (self.t["taps"], n // BLOCK, BLOCK, BLOCK)
        stored = self.weights.front.region(shape, vm.F32)[slot].permute(2, 0, 1)[:depth]
        yield k.vec("transpose", self.turned.region(stored.shape, vm.F32), stored)
        spread = self.spread.region((m, depth, vm.SPREAD), vm.F32)
        yield vm.macs(k, c, spread, self.turned.region((depth, n), vm.F32))
