"""A vector program at work on tiles in UB: its buffers, its loads, steps and stores.

Axes are those of `broadcast.Space`; one of them is cut into tiles, and blocks share it and the
axes before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from npusim.chip.spec import ChipSpec
from npusim.kernels import vector_ops
from npusim.kernels.broadcast import Space
from npusim.kernels.lang import Alloc, Kernel, Queue
from npusim.kernels.vector_program import Program, Step, Value
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Tiling
from npusim.program.region import Region

#: Cycles per 256 B repeat to spread a scalar over a tile: a vector_dup reads nothing that could
#: meet in a bank, so it writes a repeat a cycle (910B: 0.94; LambApplyOptimizerAssign's slope).
SPREAD = 1.06


@dataclass(frozen=True)
class Job:
    """A launch, lowered: its program over the tile's axes.

    `keeps_scalars`: what is computed from scalars alone is computed once per block.
    """

    space: Space
    program: Program
    keeps_scalars: bool

    def resident(self, v: Value, axis: int) -> bool:
        """Constant over all tiles of a block when `axis` is the one that tiles cut."""
        return not any(v.varies[: axis + 1])

    def once(self, v: Value, axis: int) -> bool:
        """Computed once per block: resident, and no scalar where those are computed per tile."""
        return self.resident(v, axis) and (self.keeps_scalars or any(v.varies))

    def dims(self, v: Value, axis: int, chunk: int) -> tuple[int, ...]:
        """Extents of the value in a tile of `chunk` along `axis`."""
        extents = (chunk, *self.space.extents[axis + 1 :])
        return tuple(n if u else 1 for n, u in zip(extents, v.varies[axis:], strict=True))

    def nbytes(self, v: Value, axis: int, chunk: int) -> int:
        """Bytes of the value in UB."""
        width = 32 if v.spaced else v.dtype.itemsize
        return -(-prod(self.dims(v, axis, chunk)) * width // 32) * 32

    def cut_axes(self) -> int:
        """How many of the first axes may be the one that tiles cut: all but the unit."""
        return len(self.space.extents) - 1

    def nbytes_shared(self, args: KernelArgs) -> int:
        """Bytes by which the number of blocks goes."""
        return args.outputs[0].nbytes

    def vector_cycles(self, chip: ChipSpec, elements: int) -> float:
        """Cycles of the full-size steps over that many elements."""
        vec = chip.core.vector
        total = 0.0
        for step in self.program.steps:
            if not step.dst.full:
                continue
            bits = 8 * max(v.dtype.itemsize for v in (step.dst, *step.srcs))
            costs = vec.costs[vector_ops.get(step.op).cost]
            per = (costs.b16 if bits <= 16 else costs.b32) or 0.0
            total += per * elements * bits / 8 / vec.repeat_bytes
        return total

    def instructions(self, chip: ChipSpec) -> int:
        """Vector instructions per tile, at least."""
        return len(self.program.steps)

    def footprint(self, chip: ChipSpec, axis: int, chunk: int) -> int:
        """UB bytes that a tiling takes."""
        program = self.program
        size = sum(2 * self.nbytes(v, axis, chunk) for v in program.results)
        for v in program.loads:
            slots = 1 if self.resident(v, axis) else 2
            size += slots * self.nbytes(v, axis, chunk)
        size += sum(self.nbytes(s.dst, axis, chunk) for s in program.steps if not s.dst.full)
        tile = chunk * prod(self.space.extents[axis + 1 :])
        return size + sum(-(-tile * width // 32) * 32 for width in program.registers)


@dataclass(frozen=True)
class Share:
    """What one block does: prefixes [first_prefix, …), positions [start, …) of the tiled axis."""

    first_prefix: int
    prefixes: int
    start: int
    length: int

    @staticmethod
    def of(job: Job, tiling: Tiling, block: int) -> Share:
        """The share of a block: balanced parts."""
        extents, axis = job.space.extents, tiling["axis"]
        outer, part = divmod(block, tiling["parts"])
        prefix = prod(extents[:axis])
        p0, p1 = (prefix * (outer + i) // tiling["before"] for i in (0, 1))
        s0, s1 = (extents[axis] * (part + i) // tiling["parts"] for i in (0, 1))
        return Share(p0, p1 - p0, s0, s1 - s0)

    def tiles(self, chunk: int) -> int:
        """Tiles per prefix."""
        return -(-self.length // chunk)

    def elements(self, job: Job, tiling: Tiling) -> int:
        """GM positions along the tiled axis (elements, when it is the line)."""
        if tiling["axis"] < len(job.space.outer):
            return self.length
        unit, line = job.space.unit, job.space.line
        return min(line, (self.start + self.length) * unit) - self.start * unit

    def loaded(self, job: Job, tiling: Tiling, v: Value) -> int:
        """Elements of an operand that the block loads."""
        axis, space = tiling["axis"], job.space
        on_line = axis == len(space.outer)
        tail = 1
        if not on_line:
            dims = zip(space.outer[axis + 1 :], v.varies[axis + 1 : -2], strict=True)
            tail = prod(n if u else 1 for n, u in dims) * _line_elements(space, v, space.line)
        elif not v.varies[-2]:
            tail = _line_elements(space, v, space.line)
        if job.resident(v, axis):
            return tail
        along = self.elements(job, tiling) if v.varies[axis] else self.tiles(tiling["chunk"])
        return self.prefixes * along * tail


def _line_elements(space: Space, v: Value, line: int) -> int:
    """Elements loaded for one line: all, one unit of a repeated vector, or one."""
    if v.varies[-2]:
        return line
    return space.unit if v.varies[-1] else 1


class Run:
    """One block at work: its buffers, and the instructions of a tile."""

    def __init__(self, k: Kernel, job: Job, inputs: int, tiling: Tiling, block: int) -> None:
        self.k, self.job = k, job
        self.axis, self.chunk = tiling["axis"], tiling["chunk"]
        self.share = Share.of(self.job, tiling, block)
        program, axis, chunk = self.job.program, self.axis, self.chunk
        self.queues: dict[Value, Queue] = {}
        self.places: dict[Value, Alloc] = {}
        for v in program.loads:
            slots = 1 if self.job.resident(v, axis) else 2
            size = self.job.nbytes(v, axis, chunk)
            self.queues[v] = k.queue("UB", size, slots, Pipe.MTE2, Pipe.V)
        self.outs: dict[Value, tuple[int, Queue]] = {}
        for i, v in enumerate(program.results, inputs):
            queue = k.queue("UB", self.job.nbytes(v, axis, chunk), 2, Pipe.V, Pipe.MTE3)
            self.outs[v] = (i, queue)
        tile = chunk * prod(self.job.space.extents[axis + 1 :])
        registers = [k.alloc("UB", tile * width) for width in program.registers]
        for step in program.steps:
            if step.dst in program.slots:
                self.places[step.dst] = registers[program.slots[step.dst]]
            elif step.dst not in self.outs:
                self.places[step.dst] = k.alloc("UB", self.job.nbytes(step.dst, axis, chunk))

    def residents(self) -> Iterator[Instr]:
        """Load what serves every tile, and compute what depends on nothing else."""
        loads = [v for v in self.job.program.loads if self.job.resident(v, self.axis)]
        for v in loads:
            yield from self._load(v, 0, 0, self.chunk)
        for v in loads:
            yield self.queues[v].deque()
        for step in self.job.program.steps:
            if self.job.once(step.dst, self.axis):
                yield from self.compute(step, self.chunk)

    def tile(self, prefix: int, index: int) -> Iterator[Instr]:
        """Load, compute and store one tile."""
        start = self.share.start + index * self.chunk
        size = min(self.chunk, self.share.start + self.share.length - start)
        program = self.job.program
        loads = [v for v in program.loads if not self.job.resident(v, self.axis)]
        for v in loads:
            yield from self._load(v, self.share.first_prefix + prefix, start, size)
        for v in loads:
            yield self.queues[v].deque()
        for step in program.steps:
            if step.dst in self.outs:
                self.places[step.dst] = yield from self.outs[step.dst][1].alloc()
            if not self.job.once(step.dst, self.axis):
                yield from self.compute(step, size)
        for v in loads:
            yield self.queues[v].free()
        for v, (_, out) in self.outs.items():
            yield out.enque()
            yield out.deque()
            gm, ub = self._transfer(v, self.share.first_prefix + prefix, start, size)
            yield self.k.store(gm, ub)
            yield out.free()

    def _load(self, v: Value, prefix: int, start: int, size: int) -> Iterator[Instr]:
        queue = self.queues[v]
        self.places[v] = yield from queue.alloc()
        gm, ub = self._transfer(v, prefix, start, size)
        yield self.k.load(ub, gm)
        yield queue.enque()

    def compute(self, step: Step, size: int) -> Iterator[Instr]:
        """One step on a tile of `size` along the cut axis."""
        op, dst, srcs = step.op, step.dst, step.srcs
        regions = [self.region(s, size) for s in srcs]
        if op == "brcb":
            dims = len(self.job.dims(dst, self.axis, size))
            yield self.k.vec(op, self._blocks(dst, size), regions[0].expand(dims))
        elif op == "copy" and not any(srcs[0].varies):
            yield self._spread(self.region(dst, size), regions[0])
        else:
            yield self.k.vec(op, self.region(dst, size), *regions, scalar=step.scalar)

    def _spread(self, dst: Region, scalar: Region) -> Instr:
        """A scalar over a tile."""
        costs = self.k.chip.core.vector.costs["dup"]
        rate = (costs.b16 if dst.dtype.itemsize <= 2 else costs.b32) or SPREAD
        source = scalar.broadcast(dst.shape)
        fn = vector_ops.get("copy").fn
        return self.k.vec_by("copy", fn, dst, dst, source, per_repeat=min(rate, SPREAD))

    def region(self, v: Value, size: int) -> Region:
        """The value's place in UB, shaped as the tile (1 where it does not vary)."""
        dims = self.job.dims(v, self.axis, size)
        if not v.spaced:
            return self.places[v].region(dims, v.dtype)
        return self._blocks(v, size)[(*[slice(None)] * len(dims), 0)]

    def _blocks(self, v: Value, size: int) -> Region:
        """A spaced value's 32 B blocks: dims … × elements of a block."""
        dims = self.job.dims(v, self.axis, size)
        return self.places[v].region((*dims, 32 // v.dtype.itemsize), v.dtype)

    def _transfer(self, v: Value, prefix: int, start: int, size: int) -> tuple[Region, Region]:
        """(GM region, UB region) of an operand's part of a tile."""
        space, axis = self.job.space, self.axis
        index = self.outs[v][0] if v in self.outs else v.operand
        gm = Region.dense("GM", index, 0, space.gm_shape(v.varies), v.dtype)
        gm = gm[tuple(self._prefix_index(v, prefix))]
        ub = self.region(v, size)
        periodic = v.varies[-1] and not v.varies[-2]
        if axis < len(space.outer):
            if v.varies[axis]:
                gm = gm[start : start + size]
            line = (slice(None),) * (len(gm.shape) - 1)
        else:
            line = ()
            if v.varies[-2]:
                gm = gm[start * space.unit : min(space.line, (start + size) * space.unit)]
        flat = _flat_line(ub)
        if periodic:
            copies = space.unit // space.period
            return gm.expand(len(line)).broadcast((*gm.shape[:-1], copies, space.period)), (
                flat.split(len(line), space.period)
            )
        return gm, flat[(*line, slice(0, gm.shape[-1]))]

    def _prefix_index(self, v: Value, prefix: int) -> list[int]:
        """Index of the axes before the tiled one (0 where the operand does not vary)."""
        index = []
        for n, u in zip(
            self.job.space.extents[: self.axis][::-1], v.varies[: self.axis][::-1], strict=True
        ):
            prefix, i = divmod(prefix, n)
            index.append(i if u else 0)
        return index[::-1]


def _flat_line(ub: Region) -> Region:
    """The last two axes (reps, unit) of a UB region as one."""
    *outer, reps, unit = ub.shape
    strides = (*ub.strides[:-2], ub.strides[-1])
    return Region(ub.space, -1, ub.offset, (*outer, reps * unit), strides, ub.dtype)
