"""Elementwise: operators of any number of inputs and outputs, with broadcasting, and chains.

A tile stays in UB from its loads through every step of the chain to its store. Operands that do
not vary along the tiled axes are loaded, and what depends on them alone is computed, once per
block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod
from typing import Any

from npusim.chip.spec import ChipSpec
from npusim.errors import UnsupportedError
from npusim.ir import DType
from npusim.kernels import (
    library_expressions,  # noqa: F401  (registers programs)
    training_expressions,  # noqa: F401
    vector_ops,
)
from npusim.kernels.broadcast import MAX_UNIT, Space, aligned_shape, make_space
from npusim.kernels.estimate import pipeline_cycles
from npusim.kernels.expressions import LOWER, lower, working_type
from npusim.kernels.lang import Alloc, Kernel, Queue, TileKernel
from npusim.kernels.vector_program import Builder, Program, Value
from npusim.ops import get_operator
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import Region

__all__ = ["LOWER", "Elementwise", "lowered", "unsupported_type"]

#: Output bytes per block below which CANN adds no block: of most operators, and of those with
#: several outputs or scalars in the tile loop (recorded block dims: 768 fp32 -> 2, and -> 3).
MIN_BLOCK_BYTES, SMALL_BLOCK_BYTES = 2048, 1024
UB_SHARE = 0.75  #: of UB that tiles take
#: CANN's generated schedule of these computes on scalars in the tile loop, as on whole tensors:
#: 1050 cycles a tile beside the passes in LambApplyWeightAssign, whatever the tile's size.
TILE_SCALARS = ("LambApplyWeightAssign",)
#: Cycles per 256 B repeat to spread a scalar over a tile: a vector_dup reads nothing that could
#: meet in a bank, so it writes a repeat a cycle (910B: 0.94; LambApplyOptimizerAssign's slope).
SPREAD = 1.06
HOT = 0.02  #: weight of the time with all operands in L2: it parts tilings that HBM makes equal


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

    def footprint(self, axis: int, chunk: int) -> int:
        """UB bytes that a tiling takes."""
        program = self.program
        size = sum(2 * self.nbytes(v, axis, chunk) for v in program.results)
        for v in program.loads:
            slots = 1 if self.resident(v, axis) else 2
            size += slots * self.nbytes(v, axis, chunk)
        size += sum(self.nbytes(s.dst, axis, chunk) for s in program.steps if not s.dst.full)
        tile = chunk * prod(self.space.extents[axis + 1 :])
        return size + sum(-(-tile * width // 32) * 32 for width in program.registers)


def _constants(attrs: dict[str, Any], operands: list[Any]) -> list[Any]:
    """Operands with compile-time constants (attributes const0, const1 …) in place."""
    found = {int(k[5:]): v for k, v in attrs.items() if k[:5] == "const" and k[5:].isdigit()}
    size = max([len(operands), *(i + 1 for i in found)])
    padded = [*operands, *[None] * (size - len(operands))]
    return [found.get(i, v) for i, v in enumerate(padded)]


def _chain(args: KernelArgs) -> list[tuple[str, dict[str, Any], list[int]]]:
    """(operator, attributes with defaults, operand indices) of the operator and its epilogue."""
    fused = {s.operand for s in args.epilogue if s.operand is not None}
    main = [i for i in range(len(args.inputs)) if i not in fused]
    chain = [(args.op_type, dict(args.attrs), main)]
    chain += [
        (s.op_type, dict(s.attrs), [] if s.operand is None else [s.operand]) for s in args.epilogue
    ]
    return [(op, {**get_operator(op).attrs, **attrs}, ops) for op, attrs, ops in chain]


@lru_cache(maxsize=4096)
def lowered(args: KernelArgs, cap: int) -> Job:
    """The launch as a program; `cap` bounds a unit's elements.

    Raises:
        UnsupportedError: an operator, type or layout that the kernel does not take.
    """
    out = args.outputs[0]
    present = [i for i, o in enumerate(args.inputs) if o is not None]
    specs = {i: o for i, o in enumerate(args.inputs) if o is not None}
    channels = args.op_type == "BatchNormalization"
    shapes = [aligned_shape(specs[i], out, channels and i > 0) for i in present]
    widths = [specs[i].dtype.size for i in present] + [o.dtype.size for o in args.outputs]
    space = make_space(shapes, out.storage_shape, 32 // min(*widths, 2), cap)
    chain = _chain(args)
    floats = {o.dtype.np for o in [*specs.values(), out] if o.dtype.is_float}
    work = working_type(
        [(op, len(ops) if i == 0 else 2) for i, (op, _, ops) in enumerate(chain)], floats
    )
    half = bool(floats) and all(f.itemsize == 2 for f in floats)
    b = Builder(work, len(space.extents), half)
    values: dict[int, Value] = {
        i: Value(specs[i].dtype.np, p, i) for i, p in zip(present, space.patterns, strict=True)
    }
    running: list[Any] = []
    for op, attrs, operands in chain:
        given = [*running, *(values.get(i) for i in operands)]
        if op == "Cast" and "to" not in attrs:
            attrs = {**attrs, "to": out.dtype}
        running = lower(b, op, attrs, _constants(attrs, given))
    if len(running) != len(args.outputs):
        raise UnsupportedError(
            f"{len(args.outputs)} outputs of {args.op_type}", str(len(running)), "name every output"
        )
    program = b.finish(running, [o.dtype.np for o in args.outputs])
    return Job(space, program, args.op_type not in TILE_SCALARS)


def _job(args: KernelArgs, chip: ChipSpec) -> Job:
    return lowered(args, min(MAX_UNIT, chip.core.ub.size // 128))


def unsupported_type(dtype: DType, chip: ChipSpec, computed: bool = True) -> str:
    """Why the vector unit cannot take elements of this type ('' when it can)."""
    known = set(chip.core.vector.dtypes) | {"bool"}
    if not computed:
        known |= {"int8", "uint8"}
    if "bfloat16" in chip.core.cube.k:
        known.add("bfloat16")
        known |= set() if computed else {"int64"}  # conversions of the 910B's generation
    return "" if dtype.value in known else f"the vector unit has no {dtype.value}"


def _row(args: KernelArgs, job: Job, axis: int) -> int:
    """Units of a row that tiles keep whole (1: they need not).

    Where scalars are computed in the tile loop, the schedule has not made one axis of all.
    """
    length, unit = (args.outputs[0].storage_shape or (1,))[-1], job.space.unit
    whole = len(job.space.outer) == axis and length % unit == 0
    return 1 if job.keeps_scalars or not whole else length // unit


@kernel("Elementwise")
class Elementwise(TileKernel):
    """Elementwise operators and chains; operators are the keys of `LOWER`.

    A compile-time constant operand may be given as attribute `const<i>` instead of an input.
    Tiling: `axis` is cut into tiles of `chunk`; blocks are `before` parts of the axes before it
    times `parts` parts of it.
    """

    core_type = "AIV"
    in_place = True  # a tile is loaded once, before the results over it are stored

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        if any(o.shape != args.outputs[0].shape for o in args.outputs):
            return "outputs of different shapes"
        if not args.outputs[0].nbytes:
            return "an empty output"
        computed = args.op_type not in ("Cast", "Identity")
        for spec in args.operands:
            reason = spec and unsupported_type(spec.dtype, chip, computed)
            if reason:
                return reason
        try:
            job = _job(args, chip)
        except UnsupportedError as e:
            return e.what
        costs = chip.core.vector.costs
        for step in job.program.steps:
            if vector_ops.get(step.op).cost not in costs:
                return f"the vector unit has no {step.op}"
        return ""

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        job = _job(args, chip)
        extents = job.space.extents
        room = int(chip.core.ub.size * UB_SHARE)
        small = len(args.outputs) > 1 or not job.keeps_scalars
        grain = SMALL_BLOCK_BYTES if small else MIN_BLOCK_BYTES
        want = min(chip.vector_cores(), -(-args.outputs[0].nbytes // grain))
        for axis in range(len(extents) - 1):
            one, two = job.footprint(axis, 1), job.footprint(axis, 2)
            if one > room:
                continue
            most = 1 + (room - one) // max(1, two - one)
            row = _row(args, job, axis)
            prefix, n = prod(extents[:axis]), extents[axis]
            splits = {(min(prefix, want // p), p) for p in (1, 2, 3, 5) if p <= min(n, want)}
            if prefix <= want:
                splits = {(prefix, min(n, max(1, want // prefix)))} | splits
            for before, parts in sorted(splits):
                share = -(-n // parts)
                chunks = {-(-share // k) for k in (1, 2, 4)} | {-(-share // -(-share // most))}
                if row <= min(share, most):
                    chunks = {min(share, most) // row * row} if row > 1 else chunks
                for chunk in sorted(c for c in chunks if c <= most):
                    yield {"axis": axis, "chunk": chunk, "before": before, "parts": parts}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        job = _job(args, chip)
        core, extents = chip.core, job.space.extents
        axis, chunk = tiling["axis"], tiling["chunk"]
        share = -(-extents[axis] // tiling["parts"])
        prefixes = -(-prod(extents[:axis]) // tiling["before"])
        tiles = prefixes * ceil(share / chunk)
        inner = prod(extents[axis + 1 :])
        elements = prefixes * share * inner
        vector = _vector_cycles(job, chip, elements) + tiles * len(job.program.steps) * (
            core.vector.head + core.vector.tail
        )
        rows = elements / (extents[-2] * extents[-1])
        streamed = [v for v in job.program.loads if not job.resident(v, axis)]
        loaded = sum(
            prod(n if u else 1 for n, u in zip(extents, v.varies, strict=True)) * v.dtype.itemsize
            for v in streamed
            if v.full
        )
        blocks = tiling["before"] * tiling["parts"]
        stored = sum(o.nbytes for o in args.outputs)
        cycles = 0.0
        for memory, weight in ((chip.hbm_rate, 1.0), (chip.l2_rate, HOT)):
            into, out = (min(r, memory / blocks) for r in (core.mte2.ub_rate, core.mte3.rate))
            read = max(loaded / blocks / into, rows * core.mte2.burst * len(streamed))
            read += tiles * len(streamed) * core.mte2.head
            write = max(stored / blocks / out, rows * core.mte3.burst)
            write += tiles * core.mte3.head
            shared = (loaded + stored) / memory
            cycles += pipeline_cycles(chip, vector, read, write, shared, tiles) * weight
        return cycles

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        job = _job(args, chip)
        blocks = [Share.of(job, tiling, b) for b in range(tiling["before"] * tiling["parts"])]
        traffic = {}
        for v in job.program.loads:
            width = v.dtype.itemsize
            total = sum(s.loaded(job, tiling, v) for s in blocks)
            unique = prod(job.space.gm_shape(v.varies))
            traffic[v.operand] = Traffic(unique * width, total * width)
        for i, spec in enumerate(args.outputs, len(args.inputs)):
            traffic[i] = Traffic(spec.nbytes, spec.nbytes)
        keys = [(s.prefixes, s.length, s.elements(job, tiling)) for s in blocks]
        return Plan(tiling, len(blocks), traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        run = _Run(k, args, tiling, block)
        yield from run.residents()
        for prefix in k.loop(run.share.prefixes):
            for tile in k.loop(run.share.tiles(tiling["chunk"])):
                yield from run.tile(prefix, tile)


def _vector_cycles(job: Job, chip: ChipSpec, elements: int) -> float:
    """Cycles of the program's full-size steps over that many elements."""
    vec = chip.core.vector
    total = 0.0
    for step in job.program.steps:
        if not step.dst.full:
            continue
        bits = 8 * max(v.dtype.itemsize for v in (step.dst, *step.srcs))
        costs = vec.costs[vector_ops.get(step.op).cost]
        per = (costs.b16 if bits <= 16 else costs.b32) or 0.0
        total += per * elements * bits / 8 / vec.repeat_bytes
    return total


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


