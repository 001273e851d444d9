"""Multiply-accumulate in fp32 on the vector unit: what MatMulVector and ConvVector share.

C[m, n] += A[m, k] · B[k, n], all three in UB. The elements of A are spread first, each over a
32 B block of its own (brcb), and read with block stride 0. One k then takes m · ceil(n / 64)
repeats of vmla in min(m, ceil(n / 64)) instructions:

    C[i, 64 columns] += A[i, k] · B[k, 64 columns]

The next k adds to the same C, so a pipe barrier stands between them. Where m · n is too small to
hide it, `ways` copies of C take as many k at a time; they are summed at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, EpilogueStep
from npusim.kernels.epilogue import _SCALAR, _TENSOR, VECTOR_STEPS, EpilogueSpec
from npusim.kernels.lang import Alloc, Kernel, Queue
from npusim.program import cost
from npusim.program.access import Access, adds, reads
from npusim.program.isa import CoreMemory, Instr, Kind, Pipe
from npusim.program.kernel import KernelArgs
from npusim.program.region import GM, Region

F32 = np.dtype(np.float32)
SPREAD = 8  #: elements of the 32 B block that one element of A fills
BUSY_REPEATS = 128  #: repeats between barriers that `ways` aims at


def refuse_vector(args: KernelArgs, chip: ChipSpec) -> str:
    """'' when every operand is fp32 and the epilogue is one the vector unit does in place."""
    if "float32" not in chip.core.vector.dtypes:
        return "the vector unit has no float32"
    for operand in args.operands:
        if operand is not None and operand.dtype is not DType.FLOAT32:
            return f"element type {operand.dtype.value}: float32 only"
    out = args.outputs[0]
    for step in args.epilogue:
        if step.op_type not in VECTOR_STEPS:
            return f"epilogue {step.op_type} is not one of {', '.join(VECTOR_STEPS)}"
        if step.op_type != "Relu" and step.operand is None and "const1" not in dict(step.attrs):
            return f"epilogue {step.op_type} without an operand"
        if step.operand is not None:
            other = args.inputs[step.operand]
            if other is None or other.shape != out.shape or other.layout is not out.layout:
                return f"epilogue {step.op_type} broadcasts its operand or mixes layouts"
    return ""


def on_zero(steps: tuple[EpilogueStep, ...]) -> float:
    """What the epilogue makes of a padding element: zero, as are its operands' paddings."""
    value = 0.0
    for step in steps:
        other = float(dict(step.attrs).get("const1", 0.0))
        value = {"Max": max, "Min": min, "Relu": max}.get(step.op_type, float.__add__)(value, other)
    return value


def lanes_of(chip: ChipSpec) -> int:
    """fp32 elements of one repeat: the natural unit of columns."""
    return chip.core.vector.repeat_bytes // 4


def choose_ways(repeats: int, limit: int, fits: Callable[[int], bool]) -> int:
    """Copies of C (a power of two, at most `limit`) for `repeats` repeats per copy and k."""
    ways = 1
    while 2 * ways <= limit and ways * repeats < BUSY_REPEATS and fits(2 * ways):
        ways *= 2
    return ways


# -- the grouped instruction ---------------------------------------------------------------------


@dataclass(slots=True)
class OuterProducts:
    """c[w] += a[:, k] · b[k] over the k with k mod ways = w, for w < ways.

    c: (ways, m, n); a: (m, k, 8), spread; b: (k, n); all fp32 in UB.
    """

    c: Region
    a: Region
    b: Region

    def accesses(self) -> list[Access]:
        """Both operands, and the ways that get a sum."""
        return [*reads(self.a, self.b), *adds(self.c[: self.b.shape[0]])]

    def read(self, memory: CoreMemory) -> list[np.ndarray]:
        """The sum of products of each way."""
        a, b = memory.view(self.a)[..., 0], memory.view(self.b)
        ways = self.c.shape[0]
        with np.errstate(over="ignore", invalid="ignore"):
            return [a[:, w::ways] @ b[w::ways] for w in range(min(ways, len(b)))]

    def write(self, memory: CoreMemory, values: list[np.ndarray]) -> None:
        """Accumulate."""
        c = memory.view(self.c)
        for w, v in enumerate(values):
            c[w] += v


def macs_cost(chip: ChipSpec, shape: tuple[int, int, int], k: int) -> tuple[int, int]:
    """(cycles, instructions) of `k` values of k into C of shape (ways, m, n), barriers included."""
    ways, m, n = shape
    full, rest = divmod(k, ways)
    cycles, count = _step_cost(chip, ways, m, n)
    cycles, count = cycles * full, count * full
    if rest:
        more, instructions = _step_cost(chip, rest, m, n)
        cycles, count = cycles + more, count + instructions
    barriers = max(0, full + (rest > 0) - 1)
    return cycles + barriers * chip.core.vector.tail, count + barriers


