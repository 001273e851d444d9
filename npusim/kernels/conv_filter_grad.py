"""Conv2DBackpropFilter: the gradient of a convolution by its weights, on the cube.

dW [Co, C1·kh·kw·16] = dYᵀ · img2col(X): M = Co1, N = C1·kh·kw, K = output positions, image by
image. dY is transposed by load2d on the way to L0A, X goes through load3d into L0B, and L0C sums
over all positions of a block before a tile leaves, in fp32, to FRACTAL_Z.

By default blocks split the images, and each adds the whole dW to GM atomically. Where Co1 and C1
are powers of two, or the blocks do not divide the images, they may split Co1 and C1 instead, and
positions only as far as the block count demands. (The measured 512→512 3×3 gradient on 32 blocks
takes a third of the time that 32 writes of its dW would; those of InceptionV3's channel counts
take just that time. Which shapes CANN's bank of tilings holds is not published.)

Tiling: bb, br, bm, bn blocks over images, positions, Co1, C1; m0, n0, k0 the L0 tile; kc the
positions of an L1 chunk (fractals), of `images` images where a chunk holds all their positions;
slots the L1 buffers of a chunk. With a split batch the L0 tile of a window is that of CANN's public
default tiling (see `default_sizes`), and 1×1 windows have one buffer: the measured kernels do not
overlap their loads and products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.ir.layout import blocks
from npusim.kernels import epilogue as ep
from npusim.kernels.conv_tiling import ConvProblem, max_band, read_rows
from npusim.kernels.cube_tiling import tile_sizes
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.queues import Alloc
from npusim.ops import get_operator
from npusim.ops.window import Window as OpWindow
from npusim.program.effects import Window
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

STRIP = 64 << 10  #: UB bytes of one strip of dW on its way out
Pair = tuple[int, int]  #: a range, as (first, count)
#: Images, positions, Co1 blocks of a chunk.
Span3 = tuple[Pair, Pair, Pair]


@dataclass(frozen=True)
class Part:
    """A block's share: images, fractals of positions, blocks of Co, blocks of C."""

    image0: int
    images: int
    k0: int
    k: int
    m0: int
    m: int
    n0: int
    n: int


@lru_cache(maxsize=256)
def filter_problem(args: KernelArgs) -> ConvProblem:
    """The convolution whose weights' gradient is asked; inputs dY, X."""
    dy, x = args.inputs[0], args.inputs[1]
    assert dy is not None and x is not None
    n, c, h, wd = x.shape
    co, _, kh, kw = args.outputs[0].shape
    ho, wo = dy.shape[2:]
    op = get_operator(args.op_type)
    win = OpWindow.of((h, wd), (kh, kw), {**op.attrs, **dict(args.attrs)})
    (sh, sw), (top, left) = win.strides, win.begin
    if kh == kw == sh == sw == 1 and (ho, wo) == (h, wd) and not top and not left:
        h, wd, ho, wo = h * wd, 1, ho * wo, 1
    h, sh, step = read_rows(h, ho, kh, sh, top)
    window = Window(kh, kw, sh, sw, 1, 1, top, left, h, wd, wo)
    spec = ep.EpilogueSpec(None, (), args.outputs[0].dtype.np)
    return ConvProblem(n, blocks(c), h, wd, co, ho * wo, window, dy.dtype, spec, step)


def part_of(p: ConvProblem, t: Tiling, block: int) -> Part:
    """The share of block `block`."""
    rest, ni = divmod(block, t["bn"])
    rest, mi = divmod(rest, t["bm"])
    bi, ri = divmod(rest, t["br"])

    def cut(n: int, parts: int, i: int) -> tuple[int, int]:
        size = blocks(n, parts)
        return i * size, min(size, n - i * size)

    return Part(
        *cut(p.batch, t["bb"], bi),
        *cut(p.m1, t["br"], ri),
        *cut(p.n1, t["bm"], mi),
        *cut(p.c1, t["bn"], ni),
    )


