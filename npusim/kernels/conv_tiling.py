"""What convolution kernels compute, as an implicit GEMM, and how they cut it into tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import lcm

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.ir.layout import blocks, c0_of
from npusim.kernels import epilogue as ep
from npusim.kernels import epilogue_costs as costs
from npusim.kernels.cube_tiling import Share, share, tile_sizes, work_splits
from npusim.ops import get_operator
from npusim.ops.conv import conv_window
from npusim.program.effects import Window
from npusim.program.kernel import KernelArgs, Tiling
from npusim.program.region import GM, Region

TALL = 16  #: fractals of a tile over several images at most
HOT = 0.04  #: weight of pipes and L2 beside what binds: it parts tilings that this makes equal


@dataclass(frozen=True)
class ConvProblem:
    """A launch as the kernel sees it (sizes in elements; *1 in blocks of 16, c1 in blocks of C0).

    `row_step`: only every so many rows of the image are read: `height` and the window count those.
    `groups`: of channels, each a convolution of its own: they count as images (in `batch`), and
    `c1` and `co` are those of one.
    `layout`: of the image. In NC1HWC0_C04 a block is 4 channels, and a fractal's columns are those
    of four taps.
    """

    batch: int
    c1: int
    height: int
    width: int
    co: int
    m: int
    window: Window
    dtype: DType
    spec: ep.EpilogueSpec
    row_step: int = 1
    groups: int = 1
    layout: Layout = Layout.NC1HWC0

    @cached_property
    def c0(self) -> int:
        """Channels of a block of the image: 32 in int8, 4 where there are few."""
        return c0_of(self.dtype, self.layout)

    @cached_property
    def columns(self) -> int:
        """Columns of a fractal: a block of channels, or the blocks of several taps."""
        return c0_of(self.dtype)

    @cached_property
    def fractal(self) -> int:
        """Bytes of a fractal of operands."""
        return 16 * self.columns * self.dtype.size

    def image(self, operand: int, shape: tuple[int, ...]) -> Region:
        """The rows that are read of an image (N, C, H, W) in GM, as (N, C1, height, W, C0), where
        N counts groups.

        A 1×1 window of stride 1 sees H·W rows of one pixel: `height` and `width` say how.
        """
        es, c0, c1 = self.dtype.size, self.c0, blocks(shape[1] // self.groups, self.c0)
        row = self.width * c0 * es
        plane = shape[2] * shape[3] * c0 * es
        sizes = (shape[0] * self.groups, c1, self.height, self.width, c0)
        strides = (c1 * plane, plane, self.row_step * row, c0 * es, es)
        return Region(GM, operand, 0, sizes, strides, self.dtype.np)

    @cached_property
    def image_bytes(self) -> int:
        """Bytes of all rows that are read of all images."""
        return self.batch * self.c1 * self.height * self.width * self.c0 * self.dtype.size

    @property
    def n(self) -> int:
        """Output channels."""
        return self.co

    @cached_property
    def m1(self) -> int:
        """Output positions of an image, in fractals."""
        return blocks(self.m)

    @cached_property
    def n1(self) -> int:
        """Output channels in blocks."""
        return blocks(self.co)

    @cached_property
    def taps(self) -> int:
        """K blocks of a block of channels: kh·kw, fewer where a fractal holds several taps."""
        return blocks(self.window.kh * self.window.kw, self.columns // self.c0)

    @cached_property
    def k1(self) -> int:
        """K in blocks."""
        return self.c1 * self.taps

    @cached_property
    def _shares(self) -> dict[tuple[int, int, int], Share]:
        return {}

    @cached_property
    def _bands(self) -> dict[tuple[int, int], int]:
        return {}

    def max_band(self, m0: int, bm: int) -> int:
        """Input rows that any m tile of m0 fractals can need, with M split over bm blocks."""
        if (m0, bm) not in self._bands:
            self._bands[m0, bm] = max_band(self, m0, bm)
        return self._bands[m0, bm]

    def first_share(self, t: Tiling) -> Share:
        """The part of block 0, the largest; found once for each block split."""
        split = t["bb"], t["bm"], t["bn"]
        if split not in self._shares:
            self._shares[split] = share(self, t, 0)
        return self._shares[split]

    def splits(self, cores: int) -> list[tuple[int, int, int]]:
        """Block splits (batch, M, N) worth trying."""
        return work_splits(self.batch, self.m1, self.n1, cores)

    def n_tiles(self, n: int, room: int, exact: bool) -> list[int]:
        """N tile sizes worth trying for n blocks; exact: the split was made to use all cores."""
        return tile_sizes(n, room)

    @property
    def ahead(self) -> bool:
        """A chunk's load is issued before the products of the one before it."""
        return False

    def untuned(self, split: tuple[int, int, int], cores: int) -> bool:
        """The split is what CANN falls back to without a tuned tiling (training kernels)."""
        return False

    def untuned_step(self, n0: int, most: int) -> int:
        """K step of an untuned tiling, where L0 allows `most`."""
        return most

    def held_cycles(self, chip: ChipSpec, t: Tiling) -> float:
        """Vector cycles of a tile before L0C is free, in an untuned tiling: all of them."""
        return self.spec.vector_cycles(chip, min(t["m0"], self.m1) * t["n0"] * 256)

    @property
    def l0c_tiles(self) -> int:
        """Tiles in L0C at most: 2 lets the cube work while one leaves."""
        return 2

    @cached_property
    def packed(self) -> bool:
        """Images of a tile follow one another without a gap: a 1×1 window sees rows of one pixel.

        Else each begins with a fractal.
        """
        w = self.window
        alike = self.m == self.height and self.width == w.out_width == self.taps == w.stride_h == 1
        return alike and w.pad_top == w.pad_left == 0

    def fractals(self, rows: int, images: int) -> int:
        """Of a tile of so many positions of each of its images."""
        return blocks(rows * images) if self.packed else blocks(rows) * images

    def images(self, chip: ChipSpec, split: tuple[int, int, int], m0: int) -> list[int]:
        """Images of a tile worth trying: one, all of a share, else those of `TALL` fractals, half.

        Several only where a tile is all that a block has of an image, where images share their
        weights, and where L0C leaves through FIXP, which stores image by image.
        """
        share, rows = blocks(self.batch, split[0]), blocks(self.m1, split[1])
        if chip.core.fixp is None or m0 < rows or share == 1 or self.groups > 1:
            return [1]
        height = min(self.m, m0 * 16)
        counts = range(1, min(share, TALL * 16) + 1)
        most = max((i for i in counts if self.fractals(height, i) <= TALL), default=1)
        if most == share:
            return [1, share]
        return sorted({1, max(1, most // 2), blocks(share, blocks(share, most)), most})

    def band(self, first: int, rows: int) -> tuple[int, int]:
        """Input rows [top, bottom) inside the image that output positions need."""
        w = self.window
        ho0, ho1 = first // w.out_width, (first + rows - 1) // w.out_width
        low = ho0 * w.stride_h - w.pad_top
        high = ho1 * w.stride_h - w.pad_top + (w.kh - 1) * w.dilation_h
        top, bottom = max(0, -(-low // w.spread_h)), min(self.height, high // w.spread_h + 1)
        return (top, bottom) if bottom > top else (0, 1)

    def reach(self, out_rows: int) -> int:
        """Input rows that any `out_rows` rows of outputs read at most."""
        w = self.window
        span = (out_rows - 1) * w.stride_h + (w.kh - 1) * w.dilation_h
        return min(self.height, span // w.spread_h + 1)

    def band_bytes(self, first: int, rows: int) -> int:
        """Bytes of the band, all channels."""
        top, bottom = self.band(first, rows)
        return (bottom - top) * self.width * self.c1 * self.c0 * self.dtype.size


@dataclass(frozen=True)
class TrainingProblem(ConvProblem):
    """A convolution of a training step, tiled as CANN's kernels were measured to be."""

    @property
    def ahead(self) -> bool:
        """As TVM's double buffering has it."""
        return True

    def untuned(self, split: tuple[int, int, int], cores: int) -> bool:
        """Whether only the batch is split, and not into `cores` parts."""
        return split[1] * split[2] == 1 and split[0] != cores

    @property
    def l0c_tiles(self) -> int:
        """One: the measured kernels alternate the cube and what follows it."""
        return 1

    def images(self, chip: ChipSpec, split: tuple[int, int, int], m0: int) -> list[int]:
        """One, as measured."""
        return [1]


@lru_cache(maxsize=256)
def conv_problem(args: KernelArgs) -> ConvProblem:
    """The launch as an implicit GEMM. 1×1 stride-1 windows see the image as one column."""
    x, w = args.inputs[0], args.inputs[1]
    assert x is not None and w is not None
    n, c, h, wd = x.shape
    co, _, kh, kw = w.shape
    ho, wo = args.outputs[0].shape[2:]
    attrs = {**get_operator("Conv").attrs, **dict(args.attrs)}
    win = conv_window((h, wd), (kh, kw), attrs)
    (sh, sw), (dh, dw), (top, left) = win.strides, win.dilations, win.begin
    if kh == kw == 1 and sh == sw == 1 and (ho, wo) == (h, wd) and not top and not left:
        h, wd, ho, wo = h * wd, 1, ho * wo, 1
    h, sh, step = read_rows(h, ho, kh, sh, top)
    window = Window(kh, kw, sh, sw, dh, dw, top, left, h, wd, wo, *(attrs["spread"] or (1, 1)))
    spec = ep.make_spec(args)
    g = int(attrs["group"])
    c1 = blocks(c // g, c0_of(x.dtype, x.layout))
    return ConvProblem(n * g, c1, h, wd, co // g, ho * wo, window, x.dtype, spec, step, g, x.layout)


def read_rows(h: int, ho: int, kh: int, stride: int, top: int) -> tuple[int, int, int]:
    """(image rows, stride, row step) of a window: one row high, it leaves rows out of L1."""
    if kh == 1 and stride > 1 and not top and (ho - 1) * stride < h:
        return ho, 1, stride
    return h, stride, 1


def n_tiles_once(t: Tiling) -> bool:
    """Weights of an n tile stay for all images and m tiles."""
    return t["resident"] == 2


def batch_tiles(t: Tiling, s: Share) -> int:
    """Tiles over the images of a share."""
    return blocks(s.batches, t["images"])


def l0_tile(p: ConvProblem, t: Tiling) -> tuple[int, int]:
    """Fractals of an L0C tile: M, N."""
    return p.fractals(min(p.m, t["m0"] * 16), t["images"]), t["n0"]


def tile_counts(t: Tiling, s: Share) -> tuple[int, int]:
    return blocks(s.m, t["m0"] * 16), blocks(s.n, t["n0"] * 16)


def span(t: Tiling, s: Share, mi: int) -> tuple[int, int]:
    """First output position and count of m tile mi."""
    size = t["m0"] * 16
    return s.m0 + mi * size, min(size, s.m - mi * size)


def conv_tilings(p: ConvProblem, chip: ChipSpec) -> Iterator[Tiling]:
    """Best block splits crossed with legal L0/L1 tiles."""
    found = False
    for slots in (2, 1):  # single-buffered L1 only where nothing else fits
        for split in p.splits(chip.cores.count):
            for tiling in _tiles(p, chip, split, slots):
                found = True
                yield tiling
        if found:
            return


def _tiles(
    p: ConvProblem, chip: ChipSpec, split: tuple[int, int, int], slots: int
) -> Iterator[Tiling]:
    bb, bm, bn = split
    while bn > 1 and blocks(p.n1, bn) % p.spec.pair:  # shares would part a block of the result
        bn = blocks(p.n1, blocks(p.n1, bn - 1))
    exact = bm * bn > 1 or bb == chip.cores.count
    mc, nc = blocks(p.m1, bm), blocks(p.n1, bn)
    fractal = p.fractal
    half_a, half_b = chip.core.l0a.size // 2 // fractal, chip.core.l0b.size // 2 // fractal
    l1 = chip.core.l1.size - p.spec.bias_bytes
    for m0 in _row_tiles(p, mc, half_a):
        rows = max_band(p, m0, bm)
        band = rows * p.width * p.c0 * p.dtype.size  # one C1 block
        tiles = product(p.images(chip, split, m0), p.n_tiles(nc, half_b, exact))
        for images, n0 in tiles:
            tall = p.fractals(min(p.m, m0 * 16), images)
            k0 = min(half_a // tall, half_b // n0, p.k1)
            if p.untuned(split, chip.cores.count):
                k0 = p.untuned_step(n0, k0)
            if k0 < 1 or tall * n0 > chip.core.l0c.size // 1024:
                continue
            if n0 % p.spec.pair and n0 < nc:
                continue
            if chip.core.fixp is None and ep.strip_blocks(p.spec, chip, m0, n0) < 1:
                continue
            weights = p.taps * n0 * fractal  # one C1 block
            image = band * images  # the same of the tile's images
            kept = nc > n0 and l1 - 2 * image * p.c1 >= slots * weights * p.c1
            # An image that stays in L1 is loaded once, not for every n tile: nothing to weigh.
            first = 1 if kept and chip.core.fixp is None else 0
            for resident in range(first, 3 if p.groups == 1 else 2):  # filters change by group
                fixed = (0, image * p.c1, weights * p.c1)[resident]
                moving = (image + weights, weights, image)[resident]
                panels = 2 if l1 - 2 * fixed >= slots * moving else 1
                room = (l1 - panels * fixed) // (slots * moving)
                if room < 1:
                    continue
                for c1 in {min(room, p.c1), min(room, p.c1, blocks(16, p.taps))}:
                    yield {
                        "bb": bb,
                        "bm": bm,
                        "bn": bn,
                        "m0": m0,
                        "n0": n0,
                        "images": images,
                        "k0": even_step(c1 * p.taps, k0),
                        "c1": c1,
                        "resident": resident,
                        "slots": slots,
                        "panels": panels,
                        "l0c": p.l0c_tiles,
                        "untuned": int(p.untuned(split, chip.cores.count)),
                    }


def even_step(k: int, most: int) -> int:
    """K step of a chunk of k blocks: its largest divisor up to `most`, unless that wastes L0.

    A narrow last step leaves the cube waiting for the next wide load.
    """
    most = min(k, most)
    divisor = next(d for d in range(most, 0, -1) if k % d == 0)
    return divisor if 2 * divisor > most else most


def _row_tiles(p: ConvProblem, mc: int, room: int) -> list[int]:
    """M tile sizes worth trying: whole output rows first, then the usual ones."""
    whole = lcm(p.window.out_width, 16) // 16
    sizes = [m for m in (2 * whole, whole) if 4 <= m <= min(16, mc, room)]
    return [*sizes, *(m for m in tile_sizes(mc, room) if m not in sizes)]


def max_band(p: ConvProblem, m0: int, bm: int) -> int:
    """Input rows that any m tile of m0 fractals can need, with M split over bm blocks."""
    w = p.window
    positions = min(p.m, m0 * 16)
    share_start = blocks(p.m1, bm) * 16 if bm > 1 else 0
    if positions % w.out_width == 0 and share_start % w.out_width == 0:
        out_rows = positions // w.out_width
    else:  # a tile may begin and end within a row
        out_rows = min(blocks(p.m, w.out_width), (positions - 2) // w.out_width + 2)
    return p.reach(out_rows)


@dataclass(frozen=True)
class BlockCycles:
    """Estimated cycles of block 0: its slowest pipe, what nothing hides; bytes that it moves."""

    body: float
    exposed: float
    moved: float


def block_cycles(p: ConvProblem, chip: ChipSpec, t: Tiling) -> BlockCycles:
    """What a block does, before it meets others at L2 and HBM."""
    core, es = chip.core, p.dtype.size
    s = p.first_share(t)
    m_tiles, n_tiles = tile_counts(t, s)
    batches = batch_tiles(t, s)
    images = s.batches / batches  # of a tile; all as the last, which has fewer
    full = images / t["images"]
    mc, nc = p.fractals(s.m, t["images"]), blocks(s.n)
    chunks = blocks(p.c1, t["c1"])
    steps = chunks * blocks(t["c1"] * p.taps, t["k0"])
    mmads = m_tiles * n_tiles * steps
    cube = (
        core.cube.blocks(mc, nc) * full * p.k1 * p.columns / core.cube.k[p.dtype.value]
        + mmads * core.cube.head
    )
    fractal = p.fractal
    per_load3d = core.mte1.load3d_cycles * p.window.stride_w * max(1, fractal / 512)
    load_a = mc * full * n_tiles * p.k1 * per_load3d
    load_b = nc * m_tiles * p.k1 * fractal / core.mte1.l0b_rate
    loads = 1 if p.packed else images
    mte1 = load_a + load_b + mmads * (loads * core.mte1.load3d_head + core.mte1.head)
    rate = min(core.mte2.rate, chip.l2_rate / (t["bb"] * t["bm"] * t["bn"]))
    band = p.max_band(min(t["m0"], mc), t["bm"]) * p.width * p.c0 * es * p.c1 * images
    x_loads = m_tiles * (1 if t["resident"] == 1 else n_tiles)
    weights = p.k1 * nc * fractal
    w_loads = 1 / batches if n_tiles_once(t) else m_tiles
    heads = (x_loads * images + w_loads * n_tiles) * chunks * core.mte2.head
    mte2 = (x_loads * band + w_loads * weights) / rate + heads
    out_bytes = nc * 16 * s.m * p.spec.out.itemsize
    share = blocks(s.m), nc
    drain = costs.drain_cycles(p.spec, chip, out_bytes, share, (t["m0"], t["n0"])) * images
    scalar = mmads * (11 * core.scalar.issue + loads * core.scalar.load3d_interval)
    tiles = m_tiles * n_tiles
    pieces = []
    if t["resident"]:
        panel = (band if t["resident"] == 1 else weights / n_tiles) / rate
        switches = m_tiles if t["resident"] == 1 else n_tiles / batches
        pieces.append((switches, panel))
        if t["panels"] == 1:
            mte2 += switches * (panel + costs.load_latency(chip))
    chunk = mte2 / (tiles * chunks)
    pieces.append((tiles * chunks, chunk))
    if not p.ahead:
        chunk += mte1 / (tiles * chunks) + costs.load_latency(chip)
    tile = l0_tile(p, t)
    tile_floor = costs.tile_floor(chip, tile, t["l0c"])
    floor = tiles * max(tile_floor, chunks * chunk / t["slots"])
    body = batches * max(cube, mte1, mte2, drain, scalar, floor)
    if not p.ahead and core.fixp is not None:
        body = max(body, batches * late_cycles(chip, max(mte1, cube), mmads, loads, pieces))
    fill = (band * t["c1"] / p.c1 + weights * t["c1"] / p.c1 / n_tiles) / rate
    slots = ep.l0c_slots(chip, tile, t["l0c"])
    exposed = batches * drain if slots == 1 else drain / tiles
    if slots == 1 and t["untuned"]:
        exposed = s.batches * tiles * p.held_cycles(chip, t)
    moved = batches * (x_loads * band + w_loads * weights + images * out_bytes)
    return BlockCycles(body, exposed + fill, moved)


def late_cycles(
    chip: ChipSpec, work: float, steps: int, loads: float, pieces: list[tuple[float, float]]
) -> float:
    """Cycles where a load is issued after the steps on what was loaded before: at least these.

    It is issued once the last of those steps are in MTE1's queue, and then is waited for.

    Args:
        work, steps: cycles of the slower of cube and MTE1 on all K steps, and their number.
        loads: load3d of a step; load2d, a flag and the wait for one are in the queue beside them.
        pieces: of chunks, and of panels: how many, and the cycles of a load.
    """
    queued, late = chip.core.scalar.queue_depth / (loads + 3), 0.0
    for count, load in pieces:
        if count * queued < steps:
            each = load + costs.load_latency(chip)
            late = max(late, count * each + work * (1 - count * queued / steps))
    return late


def conv_estimate(p: ConvProblem, chip: ChipSpec, t: Tiling) -> float:
    """Cycles of a tiling: the largest block or the memory, plus what cannot overlap."""
    block, block_dim = block_cycles(p, chip, t), t["bb"] * t["bm"] * t["bn"]
    hot = block.body + block_dim * block.moved / chip.l2_rate
    total = max(block.body, hbm_cycles(p, chip, t)) + HOT * hot + block.exposed
    return by_rows(p, t, total + chip.cycles(chip.scheduler.per_block) * block_dim)


def hbm_cycles(p: ConvProblem, chip: ChipSpec, t: Tiling, others: int = 0) -> float:
    """Cycles of HBM where nothing lies in L2; `others`: bytes besides image, weights, result."""
    unique = p.batch * p.m * p.n1 * 16 * p.dtype.size + p.image_bytes + others
    block_dim = t["bb"] * t["bm"] * t["bn"]
    weights = costs.cold_cycles(chip, p.k1 * p.n1 * p.groups * p.fractal, block_dim)
    return max(unique / chip.hbm_rate, weights)


def by_rows(p: ConvProblem, t: Tiling, cycles: float) -> float:
    """Among equals, whole output rows per tile: every band alike, as CANN cuts them."""
    whole = min(p.m, t["m0"] * 16) % p.window.out_width == 0
    return cycles if whole else cycles * 1.05