class _Run:
    """One block at work: its buffers, and the instructions of a tile."""

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> None:
        self.k = k
        self.job = _job(args, k.chip)
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
        for i, v in enumerate(program.results, len(args.inputs)):
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
                yield self._compute(step.op, step.dst, step.srcs, step.scalar, self.chunk)

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
                yield self._compute(step.op, step.dst, step.srcs, step.scalar, size)
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

    def _compute(
        self, op: str, dst: Value, srcs: tuple[Value, ...], scalar: Any, size: int
    ) -> Instr:
        if op == "brcb":
            dims = len(self.job.dims(dst, self.axis, size))
            return self.k.vec(op, self._blocks(dst, size), self._region(srcs[0], size).expand(dims))
        regions = [self._region(s, size) for s in srcs]
        if op == "copy" and not any(srcs[0].varies):
            return self._spread(self._region(dst, size), regions[0])
        return self.k.vec(op, self._region(dst, size), *regions, scalar=scalar)

    def _spread(self, dst: Region, scalar: Region) -> Instr:
        """A scalar over a tile."""
        costs = self.k.chip.core.vector.costs["dup"]
        rate = (costs.b16 if dst.dtype.itemsize <= 2 else costs.b32) or SPREAD
        source = scalar.broadcast(dst.shape)
        fn = vector_ops.get("copy").fn
        return self.k.vec_by("copy", fn, dst, dst, source, per_repeat=min(rate, SPREAD))

    def _region(self, v: Value, size: int) -> Region:
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
        ub = self._region(v, size)
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