@kernel("Conv2DBackpropFilter")
class Conv2DBackpropFilter(TileKernel):
    """dW on the cube. Inputs dY, X; the output is zeroed before where blocks add to it."""

    core_type = "AIC"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Types, layouts and windows this kernel does not do."""
        dy, x, dw = args.inputs[0], args.inputs[1], args.outputs[0]
        assert dy is not None and x is not None
        if chip.core.fixp is not None:
            return "L0C does not leave through the vector unit"
        if dy.dtype is not DType.FLOAT16 or dw.dtype is not DType.FLOAT32:
            return "fp16 gradients in, fp32 out"
        if any(d != 1 for d in args.get("dilations") or ()):
            return "dilated windows"
        if (dy.layout, x.layout, dw.layout) != (
            Layout.NC1HWC0,
            Layout.NC1HWC0,
            Layout.FRACTAL_Z,
        ):
            return "needs NC1HWC0 inputs and a FRACTAL_Z output"
        return ""

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Block splits crossed with legal L0/L1 tiles."""
        p = filter_problem(args)
        for split in _splits(p, chip.cores.count):
            windowed = split[0] > 1 and p.taps > 1
            slots = 2 if split[0] == 1 or windowed else 1
            sizes = default_sizes(p, chip) if windowed else None
            yield from filter_tiles(p, chip, split, strip_room(chip), slots, sizes=sizes)

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """max over the pipes of the first block, and its last store."""
        return filter_estimate(filter_problem(args), chip, tiling)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Traffic by the loop nest; classes by shares and bands."""
        return filter_plan(filter_problem(args), args, tiling, (0, 1, len(args.inputs)))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """See the module's text."""
        p = filter_problem(args)
        return FilterBody(
            k, p, tiling, part_of(p, tiling, block), (0, 1, len(args.inputs)), strip_room(k.chip)
        ).run()


def filter_plan(
    p: ConvProblem, args: KernelArgs, tiling: Tiling, operands: tuple[int, int, int]
) -> Plan:
    """The plan of a tiling; operands: where dY, X and dW are."""
    t = tiling
    block_dim = t["bb"] * t["br"] * t["bm"] * t["bn"]
    dy_total = x_total = dw_total = 0
    keys = []
    for block in range(block_dim):
        s = part_of(p, t, block)
        spans = [_positions(p, t, s, i) for i in range(blocks(s.k, t["kc"]))]
        rows = tuple(b - a for a, b in (p.band(*x) for x in spans))
        held = sum(count for _, count, _ in _n_tiles(p, t, s)) * blocks(s.m, t["m0"])
        x_total += s.images * sum(rows) * p.width * held * 16 * p.dtype.size
        positions = sum(n for _, n in spans)
        n_tiles = blocks(s.n * p.taps, t["n0"])
        dy_total += s.images * positions * s.m * n_tiles * 16 * p.dtype.size
        dw_total += s.m * s.n * p.taps * 1024
        keys.append((s.images, rows, positions, s.m, s.n))
    dy, x, dw = args.operands[operands[0]].nbytes, p.image_bytes, args.operands[operands[2]].nbytes
    traffic = {
        operands[0]: Traffic(min(dy, dy_total), dy_total),
        operands[1]: Traffic(min(x, x_total), x_total),
        operands[2]: Traffic(min(dw, dw_total), dw_total),
    }
    return Plan(tiling, block_dim, traffic, group_blocks(keys))


