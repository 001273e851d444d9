"""BitMask: elements kept where a bit of a mask is set (ReluGradV2, DropOutDoMask).


On the first generation's vector unit a select by bits is a pair of instructions, set mask and vsel,
for every repeat. Where the scheduler generates them a barrier stands between (the chip's `select`
cost); the hand-written dropout kernel issues pair after pair without one. Later chips repeat vsel.
Flat launches cut one axis; ReluGradV2 on NC1HWC0 is cut as CANN cuts it, blocks by images (32
images on 30 cores keep 16 busy), tiles of rows or slices that divide evenly: an image of 71 rows is
taken row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.batchnorm_grid import C0, Job, cut_blocks
from npusim.kernels.elementwise import UB_SHARE, unsupported_type
from npusim.kernels.estimate import pipeline_cycles, port_rate
from npusim.kernels.flat import Stretch, flat_tilings, stretch
from npusim.kernels.lang import Kernel, TileKernel
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import Region

GRAIN = 256  #: elements whose mask is one 32 B block
#: Cycles of a pair in the dropout kernel by bytes of an element: slope of the recorded
#: DropoutDoMask rows (12.9 per 128 fp16, 43.8 per 128 fp32) less the scaling pass.
DROPOUT_PAIR = {2: 11.7, 4: 19.8}
#: … in ReluGradV2 on fp16: slope of the recorded rows at 16 busy cores (13.5-14.3 per 128).
RELU_GRAD_PAIR = 13.6


@dataclass(frozen=True)
class Cuts:
    """A block's tiles: `chunk` elements from each start."""

    starts: tuple[int, ...]
    chunk: int

    @property
    def size(self) -> int:
        """Elements of the block."""
        return len(self.starts) * self.chunk

    @property
    def tiles(self) -> int:
        """How many."""
        return len(self.starts)

    def tile(self, index: int) -> slice:
        """The elements of one tile."""
        return slice(self.starts[index], self.starts[index] + self.chunk)


def _divisor(extent: int, most: int) -> int:
    """The largest divisor of `extent` up to `most`."""
    return max(d for d in range(1, most + 1) if extent % d == 0)


