"""TransDataC04: an image of at most 4 channels, ND → NC1HWC0_C04 (pixels of 4 channels, 8 B each).

A pixel is too short for a row of its own in UB (32 B), so a tile is worked on as 16 lines:

    for tile of an image's pixels:  load C rows of pixels → 16 lines of each     MTE2
        fp32 → fp16, where the graph's border is fp32                            V
        each channel transposed (vnchwconv): a 32 B block holds one pixel of every line, and goes
        behind the same pixel's block of the channel before                      V
        transposed back: each line is its pixels, 4 channels together            V
        store: the lines are one run                                             MTE3

Blocks of channels that do not exist are zeros, written once.

Tiling: pixels of a tile (whole lines of 16), tiles an image (the last may be shorter), blocks.
How CANN's own kernel does it is not published: the detour by transposes there and back is what its
kernels of FRACTAL_NZ do (see `fractals`), at the cycles of vnchwconv that those were fitted with.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.ir.layout import C04
from npusim.kernels.grid import Share, deal
from npusim.kernels.lang import ALIGN, Kernel, TileKernel
from npusim.kernels.ub_pass import VNC, buffers_of, row_commands
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

LINES = 16  #: rows that vnchwconv takes
STEP = LINES * 16  #: pixels that a tile is a multiple of: a 32 B block of every line
HALF = DType.FLOAT16


def _shape(args: KernelArgs) -> tuple[int, int, int]:
    """Images, channels, pixels of an image."""
    n, c, h, w = args.operands[0].shape
    return n, c, h * w


def _lines(pixels: int) -> int:
    """Pixels of a line, for a tile of so many."""
    return -(-pixels // STEP) * 16


def _pixel_bytes(args: KernelArgs) -> int:
    """Bytes of UB that a pixel takes: loaded, converted, between the transposes, stored."""
    source, channels = args.operands[0].dtype, args.operands[0].shape[1]
    own = channels * (source.size + (HALF.size if source is not HALF else 0))
    return own + 2 * C04 * HALF.size


@kernel("TransDataC04")
class TransDataC04(TileKernel):
    """Change of layout; the channels that an image lacks are written as zeros."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """From ND in fp16 or fp32 to NC1HWC0_C04 in fp16 only."""
        source, target = args.operands
        if (source.layout, target.layout) != (Layout.ND, Layout.NC1HWC0_C04):
            return f"TransData from {source.layout.value} to {target.layout.value}"
        if source.shape != target.shape:
            return "TransData changes no shape"
        if source.dtype not in (HALF, DType.FLOAT32) or target.dtype is not HALF:
            return "NC1HWC0_C04 is made in fp16, from fp16 or fp32"
        return "" if prod(source.shape) else "an image without pixels"

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """As few tiles an image as UB allows, some more, and what all cores share evenly."""
        images, _, pixels = _shape(args)
        room = chip.core.ub.size // _pixel_bytes(args) // STEP * STEP
        if not room:
            return
        fewest, cores, seen = -(-pixels // room), chip.vector_cores(), set()
        even = next(n for n in range(fewest, fewest + cores) if images * n % cores == 0)
        for per in (fewest, even, 2 * fewest, 4 * fewest):
            tile = -(-pixels // (per * STEP)) * STEP
            if tile not in seen:
                seen.add(tile)
                tiles = -(-pixels // tile)
                blocks = min(cores, images * tiles)
                yield {"pixels": tile, "tiles": tiles, "blocks": blocks}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """Cycles of the busiest block: tiles take turns in the buffer that is busy longest."""
        images, channels, _ = _shape(args)
        tile, blocks = tiling["pixels"], tiling["blocks"]
        source, share = args.operands[0].dtype, chip.l2_rate / blocks
        rows = row_commands(args, chip, channels, channels * tile * source.size, True) or channels
        load = channels * tile * source.size / min(chip.core.mte2.ub_rate, share)
        load += rows * chip.core.mte2.burst + chip.core.mte2.head
        store = C04 * tile * HALF.size / min(chip.core.mte3.rate, share) + chip.core.mte3.head
        there, back = _transposes(chip, channels, _lines(tile))
        if source is not HALF:
            conv = chip.core.vector.costs["conv"].b32 or 0.0
            there += ceil(channels * tile * source.size / 256 * conv)
        load += there + chip.l2.read_latency + chip.hbm.latency
        store += back + chip.l2.write_latency
        count = -(-images * tiling["tiles"] // blocks)
        alone = count * max(load, there + back, store) + min(load, store)
        return alone + blocks * chip.cycles(chip.scheduler.per_block)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Every element once; blocks are alike whose short tiles stand alike."""
        keys = []
        for block in range(tiling["blocks"]):
            share = _share(args, tiling, block)
            short = [i for i in range(share.count) if _ends_image(args, tiling, share.start + i)]
            keys.append((share.count, tuple(short)))
        traffic = {i: Traffic(o.nbytes, o.nbytes) for i, o in enumerate(args.operands)}
        return Plan(tiling, tiling["blocks"], traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """See the module's text."""
        run = _Run(k, args, tiling)
        yield from run.prepare()
        share = _share(args, tiling, block)
        for i in k.loop(share.count) if _even(args, tiling) else range(share.count):
            yield from run.tile(share.start + i)


def _share(args: KernelArgs, tiling: Tiling, block: int) -> Share:
    return deal([args.operands[0].shape[0] * tiling["tiles"]], tiling["blocks"], block)[0]


def _even(args: KernelArgs, tiling: Tiling) -> bool:
    """Whether all tiles are alike."""
    return tiling["tiles"] == 1 or _shape(args)[2] % tiling["pixels"] == 0


def _ends_image(args: KernelArgs, tiling: Tiling, tile: int) -> bool:
    """Whether a tile is the short one of its image."""
    return not _even(args, tiling) and tile % tiling["tiles"] == tiling["tiles"] - 1


def _transposes(chip: ChipSpec, channels: int, line: int) -> tuple[int, int]:
    """Cycles of the transposes there, of the channels that exist, and back."""
    blocks, head = line * HALF.size / ALIGN, chip.core.vector.head
    return ceil(channels * blocks * VNC) + channels * head, ceil(C04 * blocks * VNC) + head


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling) -> None:
        self.k, self.tiling = k, tiling
        self.images, self.channels, self.pixels = _shape(args)
        self.dtype = args.operands[0].dtype.np
        self.line = _lines(min(tiling["pixels"], self.pixels))
        tile, size = self.line * LINES, HALF.size
        slots = buffers_of(args)
        room = self.channels * tile * self.dtype.itemsize
        self.ins = k.queue("UB", room, slots, Pipe.MTE2, Pipe.V)
        self.outs = k.queue("UB", C04 * tile * size, slots, Pipe.V, Pipe.MTE3)
        self.between = k.alloc("UB", C04 * tile * size)
        wide = self.dtype != HALF.np
        self.half = k.alloc("UB", self.channels * tile * size) if wide else None

    def prepare(self) -> Iterator[Instr]:
        """Zeros where channels lack."""
        lacking = self._between(self.line)[:, self.channels :]
        if lacking.size:
            yield self.k.vec("dup", lacking, scalar=HALF.np.type(0))

    def _between(self, line: int) -> Region:
        """Pixels of a line, channels, lines."""
        return self.between.region((line, C04, LINES), HALF.np)

    def tile(self, index: int) -> Iterator[Instr]:
        """One tile: load, transposed there and back, store."""
        k, c = self.k, self.channels
        image, at = divmod(index, self.tiling["tiles"])
        first = at * self.tiling["pixels"]
        count = min(self.tiling["pixels"], self.pixels - first)
        line = _lines(count)
        nd = Region.dense(GM, 0, 0, (self.images, c, self.pixels), self.dtype)
        c04 = Region.dense(GM, 1, 0, (self.images, self.pixels, C04), HALF.np)
        src, dst = nd[image, :, first : first + count], c04[image, first : first + count]
        place = yield from self.ins.alloc()
        loaded = place.region((c, LINES * line), self.dtype)
        whole = count == LINES * line
        pieces = row_commands(k.args, k.chip, c, src.nbytes, True)
        yield k.load_pairs([(loaded[:, :count], src)], None if whole else loaded, pieces)
        yield self.ins.enque()
        yield self.ins.deque()
        there, back = _transposes(k.chip, c, line)
        between = self._between(line)
        rows = self.half.region(loaded.shape, HALF.np) if self.half else loaded
        if self.half:
            yield k.vec("conv", rows, loaded)
        rows = rows.split(1, line).permute(2, 0, 1)  # pixels of a line, channels, lines
        yield k.vec_taking("transpose", there, between[:, :c], rows)
        yield self.ins.free()
        place = yield from self.outs.alloc()
        stored = place.region((LINES, line, C04), HALF.np)
        yield k.vec_taking("transpose", back, stored, between.permute(2, 0, 1))
        yield self.outs.enque()
        yield self.outs.deque()
        yield k.store(dst, place.region((LINES * line, C04), HALF.np)[:count])
        yield self.outs.free()