def _splits(p: ConvProblem, cores: int) -> list[tuple[int, int, int, int]]:
    """(bb, br, bm, bn): see the module's text. Exact ones ranked by rows split, then by loads."""
    found = {}
    by_batch = (blocks(p.batch, blocks(p.batch, cores)), 1, 1, 1)
    tuned = _power_of_two(p.n1) and _power_of_two(p.c1)
    if cores <= p.batch and (tuned or p.batch % cores):
        for bm in (d for d in range(1, p.n1 + 1) if p.n1 % d == cores % d == 0):
            for bn in (d for d in range(1, p.c1 + 1) if p.c1 % d == cores // bm % d == 0):
                br = cores // bm // bn
                if p.m1 % br == 0:
                    found[1, br, bm, bn] = (br, p.n1 // bm + p.c1 // bn)
    exact = sorted(found, key=lambda s: found[s])[:4]
    return exact if exact and cores < p.batch else [*exact, by_batch]


def _power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def strip_room(chip: ChipSpec) -> int:
    """UB bytes of each of the two strips that dW leaves through."""
    return min(STRIP, chip.core.ub.size // 2)


def default_sizes(p: ConvProblem, chip: ChipSpec) -> Pair | None:
    """M and N of the L0 tile in CANN's public default tiling; None: the window does not fit.

    N is one channel block's window, M the largest divisor of Co1 that L0C and L0A hold beside it.
    """
    fractal = 256 * p.dtype.size
    most = min(chip.core.l0c.size // 1024 // p.taps, chip.core.l0a.size // 2 // fractal)
    if p.taps > chip.core.l0b.size // 2 // fractal or most < 1:
        return None
    return max(d for d in range(1, min(p.n1, most) + 1) if p.n1 % d == 0), p.taps


def filter_tiles(
    p: ConvProblem,
    chip: ChipSpec,
    split: tuple[int, int, int, int],
    room: int,
    slots: int,
    longest: int = 1 << 30,
    sizes: Pair | None = None,
    made: bool = False,
) -> Iterator[Tiling]:
    """Legal L0/L1 tiles of a block split.

    Args:
        room: UB bytes for a strip of dW.
        slots: buffers of L1 chunks; longest: fractals of positions of a chunk at most.
        sizes: the M and N of the L0 tile, whose K is one fractal; None: any.
        made: two chunks of dY are made in L1; for n tiles after the first they come beside X.
    """
    bb, br, bm, bn = split
    k, m, n = blocks(p.m1, br), blocks(p.n1, bm), blocks(p.c1, bn) * p.taps
    fractal = 256 * p.dtype.size
    half_a, half_b = chip.core.l0a.size // 2 // fractal, chip.core.l0b.size // 2 // fractal
    m_sizes = sorted({*tile_sizes(m, half_a), *(x for x in (m,) if x <= half_a)})
    n_sizes = sorted({*tile_sizes(n, half_b), *(x for x in (p.taps, n) if x <= half_b)})
    if sizes is not None:
        m_sizes, n_sizes = [sizes[0]], [sizes[1]]
    for m0 in m_sizes:
        for n0 in n_sizes:
            if m0 * n0 * 1024 > chip.core.l0c.size or m0 * 1024 > room:
                continue
            k0 = min(half_a // m0, half_b // n0, k) if sizes is None else 1
            most = blocks(k, blocks(k, longest))
            for kc in sorted({most, *tile_sizes(most, 64), min(most, 64)}, reverse=True):
                dy, x = _chunk_bytes(p, m0, n0, kc, br)
                held = max(slots * (dy + x), 3 * dy + x if made and n0 < n else 0)
                fit = chip.core.l1.size // held
                if fit:
                    break
            else:
                continue
            images = min(fit, blocks(p.batch, 16 * bb)) if kc == k else 1
            yield {
                "bb": bb, "br": br, "bm": bm, "bn": bn, "m0": m0, "n0": n0,
                "k0": min(k0, kc), "kc": kc, "images": images, "slots": slots,
            }  # fmt: skip


def _chunk_bytes(p: ConvProblem, m0: int, n0: int, kc: int, br: int) -> tuple[int, int]:
    """L1 bytes of a chunk of one image: dY, and the band of X under an n tile."""
    c1 = min(p.c1, blocks(n0 - 1, p.taps) + 1)
    rows = max_band(p, kc, br)
    return m0 * kc * 256 * p.dtype.size, c1 * rows * p.width * 16 * p.dtype.size


def _positions(p: ConvProblem, t: Tiling, s: Part, i: int) -> tuple[int, int]:
    """First position and count of chunk i of a share."""
    first = s.k0 + i * t["kc"]
    size = min(t["kc"], s.k0 + s.k - first) * 16
    return first * 16, min(size, p.m - first * 16)


def _n_tiles(p: ConvProblem, t: Tiling, s: Part) -> list[tuple[int, int, tuple[int, int]]]:
    """Per n tile: first C1 block, C1 blocks that it touches, (first N block, N blocks)."""
    tiles = []
    end = (s.n0 + s.n) * p.taps
    for lo in range(s.n0 * p.taps, end, t["n0"]):
        hi = min(lo + t["n0"], end)
        c_lo, c_hi = lo // p.taps, blocks(hi, p.taps)
        tiles.append((c_lo, c_hi - c_lo, (lo, hi - lo)))
    return tiles


def filter_estimate(p: ConvProblem, chip: ChipSpec, t: Tiling) -> float:
    core, s = chip.core, part_of(p, t, 0)
    n = s.n * p.taps
    m_tiles, tiles = blocks(s.m, t["m0"]), _n_tiles(p, t, s)
    k = s.images * s.k
    chunks = blocks(s.k, t["kc"])
    steps = s.images * chunks * blocks(t["kc"], t["k0"]) * m_tiles * len(tiles)
    cube = k * s.m * n + steps * core.cube.head
    fractal = 256 * p.dtype.size
    load_a = k * s.m * len(tiles) * fractal / core.mte1.l0a_rate
    load_b = k * n * m_tiles * core.mte1.load3d_cycles * p.window.stride_w
    mte1 = load_a + load_b + steps * (core.mte1.load3d_head + core.mte1.head)
    rate = min(core.mte2.rate, chip.l2_rate / (t["bb"] * t["br"] * t["bm"] * t["bn"]))
    band = sum(c for _, c, _ in tiles) * m_tiles * max_band(p, t["kc"], t["br"]) * chunks
    loads = s.images * band * p.width * 16 * p.dtype.size + k * s.m * len(tiles) * fractal
    heads = 2 * blocks(s.images, t["images"]) * chunks * m_tiles * len(tiles) * core.mte2.head
    out = s.m * n * 1024
    drain = out / core.mte3.rate + out / (core.vector.l0c_rate or core.mte3.rate)
    pipes = (cube, mte1, loads / rate + heads, drain)
    last = drain / m_tiles / len(tiles)
    # A single tile in L0C: the cube waits while one leaves, but for what UB takes at once.
    if ep.l0c_slots(chip, (t["m0"], t["n0"])) == 1:
        held = max(0, t["m0"] * t["n0"] * 1024 - 2 * strip_room(chip))
        last += m_tiles * len(tiles) * held / core.mte3.rate
        last += out / (core.vector.l0c_rate or core.mte3.rate)
    return max(pipes) + 0.2 * sum(pipes) + last


class FilterBody:
    """The program of one block; operands: where dY, X and dW are; room: of a strip in UB."""

    def __init__(
        self, k: Kernel, p: ConvProblem, t: Tiling, s: Part, operands: tuple[int, int, int],
        room: int,
    ) -> None:  # fmt: skip
        self.k, self.p, self.t, self.s, self.operands = k, p, t, s, operands
        m0, n0 = t["m0"], t["n0"]
        dy, x = (t["images"] * b for b in _chunk_bytes(p, m0, n0, t["kc"], t["br"]))
        fractal = 256 * p.dtype.size
        self._buffers(dy, x)
        self.l0 = k.queue(
            "L0A", m0 * t["k0"] * fractal, 2, Pipe.MTE1, Pipe.M, ("L0B", n0 * t["k0"] * fractal)
        )
        l0c = ep.l0c_slots(k.chip, (m0, n0))
        self.l0c = k.queue("L0C", m0 * n0 * 1024, l0c, Pipe.M, Pipe.V)
        self.nu = min(n0, room // (m0 * 1024))
        self.out = k.queue("UB", self.nu * m0 * 1024, 2, Pipe.V, Pipe.MTE3)
        self.atomic = t["bb"] * t["br"] > 1

    def _buffers(self, dy: int, x: int) -> None:
        """L1 for chunks of dY and X of so many bytes."""
        self.l1 = self.k.queue("L1", dy, self.t["slots"], Pipe.MTE2, Pipe.MTE1, ("L1", x))

    ahead = True  #: a chunk's load is issued before the products of the one before it

    def m_tiles(self) -> list[tuple[int, int]]:
        """(first, count) of Co1 blocks of every m tile."""
        s, m0 = self.s, self.t["m0"]
        return [(lo, min(m0, s.m0 + s.m - lo)) for lo in range(s.m0, s.m0 + s.m, m0)]

    def chunks(self, rows: tuple[int, int]) -> Iterator[Span3]:
        """The L1 chunks under an m tile in order: images, positions, rows as (first, count)."""
        s, t = self.s, self.t
        for at in range(blocks(s.images, t["images"])):
            b = at * t["images"]
            images = (s.image0 + b, min(t["images"], s.images - b))
            for i in range(blocks(s.k, t["kc"])):
                yield images, _positions(self.p, t, s, i), rows

    def run(self) -> Iterator[Instr]:
        """All tiles of the share."""
        tiles = [
            (rows, (c_lo, c_count), columns)
            for rows in self.m_tiles()
            for c_lo, c_count, columns in _n_tiles(self.p, self.t, self.s)
        ]
        self.loads = iter(
            [
                (images, span, rows, channels)
                for rows, channels, _ in tiles
                for images, span, _ in self.chunks(rows)
            ]
        )
        if self.ahead:
            yield from self._load_next()
        for rows, channels, columns in tiles:
            yield from self._tile(rows, channels, columns)

    def _load_next(self) -> Iterator[Instr]:
        """The next chunk of the share, if there is one."""
        chunk = next(self.loads, None)
        if chunk is not None:
            yield from self._load(*chunk)

    def _tile(
        self, rows: tuple[int, int], channels: tuple[int, int], columns: tuple[int, int]
    ) -> Iterator[Instr]:
        """Sum one tile over the share's positions, and store it."""
        alloc = yield from self.l0c.alloc()
        c = alloc.region((columns[1], rows[1], 16, 16), ep.F32)
        first = True
        column = columns[0] - channels[0] * self.p.taps
        for images, span, _ in self.chunks(rows):
            yield from self._load_next()
            yield from self._deque()
            for image in range(images[1]):
                for lo in range(0, blocks(span[1]), self.t["k0"]):
                    at_x = (image, images[1], channels[1], column)
                    yield from self._step(c, span, at_x, lo, first)
                    first = False
            yield from self._free()
        yield self.l0c.enque()
        yield from self._drain(rows, columns)

    def _load(self, images: Pair, span: Pair, rows: Pair, channels: Pair) -> Iterator[Instr]:
        """dY and the band of X of a chunk → L1."""
        alloc = yield from self.l1.alloc()
        yield self._load_dy(alloc, images, span, rows)
        yield self._load_x(self.l1.back_partner, images, span, channels)
        yield self.l1.enque()

    def _deque(self) -> Iterator[Instr]:
        """MTE1 waits for the oldest chunk."""
        yield self.l1.deque()
        self.chunk = self.l1.front, self.l1.front_partner

    def _free(self) -> Iterator[Instr]:
        """MTE1 has read the chunk."""
        yield self.l1.free()

    def _load_dy(self, alloc: Alloc, images: Pair, span: Pair, rows: Pair) -> Instr:
        """dY of a chunk → (images, Co1 blocks, positions in whole fractals, 16) in L1."""
        p, (first, count) = self.p, span
        dy = Region.dense(GM, self.operands[0], 0, (p.batch, p.n1, p.m, 16), p.dtype.np)
        src = dy[images[0] : sum(images), rows[0] : sum(rows), first : first + count]
        padded = blocks(count) * 16
        whole = alloc.region((images[1], rows[1], padded, 16), p.dtype.np)
        return self.k.load(whole[:, :, :count], src, whole if count < padded else None)

    def _load_x(self, alloc: Alloc, images: Pair, span: Pair, channels: Pair) -> Instr:
        """The band of X under a chunk → (images, C1 blocks, rows, W, 16) in L1."""
        p = self.p
        top, bottom = p.band(*span)
        operand = self.operands[1]
        x = p.image(operand, self.k.args.operands[operand].shape)
        band = x[images[0] : sum(images), channels[0] : sum(channels), top:bottom]
        return self.k.load(alloc.region(band.shape, p.dtype.np), band)

    def _step(
        self, c: Region, span: Pair, at_x: tuple[int, int, int, int], lo: int, first: bool
    ) -> Iterator[Instr]:  # fmt: skip
        """One k step: fractals of positions from `lo` within the chunk.

        at_x: which image of how many in the chunk, its C1 blocks, first N block within them.
        """
        k, p, dtype = self.k, self.p, self.p.dtype.np
        n_b, m_b = c.shape[:2]
        start, count = span
        image, images, c1, column = at_x
        width = min(self.t["k0"], blocks(count) - lo)
        top, bottom = p.band(start, count)
        l0a = yield from self.l0.alloc()
        l0b = self.l0.back_partner

        def load_dy() -> Instr:
            dy = self.chunk[0].region((images, m_b, blocks(count) * 16, 16), dtype)
            part = dy[image, :, lo * 16 : (lo + width) * 16].split(1, 16).permute(0, 1, 3, 2)
            return k.load_l0(l0a.region((m_b, width, 16, 16), dtype), part)

        def load_x() -> Instr:
            x = self.chunk[1].region((images, c1, bottom - top, p.width, 16), dtype)[image]
            dst = l0b.region((width, n_b, 16, 16), dtype).permute(0, 1, 3, 2)
            valid = min(width * 16, count - lo * 16)
            return k.load3d(dst, x, p.window, start + lo * 16, valid, column, top)

        def product() -> Instr:
            a = l0a.region((m_b, width, 16, 16), dtype)
            return k.mmad(c, a, l0b.region((width, n_b, 16, 16), dtype), not first)

        key = (m_b, n_b, width)
        yield k.memo(("load2d", *key), load_dy)
        yield k.memo(("load3d", *key), load_x)
        yield self.l0.enque()
        yield self.l0.deque()
        yield k.memo(("mmad", *key), product)
        yield self.l0.free()

    def _drain(self, rows: tuple[int, int], columns: tuple[int, int]) -> Iterator[Instr]:
        """A full tile L0C → UB → GM, in strips of N blocks."""
        k, (m_lo, m_b), (n_lo, n_b) = self.k, rows, columns
        yield self.l0c.deque()
        c = self.l0c.front.region((n_b, m_b, 16, 16), ep.F32)
        for at in range(0, n_b, self.nu):
            nu = min(self.nu, n_b - at)
            slot = yield from self.out.alloc()
            strip = slot.region((nu, m_b, 16, 16), ep.F32)
            yield k.l0c_to_ub(strip, c[at : at + nu])
            yield self.out.enque()
            yield self.out.deque()
            whole = k.operand(self.operands[2])
            dw = whole[n_lo + at : n_lo + at + nu, m_lo : m_lo + m_b]
            yield k.store(dw, strip, atomic=self.atomic)
            yield self.out.free()
        yield self.l0c.free()