def _grid(args: KernelArgs, chip: ChipSpec) -> Tiling | None:
    """CANN's cut of an NC1HWC0 image; None where blocks would not be whole images or slices."""
    if _scales(args) or args.outputs[0].layout is not Layout.NC1HWC0:
        return None
    n, c1, h, w, _ = args.outputs[0].storage_shape
    per_n, per_c, per_h = cut_blocks(n, c1, h, chip.vector_cores(), False)
    limit, even = 0, c1 % per_c == 0 and per_h == h and max(n, c1) >= chip.vector_cores()
    while _footprint(args, (limit + 1) * w * C0) <= chip.core.ub.size * UB_SHARE:
        limit += 1  # rows of a tile
    if not limit or not even:
        return None
    rows, group = (h, _divisor(per_c, limit // h)) if limit >= h else (_divisor(h, limit), 1)
    tiling = {"per_n": per_n, "per_c": per_c, "per_h": per_h, "rows": rows, "group": group}
    return {**tiling, "blocks": len(Job.of(args, tiling).boxes())}


def _run_of(args: KernelArgs, tiling: Tiling, block: int) -> Stretch | Cuts:
    """What a block works on."""
    if "rows" not in tiling:
        return stretch(_elements(args), GRAIN, tiling, block)
    job = Job.of(args, tiling)
    box = job.boxes()[block]
    starts = tuple(
        ((i * job.c1 + c) * job.positions + h0 * job.width) * C0
        for i in range(box.n0, box.n1)
        for c, _ in job.groups(box)
        for h0, _ in job.cuts(box)
    )
    return Cuts(starts, job.room())


def _scales(args: KernelArgs) -> bool:
    return args.op_type == "DropOutDoMask"


def _pair(args: KernelArgs, chip: ChipSpec) -> float:
    """Cycles of a set-mask and select pair."""
    x = args.outputs[0].dtype
    costs = chip.core.vector.costs["select"]
    own = (costs.b16 if x.size == 2 else costs.b32) or 0.0
    if _scales(args):
        return min(own, DROPOUT_PAIR[x.size])
    return min(own, RELU_GRAD_PAIR) if x.size == 2 else own


def _footprint(args: KernelArgs, chunk: int) -> int:
    """UB bytes: two slots of data and mask in, of data out; zeros and the scalar."""
    width = args.outputs[0].dtype.size
    return 4 * chunk * width + 2 * chunk // 8 + 1024


@kernel("BitMask")
class BitMask(TileKernel):
    """x (times 1/keep) where the bit is set, else 0. Tiling: blocks, tiles of `chunk` elements."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """fp16 and fp32 in any layout that mask and data share."""
        if args.op_type not in ("ReluGradV2", "DropOutDoMask"):
            return f"operator {args.op_type}"
        x, mask, out = args.operands[0], args.operands[1], args.outputs[0]
        if x != out or out.dtype not in (DType.FLOAT16, DType.FLOAT32):
            return "the output is like the input, in fp16 or fp32"
        if mask.layout is not Layout.ND or mask.nbytes * 8 < x.nbytes // x.dtype.size:
            return "the mask has a bit for each element"
        costs = chip.core.vector.costs.get("select")
        if costs is None or (costs.b16 if x.dtype.size == 2 else costs.b32) is None:
            return "the vector unit has no select"
        return unsupported_type(x.dtype, chip) if x.nbytes else "an empty tensor"

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """CANN's cut of an image, or tiles of whole grains."""
        grid = _grid(args, chip)
        if grid:
            return iter((grid,))
        n, width = _elements(args), args.outputs[0].dtype.size
        return flat_tilings(n, width, GRAIN, chip, lambda c: _footprint(args, c))

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """Pairs, transfers, and the exposed ends."""
        run = _run_of(args, tiling, tiling["blocks"] - 1)
        width, blocks = args.outputs[0].dtype.size, tiling["blocks"]
        vector = run.size * width / chip.core.vector.repeat_bytes * _pair(args, chip)
        into, out = (
            port_rate(chip, r, blocks) for r in (chip.core.mte2.ub_rate, chip.core.mte3.rate)
        )
        read = run.size * (width + 0.125) / into + run.tiles * 2 * chip.core.mte2.head
        write = run.size * width / out + run.tiles * chip.core.mte3.head
        shared = _elements(args) * (2 * width + 0.125) / chip.hbm_rate
        return pipeline_cycles(chip, vector, read, write, shared, run.tiles)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Each byte once; the keep probability once a block."""
        n, blocks = _elements(args), tiling["blocks"]
        runs = [_run_of(args, tiling, b) for b in range(blocks)]
        data = n * args.outputs[0].dtype.size
        mask = sum(_mask_bytes(run) for run in runs)
        traffic = {
            0: Traffic(data, data),
            1: Traffic(mask, mask),
            len(args.inputs): Traffic(data, data),
        }
        if _scales(args):
            keep = args.operands[2].nbytes
            traffic[2] = Traffic(keep, keep * blocks)
        return Plan(tiling, blocks, traffic, group_blocks([run.size for run in runs]))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """Load data and mask, scale, select, store."""
        run = _Run(k, args, _run_of(args, tiling, block))
        yield from run.start()
        for i in k.loop(run.stretch.tiles):
            yield from run.tile(i)


def _elements(args: KernelArgs) -> int:
    spec = args.outputs[0]
    return spec.nbytes // spec.dtype.size


def _mask_bytes(run: Stretch | Cuts) -> int:
    return -(-run.size // 8)


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, run: Stretch | Cuts) -> None:
        self.k, self.args, self.stretch = k, args, run
        self.dtype = args.outputs[0].dtype.np
        nbytes = run.chunk * self.dtype.itemsize
        self.data = k.queue("UB", nbytes, 2, Pipe.MTE2, Pipe.V)
        self.mask = k.queue("UB", run.chunk // 8, 2, Pipe.MTE2, Pipe.V)
        self.out = k.queue("UB", nbytes, 2, Pipe.V, Pipe.MTE3)
        self.keep = k.queue("UB", 32, 1, Pipe.MTE2, Pipe.V)
        self.zeros = k.alloc("UB", 256).region((256 // self.dtype.itemsize,), self.dtype)
        self.scale = k.alloc("UB", 32).region((1,), self.dtype)
        self.pair = _pair(args, k.chip)

    def start(self) -> Iterator[Instr]:
        """One repeat of zeros; 1 / keep."""
        yield self.k.vec("dup", self.zeros, scalar=0.0)
        if not _scales(self.args):
            return
        place = yield from self.keep.alloc()
        keep = place.region((1,), self.dtype)
        yield self.k.load(keep, Region.dense("GM", 2, 0, (1,), self.dtype))
        yield self.keep.enque()
        yield self.keep.deque()
        yield self.k.vec("dup", self.scale, scalar=1.0)
        yield self.k.vec("div", self.scale, self.scale, keep)

    def tile(self, index: int) -> Iterator[Instr]:
        """One tile; the scale is a scalar register of the multiplication."""
        k, n, cut = self.k, _elements(self.args), self.stretch.tile(index)
        size = cut.stop - cut.start
        data = (yield from self.data.alloc()).region((size,), self.dtype)
        yield k.load(data, Region.dense("GM", 0, 0, (n,), self.dtype)[cut])
        yield self.data.enque()
        bits = (yield from self.mask.alloc()).region((-(-size // 8),), np.uint8)
        every = Region.dense("GM", 1, 0, (-(-n // 8),), np.dtype(np.uint8))
        yield k.load(bits, every[cut.start // 8 : -(-cut.stop // 8)])
        yield self.mask.enque()
        yield self.data.deque()
        yield self.mask.deque()
        result = (yield from self.out.alloc()).region((size,), self.dtype)
        source = data
        if _scales(self.args):
            yield k.vec("mul", result, data, self.scale.broadcast((size,)))
            source = result
        yield k.select_bits(result, bits, source, self.pair)
        yield self.data.free()
        yield self.mask.free()
        yield self.out.enque()
        yield self.out.deque()
        yield k.store(Region.dense("GM", len(self.args.inputs), 0, (n,), self.dtype)[cut], result)
        yield self.out.free()
