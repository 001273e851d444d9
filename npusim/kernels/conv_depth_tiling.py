"""What two convolutions in one kernel compute, and how a block's share is cut into tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from npusim.chip.spec import ChipSpec
from npusim.ir import EpilogueStep, Layout
from npusim.ir.layout import blocks
from npusim.kernels import epilogue as ep
from npusim.kernels import epilogue_costs as costs
from npusim.kernels.conv_tiling import HOT, ConvProblem, conv_problem, even_step, max_band, span
from npusim.kernels.cube_tiling import Share, share, tile_sizes, work_splits
from npusim.program.kernel import KernelArgs, OperandSpec, Plan, Tiling, Traffic, group_blocks

PIECES = 8  #: in which the first weights arrive, so that the cube need not wait for the last
EXPOSED = 0.1  #: of the time with all operands in L2, where HBM is what takes longest
RELU = (EpilogueStep("Relu"),)


def first_of(args: KernelArgs) -> KernelArgs:
    """The launch of the first convolution alone: inputs 0 to 2."""
    x, w = args.inputs[0], args.inputs[1]
    assert x is not None and w is not None
    out = args.outputs[0]
    between = OperandSpec((out.shape[0], w.shape[0], *out.shape[2:]), out.dtype, Layout.NC1HWC0)
    attrs = {**dict(args.attrs), "group": 1, "offset_x": 0}
    relu = RELU if attrs.pop("relu") else ()
    return KernelArgs("Conv", args.inputs[:3], (between,), tuple(sorted(attrs.items())), relu)


def second_of(args: KernelArgs) -> KernelArgs:
    """The launch of the second convolution alone: inputs 3 and on."""
    steps = tuple(
        s if s.operand is None else replace(s, operand=s.operand - 2) for s in args.epilogue
    )
    inputs = (*first_of(args).outputs, *args.inputs[3:])
    attrs = (("group", 1), ("kernel_shape", (1, 1)))
    return KernelArgs("Conv", inputs, args.outputs, attrs, steps)


@dataclass(frozen=True)
class Pair:
    """Both convolutions; their biases and steps name operands of the common launch."""

    first: ConvProblem
    second: ConvProblem

    @cached_property
    def mid(self) -> int:
        """Blocks of channels between."""
        return self.first.n1

    @cached_property
    def weights(self) -> int:
        """Bytes of both weights in L1."""
        return (self.first.k1 + self.second.n1) * self.mid * self.first.fractal

    def split(self, t: Tiling) -> Tiling:
        """The tiling as the first convolution sees it: all channels in one tile of one block."""
        return {**t, "bn": 1, "n0": self.mid}

    def share(self, t: Tiling, block: int) -> Share:
        """Images and positions of a block."""
        return share(self.first, self.split(t), block)

    def tiles(self, t: Tiling, s: Share) -> list[tuple[int, int]]:
        """First position and count of the tiles of an image of a share."""
        return [span(t, s, i) for i in range(blocks(s.m, t["m0"] * 16))]

    def pieces(self, t: Tiling) -> tuple[int, int]:
        """K blocks of the first weights that arrive at a time, whole steps; how many times."""
        steps = blocks(self.first.k1, t["k0"])
        size = next(n for n in range(blocks(steps, PIECES), steps + 1) if steps % n == 0)
        return size * t["k0"], steps // size

    def slots(self, t: Tiling) -> int:
        """Bands and tiles between in L1: one is in use while the next one comes."""
        s = self.share(t, 0)
        return min(2, s.batches * blocks(s.m, t["m0"] * 16))

    def band(self, t: Tiling) -> int:
        """Bytes of the rows that a tile of the first convolution needs, at most."""
        one = self.first
        rows = max_band(one, t["m0"], t["bm"])
        return rows * one.width * one.c1 * one.c0 * one.dtype.size

    def l1_bytes(self, t: Tiling, chip: ChipSpec) -> int:
        """What a block needs of L1: all weights, bands, tiles between."""
        one, (size, count) = self.first, self.pieces(t)
        columns = blocks(self.second.n1, t["n0"]) * t["n0"]
        weights = (size * count + columns) * self.mid * one.fractal
        tiles = self.slots(t) * (self.band(t) + t["m0"] * self.mid * one.fractal)
        biases = one.spec.bias_bytes + self.second.spec.bias_bytes
        return weights + tiles + (biases if chip.core.fixp is not None else 0)

    def parts(self, chip: ChipSpec, m0: int) -> tuple[ep.EpilogueSpec, ep.EpilogueSpec]:
        """Both epilogues, with what each has to leave of UB to the other: half of it, at least."""
        if chip.core.fixp is not None:
            return self.first.spec, self.second.spec
        half = chip.core.ub.size // 2
        first = replace(self.first.spec, taken=half)
        columns = ep.strip_blocks(first, chip, m0, self.mid)
        taken = columns * ep.strip_bytes(first, m0) + first.bias_bytes
        return first, replace(self.second.spec, taken=taken)


@lru_cache(maxsize=256)
def pair_of(args: KernelArgs) -> Pair:
    """The launch as two implicit GEMMs over the same positions."""
    second = conv_problem(second_of(args))
    bias = None if second.spec.bias is None else 4
    spec = replace(second.spec, bias=bias, steps=args.epilogue)
    return Pair(conv_problem(first_of(args)), replace(second, spec=spec))


def tilings(p: Pair, chip: ChipSpec) -> Iterator[Tiling]:
    """Block splits over images and positions crossed with tiles that fit."""
    one = p.first
    for bb, bm, _ in work_splits(one.batch, one.m1, 1, chip.cores.count):
        for m0 in tile_sizes(blocks(one.m1, bm), 16):
            for n0 in tile_sizes(p.second.n1, 16):
                tiling = _tiling(p, chip, (bb, bm), m0, n0)
                if tiling is not None:
                    yield tiling


def _tiling(p: Pair, chip: ChipSpec, split: tuple[int, int], m0: int, n0: int) -> Tiling | None:
    """Tiles of m0 × all channels between, then of m0 × n0; None where they do not fit."""
    one, core = p.first, chip.core
    half_a, half_b = core.l0a.size // 2 // one.fractal, core.l0b.size // 2 // one.fractal
    k0 = min(half_a // m0, half_b // p.mid, one.k1)
    k2 = min(half_a // m0, half_b // n0, p.mid)
    room = core.l0c.size // 1024 // m0  # columns of L0C: a tile of each, then a second one
    if k0 < 1 or k2 < 1 or p.mid + n0 > room:
        return None
    l02 = 2 if p.mid + 2 * n0 <= room else 1
    l01 = 2 if 2 * p.mid + l02 * n0 <= room else 1
    k0, k2 = even_step(one.k1, k0), even_step(p.mid, k2)
    t = {
        "bb": split[0], "bm": split[1], "m0": m0, "n0": n0, "k0": k0, "k2": k2,
        "first": l01, "second": l02,
    }  # fmt: skip
    if p.l1_bytes(t, chip) > core.l1.size:
        return None
    if core.fixp is None:
        first, second = p.parts(chip, m0)
        if min(ep.strip_blocks(first, chip, m0, p.mid), ep.strip_blocks(second, chip, m0, n0)) < 1:
            return None
    return t


class _Cycles(NamedTuple):
    """Cycles of a tile, or of all."""

    first: float  #: of the cube, or of MTE1 that feeds it
    second: float
    between: float  #: out of L0C, of the first; `into` its way from UB into L1
    into: float
    out: float  #: out of L0C, of the second; `store` its way from UB to GM
    store: float
    band: float
    residual: float
    issue: float  #: of the scalar unit


def estimate(p: Pair, chip: ChipSpec, t: Tiling) -> float:
    """The way of the first tile to the vector unit, then the longest pipe for all that is left."""
    one, two, head = p.first, p.second, chip.core.mte2.head
    s, n = p.share(t, 0), t["bb"] * t["bm"]
    rate = min(chip.core.mte2.rate, chip.l2_rate / n)
    x, every = _cycles(p, chip, t, rate, s)
    columns, pieces = blocks(two.n1, t["n0"]), p.pieces(t)[1]
    weights = one.k1 * p.mid * one.fractal / rate + head * pieces
    more = two.n1 * p.mid * one.fractal / rate + head * (columns + 2)
    start = costs.load_latency(chip) + x.band
    start += max(weights + x.first / pieces, weights / pieces + x.first)
    if s.batches == 1 and s.m <= t["m0"] * 16:
        begin = max(start + x.between + x.into, x.band + weights + more / columns)
        last = (x.second + x.out) / columns
        rest = max(x.second / columns + x.out, more * (1 - 1 / columns) + x.residual + last)
        body = begin + max(x.second, rest) + x.store / columns
    else:
        waits = s.batches * blocks(s.m, t["m0"] * 16) * columns * costs.tile_floor(chip, (1, 1), 1)
        body = start + _steady(t, x, every, columns, more, waits) + x.store / columns
    moved = n * (every.band + every.residual + weights + more) * rate
    images = 1 + sum(step.operand is not None for step in two.spec.steps)
    unique = one.image_bytes + one.batch * two.m * two.n1 * 16 * one.dtype.size * images
    cold = max(unique / chip.hbm_rate, costs.cold_cycles(chip, p.weights, n))
    launch = chip.cycles(chip.scheduler.per_block) * n
    body = max(body, moved / chip.l2_rate)
    return max(body, cold + EXPOSED * body) + HOT * body + launch


def _steady(
    t: Tiling, x: _Cycles, every: _Cycles, columns: int, more: float, waits: float
) -> float:
    """The longest pipe for all tiles, from when the first convolution of the first one is done.

    The cube works in order: columns of the second that fill L0C hold up the first, too.

    Args:
        columns: tiles of the second convolution in an m tile.
        more: cycles to load the second weights.
        waits: cycles from the last product of a column to the first of the next one in its
            place, beside those out of L0C; of all columns.
    """
    late = max(0, columns - t["second"]) / columns  # of the columns, that wait for L0C
    trip = (every.second + every.out + waits) / t["second"]
    held = (1 - late) * every.second + late * max(every.out, trip)
    cube = every.first - x.first + max(every.second, held)
    if t["first"] == 1:
        cube = max(cube, every.first + every.between - x.first - x.between)
    reader = every.between + every.out + max(0.0, x.first - x.between)
    reader += every.second if t["second"] == 1 else 0.0
    feeding = max(cube, more + every.band + every.residual, every.issue) + x.out / columns
    emptying = max(reader, every.into + every.store) + x.second / columns
    return max(feeding, emptying)


def _cycles(p: Pair, chip: ChipSpec, t: Tiling, rate: float, s: Share) -> tuple[_Cycles, _Cycles]:
    """Of a full tile and of all tiles of a share; each loads all weights, the last one too."""
    full, rest = divmod(blocks(s.m), t["m0"])
    x = _tile(p, chip, t, rate)
    last = _tile(p, chip, {**t, "m0": rest}, rate) if rest else _Cycles(*[0.0] * len(x))
    every = (s.batches * (full * a + b) for a, b in zip(x, last, strict=True))
    return x if full else last, _Cycles(*every)


def _tile(p: Pair, chip: ChipSpec, t: Tiling, rate: float) -> _Cycles:
    """Cycles of a full tile where MTE2 loads so many bytes a cycle."""
    one, two, core, m0 = p.first, p.second, chip.core, t["m0"]
    columns, k = blocks(two.n1, t["n0"]), core.cube.k[one.dtype.value] / one.c0
    steps = blocks(one.k1, t["k0"]), blocks(p.mid, t["k2"]) * columns
    first = core.cube.blocks(m0, p.mid) * one.k1 / k + steps[0] * core.cube.head
    second = core.cube.blocks(m0, two.n1) * p.mid / k + steps[1] * core.cube.head
    l0b = one.fractal / core.mte1.l0b_rate
    feed = m0 * one.k1 * core.mte1.load3d_cycles * one.window.stride_w + one.k1 * p.mid * l0b
    first = max(first, feed + steps[0] * (core.mte1.load3d_head + core.mte1.head))
    feed = m0 * p.mid * columns * one.fractal / core.mte1.l0a_rate + p.mid * two.n1 * l0b
    second = max(second, feed + steps[1] * 2 * core.mte1.head)
    issue = sum(steps) * 11 * core.scalar.issue + steps[0] * core.scalar.load3d_interval
    band = p.band(t) / rate + core.mte2.head
    between, into, out, store, residual = _leaving(p, chip, t, rate)
    return _Cycles(first, second, between, into, out, store, band, residual, issue)


def _leaving(p: Pair, chip: ChipSpec, t: Tiling, rate: float) -> tuple[float, ...]:
    """between, into, out, store, residual of a full tile."""
    core, m0, columns = chip.core, t["m0"], blocks(p.second.n1, t["n0"])
    specs = p.parts(chip, m0)
    sizes = m0 * 512 * p.mid, m0 * 512 * p.second.n1
    if core.fixp is not None:
        into = sizes[0] / core.fixp.l1_rate + core.fixp.head + core.fixp.tail
        return into, 0.0, sizes[1] / core.fixp.rate + columns * core.fixp.head, 0.0, 0.0
    assert core.mte3.l1_rate is not None
    widths = (
        ep.strip_blocks(specs[0], chip, m0, p.mid),
        ep.strip_blocks(specs[1], chip, m0, t["n0"]),
    )
    strips = blocks(p.mid, widths[0]), columns * blocks(t["n0"], widths[1])
    between, out = (
        _vector(spec, chip, size // 2, n, width)
        for spec, size, n, width in zip(specs, sizes, strips, widths, strict=True)
    )
    loads = sum(s.operand is not None for s in specs[1].steps)
    residual = loads * (sizes[1] / min(rate, core.mte2.ub_rate) + strips[1] * core.mte2.head)
    into = sizes[0] / core.mte3.l1_rate + strips[0] * core.mte3.head
    return between, into, out, sizes[1] / core.mte3.rate + strips[1] * core.mte3.head, residual


def _vector(spec: ep.EpilogueSpec, chip: ChipSpec, elements: int, strips: int, width: int) -> float:
    """Vector cycles of a tile; where it is cut into strips each needs its bias four times over."""
    vec = chip.core.vector
    passes = spec.passes * strips
    extra = 0.0
    if spec.bias is not None and strips > 1:
        passes += 2 * strips
        extra = strips * width * 4 * (vec.costs["unary"].b32 or 2.0)
    return spec.vector_cycles(chip, elements) + passes * (vec.head + vec.tail) + extra


def plan(p: Pair, args: KernelArgs, t: Tiling) -> Plan:
    """Both weights once per block; bands tile by tile; nothing of the image between."""
    one, two = p.first, p.second
    n = t["bb"] * t["bm"]
    x_total = y_total = 0
    keys = []
    for s in (p.share(t, block) for block in range(n)):
        bands = tuple(one.band_bytes(*tile) for tile in p.tiles(t, s))
        x_total += s.batches * sum(bands)
        y_total += s.batches * two.n1 * 16 * s.m * two.spec.out.itemsize
        keys.append((s.batches, s.m, bands))
    moved = {1: one.k1 * p.mid * one.fractal, 3: two.n1 * p.mid * one.fractal}
    out = len(args.inputs)
    traffic = {0: Traffic(min(one.image_bytes, x_total), x_total), out: Traffic(y_total, y_total)}
    traffic |= {i: Traffic(args.operands[i].nbytes, n * size) for i, size in moved.items()}
    biases = [s.spec.bias for s in (one, two) if s.spec.bias is not None]
    traffic |= {i: Traffic(args.operands[i].nbytes, n * args.operands[i].nbytes) for i in biases}
    extra = costs.epilogue_bytes(args, None, y_total, 0)
    traffic |= {i: Traffic(*size) for i, size in extra.items()}
    return Plan(t, n, traffic, group_blocks(keys))