def _step_cost(chip: ChipSpec, ways: int, m: int, n: int) -> tuple[int, int]:
    """vmla's over (ways, m, n) that do not depend on each other.

    An instruction repeats along a row, or along one of the other axes in one strip of columns;
    as `cost.vector_repeats` finds for these regions.
    """
    strips, limit = -(-n // lanes_of(chip)), chip.core.vector.max_repeat
    by_row = ways * m * -(-strips // limit)
    by_strip = strips * min(ways, m) * -(-max(ways, m) // limit)
    count = min(by_row, by_strip)
    return cost.vector_cycles(chip, "mla", 32, ways * m * strips, count), count


def macs(k: Kernel, c: Region, a: Region, b: Region) -> Instr:
    """V: the vmla's of OuterProducts(c, a, b), issued and executed as one group."""
    ways, m, n = c.shape
    cycles, count = macs_cost(k.chip, (ways, m, n), b.shape[0])
    serial = k._depends(c, (a, b))
    k._touch(c)
    effect = OuterProducts(c, a, b) if k.functional else None
    issue, tail = count * k.chip.core.scalar.issue, k.chip.core.vector.tail
    return Instr(Kind.LOCAL, Pipe.V, "mla", issue, cycles, tail, effect, serial)


def spread_cycles(chip: ChipSpec, elements: int) -> int:
    """Cycles to spread elements of A over 32 B blocks."""
    repeats = -(-elements * SPREAD // lanes_of(chip))
    instructions = -(-repeats // chip.core.vector.max_repeat)
    return cost.vector_cycles(chip, "transpose", 32, repeats, instructions)


def pass_cycles(chip: ChipSpec, elements: int) -> float:
    """Cycles of one dependent elementwise pass over fp32 elements."""
    vec = chip.core.vector
    per = vec.costs["binary"].b32 or 0.0
    return elements / lanes_of(chip) * per + vec.head + vec.tail


# -- results -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tile:
    """One tile of the result: m rows of n columns from `column`, `pitch` apart in UB.

    Attributes:
        valid: columns of the tile that have a bias (the rest is padding).
        gm: operand index → the tile in that operand.
        local: the same elements, in the same order, in an allocation of m · pitch floats.
    """

    m: int
    n: int
    pitch: int
    column: int
    valid: int
    gm: Callable[[int], Region]
    local: Callable[[Alloc], Region]


def result_bytes(spec: EpilogueSpec, ways: int, m: int, pitch: int) -> int:
    """UB bytes of `Results`."""
    residuals = sum(s.operand is not None for s in spec.steps)
    bias = 4 * pitch if spec.bias is not None else 0
    return 8 * m * pitch * (ways + residuals) + bias


def result_passes(spec: EpilogueSpec, ways: int) -> int:
    """Passes of the vector unit over an m × n tile, besides the multiplications."""
    return 2 * ways - 1 + (spec.bias is not None) + len(spec.steps)


class Results:
    """Accumulators in UB: zeroed, handed to the body, finished by the epilogue, stored."""

    def __init__(self, k: Kernel, spec: EpilogueSpec, ways: int, m: int, pitch: int) -> None:
        self._k, self._spec, self._ways = k, spec, ways
        self._out = k.queue("UB", 4 * ways * m * pitch, 2, Pipe.V, Pipe.MTE3)
        if spec.bias is not None:
            self._bias = k.queue("UB", 4 * pitch, 1, Pipe.MTE2, Pipe.V)
        self._others: dict[int, Queue] = {
            s.operand: k.queue("UB", 4 * m * pitch, 2, Pipe.MTE2, Pipe.V)
            for s in spec.steps
            if s.operand is not None
        }

    def begin(self, tile: Tile) -> Generator[Instr, None, Region]:
        """`c = yield from begin(tile)`: a zeroed accumulator (ways, m, n); loads set out."""
        k, spec = self._k, self._spec
        for operand, queue in self._others.items():
            slot = yield from queue.alloc()
            yield k.load(tile.local(slot), tile.gm(operand))
            yield queue.enque()
        if spec.bias is not None:
            slot = yield from self._bias.alloc()
            row = slot.region((tile.n,), F32)
            src = Region.dense(GM, spec.bias, 4 * tile.column, (tile.valid,), F32)
            yield k.load(row[: tile.valid], src, row if tile.valid < tile.n else None)
            yield self._bias.enque()
        slot = yield from self._out.alloc()
        c = slot.region((self._ways, tile.m, tile.pitch), F32)
        yield k.vec("dup", c, scalar=0.0)
        return c[:, :, : tile.n]

    def finish(self, tile: Tile, c: Region) -> Iterator[Instr]:
        """Sum the ways, apply bias and epilogue, store."""
        k, ways = self._k, self._ways
        while ways > 1:
            ways //= 2
            yield k.vec("add", c[:ways], c[:ways], c[ways : 2 * ways])
        y = c[0]
        if self._spec.bias is not None:
            yield self._bias.deque()
            yield k.vec("add", y, y, self._bias.front.region((1, tile.n), F32))
            yield self._bias.free()
        for step in self._spec.steps:
            yield from self._step(step, tile, y)
        yield self._out.enque()
        yield self._out.deque()
        yield k.store(tile.gm(len(k.args.inputs)), tile.local(self._out.front))
        yield self._out.free()

    def _step(self, step: EpilogueStep, tile: Tile, y: Region) -> Iterator[Instr]:
        k = self._k
        if step.op_type == "Relu":
            yield k.vec("maxs", y, y, scalar=0.0)
        elif step.operand is None:
            yield k.vec(_SCALAR[step.op_type], y, y, scalar=dict(step.attrs)["const1"])
        else:
            queue = self._others[step.operand]
            yield queue.deque()
            other = queue.front.region((tile.m, tile.pitch), F32)
            yield k.vec(_TENSOR[step.op_type], y, y, other[:, : tile.n])
            yield queue.free()
