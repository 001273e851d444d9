"""Pools over whole images as CANN's static schedule runs them (pooling2d_schedule, GAP and GMP).

Whole slices (n, c1), or lines of one, go to UB. Up to 255 positions fold in one instruction, one
block a repeat onto a block that stays; more go 128 lanes at a time by single instructions, which
the scalar unit issues one by one. Means are of fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.pool_columns import STAYING
from npusim.kernels.rows import F16, F32
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

C0 = 16
MOST_REPEATS = 255
MOST_POSITIONS = 4096  #: of a tile, by CANN's limit of a burst
#: Cycles of a vmax or vadd of one repeat, issued one by one. Source: fit, MaxPoolV3 of whole images
#: on the Ascend 310 (Ascend/workload_analysis: 13 cycles per 128 elements, of which the vector
#: unit is busy 11.9 and the scalar unit 9).
SINGLE = 13.0


@dataclass(frozen=True)
class Job:
    """A launch: images, blocks of channels, lines and positions of a line, kind."""

    batch: int
    blocks: int
    height: int
    width: int
    mean: bool

    @staticmethod
    def of(args: KernelArgs) -> Job:
        """From the launch's arguments."""
        n, c1, h, w, _ = args.operands[0].storage_shape
        return Job(n, c1, h, w, args.op_type == "GlobalAveragePool")

    def position_bytes(self) -> int:
        """UB of a position: fp16, and fp32 for means."""
        return C0 * (6 if self.mean else 2)


@kernel("PoolFold")
class PoolFold(TileKernel):
    """GlobalMaxPool and GlobalAveragePool of fp16 images in NC1HWC0."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        if args.op_type not in ("GlobalMaxPool", "GlobalAveragePool"):
            return f"operator {args.op_type}"
        spec = args.operands[0]
        if spec.layout is not Layout.NC1HWC0 or spec.dtype is not DType.FLOAT16:
            return f"takes float16 in NC1HWC0, not {spec.dtype.value} in {spec.layout.value}"
        return ""

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Slices together, else lines of one, else a part of a line; half of UB each way."""
        job = Job.of(args)
        by_batch = job.batch >= min(chip.vector_cores(), job.blocks)
        units = job.batch if by_batch else job.blocks
        per = -(-units // chip.vector_cores())
        whole, room = job.height * job.width, chip.core.ub.size // 2 - C0 * C0 * 4
        most = min(MOST_POSITIONS, room // job.position_bytes())
        if most < 1:
            return
        slices, positions = 1, min(job.width, most)
        fits = [h for h in range(1, job.height + 1) if job.height % h == 0]
        fits = [h for h in fits if h * job.width <= most]
        if fits:
            positions = fits[-1] * job.width
        if positions == whole:
            deep = [c for c in range(1, job.blocks + 1) if job.blocks % c == 0]
            slices = max([c for c in deep if c * whole * job.position_bytes() <= room] or [1])
        yield {
            "positions": positions,
            "slices": slices if by_batch else 1,
            "per": per,
            "by_batch": int(by_batch),
            "blocks": -(-units // per),
        }

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling; a figure for comparison with other kernels."""
        job = Job.of(args)
        return 2.0 * job.batch * job.blocks * job.height * job.width / tiling["blocks"]

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        job, blocks = Job.of(args), tiling["blocks"]
        sizes = {0: args.operands[0].nbytes, len(args.inputs): args.outputs[0].nbytes}
        keys = [len(_groups(job, tiling, b)) for b in range(blocks)]
        traffic = {i: Traffic(n, n) for i, n in sizes.items()}
        return Plan(tiling, blocks, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        job = Job.of(args)
        run = _Run(k, args, job, tiling)
        mine = _groups(job, tiling, block)
        for i in k.loop(len(mine)):
            yield from run.group(mine[i])


def _groups(job: Job, tiling: Tiling, block: int) -> list[int]:
    """First slices of a block's groups."""
    low, high = block * tiling["per"], (block + 1) * tiling["per"]
    if tiling["by_batch"]:
        return list(range(low * job.blocks, min(high, job.batch) * job.blocks, tiling["slices"]))
    channels = range(low, min(high, job.blocks))
    return [n * job.blocks + c for n in range(job.batch) for c in channels]


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, job: Job, tiling: Tiling) -> None:
        self.k, self.job = k, job
        self._slices, self._step = tiling["slices"], tiling["positions"]
        slices, self._all = job.batch * job.blocks, job.height * job.width
        self._x = Region.dense(GM, 0, 0, (slices, self._all, C0), F16)
        self._y = Region.dense(GM, len(args.inputs), 0, (slices, C0), F16)
        self._kind = F32 if job.mean else F16
        tile = self._slices * self._step * C0
        self._in = k.queue("UB", tile * 2, 2, Pipe.MTE2, Pipe.V)
        self._out = k.queue("UB", self._slices * C0 * 2, 2, Pipe.V, Pipe.MTE3)
        self._wide = k.alloc("UB", tile * 4) if job.mean else None
        self._total = k.alloc("UB", self._slices * C0 * 4).region((self._slices, C0), self._kind)
        self._fold: Callable[..., np.ndarray] = _sums if job.mean else _maxima

    def group(self, first: int) -> Iterator[Instr]:
        """The results of a group of slices."""
        k, n, total = self.k, self._slices, self._total
        yield k.vec("dup", total, scalar=0.0 if self.job.mean else -np.inf)
        for at in range(0, self._all, self._step):
            m = min(self._step, self._all - at)
            slot = yield from self._in.alloc()
            x = slot.region((n, m, C0), F16)
            yield k.load(x, self._x[first : first + n, at : at + m])
            yield self._in.enque()
            yield self._in.deque()
            if self._wide is not None:
                wide = self._wide.region((n, m, C0), F32)
                yield k.vec("conv", wide, x)
                x = wide
            for i in range(n):
                yield self._onto(total[i], x[i])
            yield self._in.free()
        if self.job.mean:
            yield k.vec("muls", total, total, scalar=1.0 / self._all)
        room = yield from self._out.alloc()
        y = room.region((n, C0), F16)
        yield k.vec("conv" if self.job.mean else "copy", y, total)
        yield self._out.enque()
        yield self._out.deque()
        yield k.store(self._y[first : first + n], y)
        yield self._out.free()

    def _onto(self, total: Region, x: Region) -> Instr:
        """Fold positions (m, 16) onto a block."""
        lanes = self.k.chip.core.vector.repeat_bytes // self._kind.itemsize
        per = SINGLE
        if x.shape[0] <= MOST_REPEATS:  # one block a repeat
            per = STAYING * lanes / C0
        op = "add" if self.job.mean else "max"
        return self.k.vec_by(op, self._fold, x, total, total, x, per_repeat=per)


def _sums(before: np.ndarray, x: np.ndarray) -> np.ndarray:
    return before + x.sum(axis=0)


def _maxima(before: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.maximum(before, x.max(axis=0))
