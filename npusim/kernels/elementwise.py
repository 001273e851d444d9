"""Elementwise: operators of any number of inputs and outputs, with broadcasting, and chains.

A tile stays in UB from its loads through every step of the chain to its store. Operands that do
not vary along the tiled axes are loaded, and what depends on them alone is computed, once per
block.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache
from math import ceil, prod
from typing import Any, ClassVar

from npusim.chip.spec import ChipSpec
from npusim.errors import UnsupportedError
from npusim.ir import DType
from npusim.kernels import (
    library_expressions,  # noqa: F401  (registers programs)
    quant_expressions,
    training_expressions,  # noqa: F401
    trigonometry,  # noqa: F401
    vector_ops,
)
from npusim.kernels.broadcast import MAX_UNIT, aligned_shape, make_space
from npusim.kernels.estimate import pipeline_cycles
from npusim.kernels.expressions import LOWER, lower, working_type
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.ub_chain import Job, Run, Share
from npusim.kernels.vector_program import FOLD, Builder, Value
from npusim.ops import get_operator
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel

__all__ = ["LOWER", "Elementwise", "lowered", "unsupported_type"]

#: Output bytes per block below which CANN adds no block: of most operators, and of those with
#: several outputs or scalars in the tile loop (recorded block dims: 768 fp32 -> 2, and -> 3).
MIN_BLOCK_BYTES, SMALL_BLOCK_BYTES = 2048, 1024
#: Operators that read or write bytes, which the vector unit converts and does not compute with.
CONVERSIONS = ("Cast", "Identity", *quant_expressions.QUANTISATION)
UB_SHARE = 0.75  #: of UB that tiles take
#: CANN's generated schedule of these computes on scalars in the tile loop, as on whole tensors:
#: 1050 cycles a tile beside the passes in LambApplyWeightAssign, whatever the tile's size.
TILE_SCALARS = ("LambApplyWeightAssign",)
HOT = 0.02  #: weight of the time with all operands in L2: it parts tilings that HBM makes equal


def constants_of(attrs: dict[str, Any], operands: list[Any]) -> list[Any]:
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
        running = lower(b, op, attrs, constants_of(attrs, given))
    if len(running) != len(args.outputs):
        raise UnsupportedError(
            f"{len(args.outputs)} outputs of {args.op_type}", str(len(running)), "name every output"
        )
    program = b.finish(running, [o.dtype.np for o in args.outputs])
    return Job(space, program, args.op_type not in TILE_SCALARS)


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
    run: ClassVar[type[Run]] = Run

    @staticmethod
    def replaceable(args: KernelArgs) -> Collection[int]:
        """All: a tile is loaded once, before the results over it are stored."""
        return range(len(args.inputs))

    @classmethod
    def job(cls, args: KernelArgs, chip: ChipSpec) -> Job:
        """The launch, lowered."""
        return lowered(args, min(MAX_UNIT, chip.core.ub.size // 128))

    @classmethod
    def refuse(cls, args: KernelArgs, chip: ChipSpec) -> str:
        if any(o.shape != args.outputs[0].shape for o in args.outputs):
            return "outputs of different shapes"
        if not args.outputs[0].nbytes:
            return "an empty output"
        last = args.epilogue[-1].op_type if args.epilogue else args.op_type
        for op_type, specs in ((args.op_type, args.inputs), (last, args.outputs)):
            for spec in specs:
                reason = spec and unsupported_type(spec.dtype, chip, op_type not in CONVERSIONS)
                if reason:
                    return reason
        try:
            job = cls.job(args, chip)
        except UnsupportedError as e:
            return e.what
        costs = chip.core.vector.costs
        for step in job.program.steps:
            if not step.op.startswith(FOLD) and vector_ops.get(step.op).cost not in costs:
                return f"the vector unit has no {step.op}"
        return ""

    @classmethod
    def tilings(cls, args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        job = cls.job(args, chip)
        extents = job.space.extents
        room = int(chip.core.ub.size * UB_SHARE)
        small = len(args.outputs) > 1 or not job.keeps_scalars
        grain = SMALL_BLOCK_BYTES if small else MIN_BLOCK_BYTES
        want = min(chip.vector_cores(), -(-job.nbytes_shared(args) // grain))
        for axis in range(job.cut_axes()):
            one, two = (job.footprint(chip, axis, n) for n in (1, 2))
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

    @classmethod
    def estimate(cls, args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        job = cls.job(args, chip)
        core, extents = chip.core, job.space.extents
        axis, chunk = tiling["axis"], tiling["chunk"]
        share = -(-extents[axis] // tiling["parts"])
        prefixes = -(-prod(extents[:axis]) // tiling["before"])
        tiles = prefixes * ceil(share / chunk)
        inner = prod(extents[axis + 1 :])
        elements = prefixes * share * inner
        vector = job.vector_cycles(chip, elements) + tiles * job.instructions(chip) * (
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

    @classmethod
    def plan(cls, args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        job = cls.job(args, chip)
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

    @classmethod
    def body(cls, k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        run = cls.run(k, cls.job(args, k.chip), len(args.inputs), tiling, block)
        yield from run.residents()
        for prefix in k.loop(run.share.prefixes):
            for tile in k.loop(run.share.tiles(tiling["chunk"])):
                yield from run.tile(prefix, tile)
