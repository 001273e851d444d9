"""LayerNorm, RMSNorm, GroupNorm, InstanceNorm: statistics in fp32, as CANN computes them.

Storage is seen as (batch, group, channel, width). A group, all its channels and their width, is
normalised together; scale and bias run along the width (LayerNorm, RMSNorm: one channel per
group) or over the channels (GroupNorm, InstanceNorm). Groups that fit UB are loaded once; longer
ones take three passes over GM (two for RMSNorm). AddLayerNorm adds a second tensor as it loads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import Layout
from npusim.kernels.elementwise import MIN_BLOCK_BYTES, unsupported_type
from npusim.kernels.lang import Alloc, Kernel, Queue, TileKernel
from npusim.kernels.rows import (
    F32,
    UB_SHARE,
    Lanes,
    RowReducer,
    in_queue,
    lane_estimate,
    largest,
    out_queue,
    padded,
)
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import Region

Box = tuple[slice, slice, slice, slice]  #: batch, group, channel, width


@dataclass(frozen=True)
class Job:
    """A launch: (batch, groups, channels, width), storage type, which statistics, affine operands.

    Attributes:
        along_width: scale and bias vary along the width, not over the channels.
        centred: the mean is subtracted (all but RMSNorm).
        affine: operand indices of scale and bias, those present.
        addend: operand 1 is added to operand 0 first.
    """

    batch: int
    groups: int
    channels: int
    width: int
    stored: np.dtype
    epsilon: float
    along_width: bool
    centred: bool
    affine: tuple[tuple[int, np.dtype], ...]
    addend: bool = False

    @property
    def length(self) -> int:
        """Elements normalised together."""
        return self.channels * self.width

    def single(self, tiling: Tiling) -> bool:
        """Whole groups fit a tile."""
        return tiling["c"] >= self.channels and tiling["w"] >= self.width

    def passes(self, tiling: Tiling) -> int:
        """How often GM is read."""
        return 1 if self.single(tiling) else 2 + self.centred

    def resident(self, tiling: Tiling) -> bool:
        """Scale and bias are loaded once per block."""
        return self.along_width and self.single(tiling)

    def vector_shape(self, tiling: Tiling) -> tuple[int, ...]:
        """Scale or bias of a tile in UB."""
        if self.along_width:
            return (padded(tiling["w"]),)
        return (tiling["m"], tiling["c"])

    def share(self, tiling: Tiling, block: int) -> tuple[int, int, int, int]:
        """Batches [n0, n1) × groups [g0, g1) of a block."""
        p, q = divmod(block, tiling["columns"])
        n0, n1 = (self.batch * (p + j) // tiling["parts"] for j in (0, 1))
        g0, g1 = (self.groups * (q + j) // tiling["columns"] for j in (0, 1))
        return n0, n1, g0, g1


def _job(args: KernelArgs) -> Job:
    spec = args.inputs[0]
    assert spec is not None
    shape, attrs = spec.shape, dict(args.attrs)
    rank = len(shape)
    added = args.op_type == "AddLayerNorm"
    vectors = enumerate(args.inputs[1 + added :], 1 + added)
    affine = tuple((i, o.dtype.np) for i, o in vectors if o is not None)
    rest = (spec.dtype.np, float(attrs.get("epsilon", 1e-5)))
    if args.op_type in ("LayerNormalization", "RMSNormalization", "AddLayerNorm"):
        axis = int(attrs.get("axis", -1)) % rank
        sizes = (1, prod(shape[:axis]), 1, prod(shape[axis:]))
        return Job(*sizes, *rest, True, args.op_type != "RMSNormalization", affine, added)
    groups = int(attrs.get("num_groups", shape[1]))
    sizes = (shape[0], groups, shape[1] // groups, prod(shape[2:]))
    return Job(*sizes, *rest, False, True, affine)


def _footprint(job: Job, chip: ChipSpec, tiling: Tiling) -> int:
    """UB bytes of a tiling."""
    m, c, w = tiling["m"], tiling["c"], tiling["w"]
    tile = m * c * padded(w)
    slots = 8 if job.addend else 4  # two each of x, the other addend, the result, the sum
    total = tile * (slots * job.stored.itemsize + 8) + 9 * padded(4 * m, 32) + 64 * m + 64
    total += sum(RowReducer.scratch(chip, "add", m * c, w, F32)) + 64
    if c > 1:
        total += padded(4 * m * c, 32) + sum(RowReducer.scratch(chip, "add", m, c, F32)) + 64
    slots = 1 if job.resident(tiling) else 2
    n = prod(job.vector_shape(tiling))
    for _, dtype in job.affine:
        total += slots * padded(n * dtype.itemsize, 32) + padded(n * 4, 32)
        total += 0 if job.along_width else n * 32
    return total


@kernel("Norm")
class Norm(TileKernel):
    """LayerNormalization (1 or 3 outputs), AddLayerNorm, RMS-, Group- and InstanceNormalization."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        kinds = (
            "LayerNormalization",
            "AddLayerNorm",
            "RMSNormalization",
            "GroupNormalization",
            "InstanceNormalization",
        )
        spec = args.inputs[0]
        if args.op_type not in kinds or spec is None:
            return f"no vector program for {args.op_type}"
        if args.epilogue or any(o and o.layout is not Layout.ND for o in args.operands):
            return "takes ND tensors and no epilogue"
        if not spec.dtype.is_float or spec.dtype is not args.outputs[0].dtype or not spec.nbytes:
            return f"{args.op_type} of {spec.dtype.value}"
        job = _job(args)
        expected = job.length if job.along_width else job.groups * job.channels
        if job.addend and args.inputs[1] != spec:
            return "an addend that is not like the other"
        for o in args.inputs[1 + job.addend :]:
            if o is not None and (prod(o.shape) != expected or not o.dtype.is_float):
                return f"scale or bias of shape {o.shape}, not {expected} floats"
        if len(args.outputs) > 1 and not (job.along_width and job.centred):
            return "statistics as outputs, of an operator other than LayerNormalization"
        return next((r for o in args.operands if o and (r := unsupported_type(o.dtype, chip))), "")

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        job = _job(args)
        room = int(chip.core.ub.size * UB_SHARE)
        least = max(1, MIN_BLOCK_BYTES // (job.length * job.stored.itemsize))
        want = max(1, min(chip.vector_cores(), job.batch * job.groups // least))
        parts = min(job.batch, want)
        columns = min(job.groups, max(1, want // parts))
        base = {"parts": parts, "columns": columns}
        whole = {"c": job.channels, "w": job.width, **base}

        def fits(**tile: int) -> bool:
            return _footprint(job, chip, {**whole, **tile}) <= room

        share = -(-job.groups // columns)
        if fits(m=1):
            most = largest(share, 1, lambda m: fits(m=m))
            for m in sorted({-(-share // n) for n in (1, 2, 4, -(-share // most))}):
                if m <= most:
                    yield {"m": m, **whole}
        elif fits(m=1, c=1):
            most = largest(job.channels, 1, lambda c: fits(m=1, c=c))
            yield {**whole, "m": 1, "c": -(-job.channels // -(-job.channels // most))}
        else:
            most = largest(job.width, 16, lambda w: fits(m=1, c=1, w=w))
            w = min(most, padded(-(-job.width // -(-job.width // most))))
            if fits(m=1, c=1, w=w):
                yield {**base, "m": 1, "c": 1, "w": w}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        job = _job(args)
        size = args.outputs[0].nbytes
        lanes = Lanes(job.batch * job.groups, job.length, 1)
        shape = {
            "m": tiling["m"],
            "r": tiling["c"] * tiling["w"],
            "i": 1,
            "parts": tiling["parts"] * tiling["columns"],
            "columns": 1,
        }
        loads, stores = size * job.passes(tiling), size * len(args.outputs if job.addend else "y")
        loads *= 1 + job.addend
        passes = 18 if job.centred else 10  # centred: two sums over the tile, not one
        return lane_estimate(lanes, chip, shape, passes + 2 * job.addend, loads, stores)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        job = _job(args)
        size, n = args.outputs[0].nbytes, tiling["parts"] * tiling["columns"]
        whole = Traffic(size, size * job.passes(tiling))
        traffic = {0: whole, 1: whole} if job.addend else {0: whole}
        shares = [job.share(tiling, b) for b in range(n)]
        for i, dtype in job.affine:
            unique = job.length if job.along_width else job.groups * job.channels
            total = unique * n
            if not job.resident(tiling):
                total = sum(_affine_loads(job, tiling, s) for s in shares)
            traffic[i] = Traffic(unique * dtype.itemsize, total * dtype.itemsize)
        for j, out in enumerate(args.outputs):
            traffic[len(args.inputs) + j] = Traffic(out.nbytes, out.nbytes)
        keys = [(n1 - n0, g1 - g0) for n0, n1, g0, g1 in shares]
        return Plan(tiling, n, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        run = _Run(k, args, tiling, block)
        yield from run.prologue()
        for n in k.loop(run.n1 - run.n0):
            for g in k.loop(-(-(run.g1 - run.g0) // tiling["m"])):
                if run.job.single(tiling):
                    yield from run.whole(n, g)
                    continue
                for statistic in run.statistics:
                    yield from run.start(statistic)
                    for c in k.loop(run.c_tiles):
                        for w in k.loop(run.w_tiles):
                            yield from run.accumulate(statistic, run.box(n, g, c, w))
                    yield from run.conclude(statistic, 1)
                yield from run.store_statistics(run.box(n, g, 0, 0))
                for c in k.loop(run.c_tiles):
                    for w in k.loop(run.w_tiles):
                        yield from run.apply(run.box(n, g, c, w))


def _affine_loads(job: Job, tiling: Tiling, share: tuple[int, int, int, int]) -> int:
    """Elements of scale (or bias) that a block loads, tile by tile."""
    n0, n1, g0, g1 = share
    per_group = job.width if job.along_width else job.channels
    if not job.along_width:
        per_group *= -(-job.width // tiling["w"])
    return (n1 - n0) * (g1 - g0) * per_group


class _Run:
    """One block at work.

    `wide` holds the tile in fp32, `square` its squares; statistics are one value per group.
    """

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> None:
        self.k, self.tiling, self.job = k, tiling, _job(args)
        job, self.first_out, self.n_outputs = self.job, len(args.inputs), len(args.outputs)
        self.n0, self.n1, self.g0, self.g1 = job.share(tiling, block)
        m, c, w = tiling["m"], tiling["c"], tiling["w"]
        self.c_tiles, self.w_tiles = -(-job.channels // c), -(-job.width // w)
        self.tile = (m, c, padded(w))
        size = prod(self.tile)
        self.queue = in_queue(k, size * job.stored.itemsize)
        self.results = out_queue(k, size * job.stored.itemsize)
        self.wide, self.square = k.alloc("UB", size * 4), k.alloc("UB", size * 4)
        self.stats: dict[str, Alloc] = {
            name: k.alloc("UB", 4 * m) for name in ("mean", "deviation", "partial", "one")
        }
        self.spreads = {name: k.alloc("UB", 32 * m) for name in ("mean", "deviation")}
        self.statistics = ("mean", "deviation") if job.centred else ("deviation",)
        self.rows = RowReducer(k, "add", m * c, w, F32)
        if c > 1:
            self.per_channel = k.alloc("UB", 4 * m * c)
            self.over_channels = RowReducer(k, "add", m, c, F32)
        self.stat_queues, self.sums = list[Queue](), list[Queue]()
        if job.addend:
            self.other = in_queue(k, size * job.stored.itemsize)
            self.sums = [out_queue(k, size * job.stored.itemsize) for _ in args.outputs[1:]]
        else:
            self.stat_queues = [out_queue(k, 4 * m) for _ in args.outputs[1:]]
        self._allocate_affine()

    def _allocate_affine(self) -> None:
        k, job = self.k, self.job
        n = prod(job.vector_shape(self.tiling))
        slots = 1 if job.resident(self.tiling) else 2
        self.affine_queues: dict[int, Queue] = {}
        self.affine: dict[int, Alloc] = {}
        self.affine_blocks: dict[int, Alloc] = {}
        for i, dtype in job.affine:
            self.affine_queues[i] = in_queue(k, n * dtype.itemsize, slots)
            self.affine[i] = k.alloc("UB", n * 4)
            if not job.along_width:
                self.affine_blocks[i] = k.alloc("UB", n * 32)

    # -- regions ---------------------------------------------------------------------------------

    def box(self, n: int, g: int, c: int, w: int) -> Box:
        """GM slices of a tile."""
        t, job = self.tiling, self.job
        group, channel, column = self.g0 + g * t["m"], c * t["c"], w * t["w"]
        return (
            slice(self.n0 + n, self.n0 + n + 1),
            slice(group, min(self.g1, group + t["m"])),
            slice(channel, min(job.channels, channel + t["c"])),
            slice(column, min(job.width, column + t["w"])),
        )

    def _gm(self, index: int, box: Box) -> Region:
        job = self.job
        shape = (job.batch, job.groups, job.channels, job.width)
        return Region.dense("GM", index, 0, shape, job.stored)[(box[0].start, *box[1:])]

    def _work(self, place: Alloc, dtype: np.dtype, box: Box) -> Region:
        """(groups, channels, padded width) in UB."""
        m, c = (s.stop - s.start for s in box[1:3])
        return place.region(self.tile, dtype)[:m, :c]

    def _stat(self, name: str, m: int) -> Region:
        return self.stats[name].region((m,), F32)

    def _spread(self, name: str, m: int) -> Region:
        return self.spreads[name].region((m, 8), F32)[:, :1].expand(2)

    # -- steps ------------------------------------------------------------------------------------

    def prologue(self) -> Iterator[Instr]:
        """Constants, and scale and bias that serve every tile."""
        yield self.k.vec("dup", self._stat("one", self.tiling["m"]), scalar=1.0)
        if self.job.resident(self.tiling):
            yield from self._load_affine(self.box(0, 0, 0, 0))

    def _load_affine(self, box: Box) -> Iterator[Instr]:
        """Scale and bias of a tile, in fp32, in a form that broadcasts."""
        k, job = self.k, self.job
        for i, dtype in job.affine:
            queue = self.affine_queues[i]
            place = yield from queue.alloc()
            m, c = (s.stop - s.start for s in box[1:3])
            if job.along_width:
                gm = Region.dense("GM", i, 0, (job.width,), dtype)[box[3]]
                work = place.region(job.vector_shape(self.tiling), dtype)
                ub = work[: gm.shape[0]]
            else:
                gm = Region.dense("GM", i, 0, (job.groups, job.channels), dtype)[box[1:3]]
                work = ub = place.region((m, c), dtype)
            yield k.load(ub, gm)
            yield queue.enque()
            yield queue.deque()
            wide = self.affine[i].region(work.shape, F32)
            yield k.vec("conv" if dtype != F32 else "copy", wide, work)
            if not job.resident(self.tiling):
                yield queue.free()
            if not job.along_width:
                yield k.vec("brcb", self.affine_blocks[i].region((m, c, 8), F32), wide.expand(2))

    def _affine(self, i: int, box: Box) -> Region:
        if self.job.along_width:
            return self.affine[i].region(self.job.vector_shape(self.tiling), F32)
        m, c = (s.stop - s.start for s in box[1:3])
        return self.affine_blocks[i].region((m, c, 8), F32)[:, :, :1]

    def _load(self, box: Box) -> Iterator[Instr]:
        """Load a tile, the sum of both addends; in fp32 in `wide` afterwards."""
        queues = [(self.queue, self.wide)]
        queues += [(self.other, self.square)] if self.job.addend else []
        tiles = []
        for i, (queue, _) in enumerate(queues):
            place = yield from queue.alloc()
            tiles.append(self._work(place, self.job.stored, box))
            gm = self._gm(i, box)
            yield self.k.load(tiles[i][:, :, : gm.shape[2]], gm)
            yield queue.enque()
        for x, (queue, wide) in zip(tiles, queues, strict=True):
            yield queue.deque()
            op = "copy" if x.dtype == F32 else "conv"
            yield self.k.vec(op, self._work(wide, F32, box), x)
            yield queue.free()
        if self.job.addend:
            total = self._work(self.wide, F32, box)
            yield self.k.vec("add", total, total, self._work(self.square, F32, box))

    def _store_sum(self, box: Box) -> Iterator[Instr]:
        """The sum in `wide` to where it is wanted as an output."""
        for queue in self.sums:
            yield from self._store(queue, self.first_out + 1, box)

    def _centre(self, box: Box) -> Iterator[Instr]:
        if self.job.centred:
            wide = self._work(self.wide, F32, box)
            yield self.k.vec("sub", wide, wide, self._spread("mean", wide.shape[0]))

    def _total(self, dst: str, place: Alloc, box: Box) -> Iterator[Instr]:
        """Statistic `dst` = sum of the tile in `place`, per group."""
        m, c, w = (s.stop - s.start for s in box[1:])
        total = self._stat(dst, m)
        lines = place.region((m * c, self.tile[2]), F32)[:, :w]
        if self.tile[1] == 1:
            yield from self.rows(total, lines)
            return
        each = self.per_channel.region((m * c,), F32)
        yield from self.rows(each, lines)
        yield from self.over_channels(total, each.split(0, c))

    def _sum(self, statistic: str, dst: str, box: Box) -> Iterator[Instr]:
        """Sum of the tile (for the mean), or of its centred squares."""
        if statistic == "mean":
            yield from self._total(dst, self.wide, box)
            return
        yield from self._centre(box)
        wide = self._work(self.wide, F32, box)
        yield self.k.vec("mul", self._work(self.square, F32, box), wide, wide)
        yield from self._total(dst, self.square, box)

    def conclude(self, statistic: str, m: int) -> Iterator[Instr]:
        """Sum → mean, or inverse deviation; spread."""
        k, stat = self.k, self._stat(statistic, m)
        yield k.vec("muls", stat, stat, scalar=1.0 / self.job.length)
        if statistic == "deviation":
            yield k.vec("adds", stat, stat, scalar=self.job.epsilon)
            yield k.vec("sqrt", stat, stat)
            yield k.vec("div", stat, self._stat("one", m), stat)
        yield k.vec("brcb", self.spreads[statistic].region((m, 8), F32), stat.expand(1))

    def _finish(self, box: Box) -> Iterator[Instr]:
        """Scale the centred tile in `wide`, apply scale and bias, round, store."""
        k, wide = self.k, self._work(self.wide, F32, box)
        yield k.vec("mul", wide, wide, self._spread("deviation", wide.shape[0]))
        if not self.job.resident(self.tiling):
            yield from self._load_affine(box)
        for op, (i, _) in zip(("mul", "add"), self.job.affine, strict=False):
            yield k.vec(op, wide, wide, self._affine(i, box))
        yield from self._store(self.results, self.first_out, box)

    def _store(self, queue: Queue, operand: int, box: Box) -> Iterator[Instr]:
        """Round the tile in `wide` and store it."""
        k, wide = self.k, self._work(self.wide, F32, box)
        place = yield from queue.alloc()
        out = self._work(place, self.job.stored, box)
        yield k.vec("copy" if out.dtype == F32 else "conv", out, wide)
        yield queue.enque()
        yield queue.deque()
        gm = self._gm(operand, box)
        yield k.store(gm, out[:, :, : gm.shape[2]])
        yield queue.free()

    def store_statistics(self, box: Box) -> Iterator[Instr]:
        """The optional outputs: mean and inverse deviation, fp32."""
        for j, (queue, name) in enumerate(
            zip(self.stat_queues, ("mean", "deviation"), strict=False), 1
        ):
            place = yield from queue.alloc()
            m = box[1].stop - box[1].start
            out = place.region((m,), F32)
            yield self.k.vec("copy", out, self._stat(name, m))
            yield queue.enque()
            yield queue.deque()
            gm = Region.dense("GM", self.first_out + j, 0, (self.job.groups,), F32)
            yield self.k.store(gm[box[1]], out)
            yield queue.free()

    def whole(self, n: int, g: int) -> Iterator[Instr]:
        """Whole groups in one pass."""
        box = self.box(n, g, 0, 0)
        yield from self._load(box)
        yield from self._store_sum(box)
        for statistic in self.statistics:
            yield from self._sum(statistic, statistic, box)
            yield from self.conclude(statistic, box[1].stop - box[1].start)
        yield from self.store_statistics(box)
        yield from self._finish(box)

    # -- groups longer than UB -------------------------------------------------------------------

    def start(self, statistic: str) -> Iterator[Instr]:
        """A statistic of zero."""
        yield self.k.vec("dup", self._stat(statistic, 1), scalar=0.0)

    def accumulate(self, statistic: str, box: Box) -> Iterator[Instr]:
        """Add a tile to the statistic."""
        yield from self._load(box)
        yield from self._sum(statistic, "partial", box)
        total = self._stat(statistic, 1)
        yield self.k.vec("add", total, total, self._stat("partial", 1))

    def apply(self, box: Box) -> Iterator[Instr]:
        """Normalise a tile."""
        yield from self._load(box)
        yield from self._store_sum(box)
        yield from self._centre(box)
        yield from self._finish(box)
