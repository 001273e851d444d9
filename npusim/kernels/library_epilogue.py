"""What CANN's fused matrix kernels do between L0C and GM, on first-generation chips.

Unlike npusim's own epilogue (`epilogue`), which works in fp32 and rounds once, the library's:

* puts the bias into L0C before the product is summed on top of it;
* moves L0C to UB in the stored type and works there in that type: one pass for ReLU, a scalar or
  a further tensor. GeLU, its gradient and Tanh widen to fp32 and back;
* may keep the product (with its bias) as a first output, for the backward pass or an optimiser;
  what the steps make of it is then the second one;
* may add a row to every row of a batch (an attention mask).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import EpilogueStep, Layout
from npusim.kernels.epilogue import F32, CubeOutput, EpilogueSpec, TileSpan, make_spec
from npusim.kernels.expressions import lower
from npusim.kernels.queues import Alloc, Queue
from npusim.kernels.vector_program import Builder, Program, Value
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs
from npusim.program.region import GM, Region

REPEAT = 8  #: rows of 16 fp16 values that one vector repeat covers
PROGRAMS = ("Gelu", "GeluGrad", "Tanh")  #: steps of many vector instructions, in fp32
_SCALAR = {"Add": "adds", "Mul": "muls", "Max": "maxs", "Min": "mins"}
_TENSOR = {"Add": "add", "Mul": "mul", "Max": "max", "Min": "min"}


@dataclass(frozen=True)
class LibrarySpec(EpilogueSpec):
    """An epilogue as the library does it; `kept`: the product is an output of its own."""

    kept: bool = False

    @property
    def programs(self) -> list[Program]:
        """Programs of the steps that are some."""
        return [step_program(s) for s in self.steps if s.op_type in PROGRAMS]

    @property
    def words(self) -> int:
        """fp32 values per element that the programs work on: operands, then registers."""
        return max((2 + len(p.registers) for p in self.programs), default=0)

    @property
    def slots(self) -> int:
        """Strips in flight: where programs bind, the next comes and the last goes meanwhile."""
        return 2 if self.programs else 1

    @property
    def holds_back(self) -> bool:
        """The next tile's loads come before the last strip, whose operands they would wait for."""
        return self.bias is None and bool(self.programs)

    @cached_property
    def strip_bytes(self) -> int:
        """UB bytes per element of a strip: buffers out, residuals, fp32 work."""
        others = sum(s.operand is not None for s in self.steps)
        return self.slots * self.out.itemsize * (1 + self.kept + others) + 4 * self.words


@lru_cache(maxsize=256)
def library_spec(args: KernelArgs) -> LibrarySpec:
    """The launch's epilogue."""
    s = make_spec(args)
    return LibrarySpec(s.bias, s.steps, s.out, s.bias_bytes, kept=len(args.outputs) > 1)


@lru_cache(maxsize=64)
def step_program(step: EpilogueStep) -> Program:
    """A step's fp32 program on the running value (operand 0) and its other operand (1)."""
    b = Builder(F32, 1)
    operands: list[Any] = [Value(F32, (True,), 0)]
    if step.operand is not None:
        operands.append(Value(F32, (True,), 1))
    return b.finish(lower(b, step.op_type, dict(step.attrs), operands), [F32])


def is_row(args: KernelArgs, operand: int) -> bool:
    """True for an operand with one row for all rows of a batch, or of several batches in turn."""
    row, out = args.operands[operand], args.outputs[0]
    lead = len(out.shape) - 2
    if row is None or len(row.shape) != lead + 2 or row.shape[-2:] != (1, out.shape[-1]):
        return False
    same = next((i for i in range(lead) if row.shape[i] != out.shape[i]), lead)
    one = all(n == 1 for n in row.shape[same:lead])
    plain = row.layout is Layout.ND and out.layout is Layout.FRACTAL_NZ
    whole = out.shape[-2] % 16 == 0  # a row would fill the padding below a ragged last one
    return one and plain and whole and row.dtype is out.dtype


def refuse_library_epilogue(args: KernelArgs, chip: ChipSpec) -> str:
    """'' when the library's kernel has the epilogue, else why not."""
    if len(args.outputs) > 2 or any(o != args.outputs[0] for o in args.outputs):
        return "outputs that are not the product and what the steps make of it"
    if len(args.outputs) == 2 and not args.epilogue:
        return "a second output without a step"
    for step in args.epilogue:
        if step.op_type not in (*PROGRAMS, *_TENSOR, "Relu"):
            return f"epilogue {step.op_type}"
        scalar = step.op_type in PROGRAMS or step.op_type == "Relu" or "const1" in dict(step.attrs)
        if step.operand is None and not scalar:
            return f"epilogue {step.op_type} without an operand"
        if step.operand is None or args.inputs[step.operand] == args.outputs[0]:
            continue
        if step.op_type != "Add" or not is_row(args, step.operand):
            return f"epilogue {step.op_type} with an operand unlike the result"
    return ""


class LibraryOutput(CubeOutput):
    """Drains L0C tiles to GM as the library does."""

    _spec: LibrarySpec
    _held: tuple[Region, int, int, TileSpan] | None = None

    def _allocate(self, strip: int) -> None:
        k, spec = self._k, self._spec
        size = strip * spec.out.itemsize
        self._out = k.queue("UB", size, spec.slots, Pipe.V, Pipe.MTE3)
        if spec.kept:
            self._kept = k.queue("UB", size, spec.slots, Pipe.V, Pipe.MTE3)
        self._residuals = {
            s.operand: k.queue("UB", size, spec.slots, Pipe.MTE2, Pipe.V)
            for s in spec.steps if s.operand is not None
        }  # fmt: skip
        self._words = [k.alloc("UB", strip * 4) for _ in range(spec.words)]
        self._seeded = k.flag_id()

    def seed(self, c: Region, n1: int) -> Iterator[Instr]:
        """V writes the bias into the L0C tile c (N1, M1, 16, 16) at column block n1."""
        k, (nu, m1) = self._k, c.shape[:2]

        def fill() -> Instr:
            assert self._spec.bias is not None
            row = self._row(self._spec.bias, n1, nu).split(0, 16).expand(1)
            return k.ub_to_l0c(c, row.broadcast((nu, m1 * 16, 16)).split(1, 16))

        yield k.memo(("seed", nu, m1), fill)
        yield k.set_flag(Pipe.V, Pipe.M, self._seeded)
        yield k.wait_flag(Pipe.V, Pipe.M, self._seeded)

    def drain(self, n1: int, n_blocks: int, n_valid: int, tile: TileSpan) -> Iterator[Instr]:
        """All of a tile but, where the spec holds back, its last strip: see `finish`."""
        yield from self.finish()
        holds_back = self._spec.holds_back and len(self.queue.slots) > 1
        yield self.queue.deque()
        l0c = self.queue.front.region((n_blocks, tile.m16, 16), F32)
        for start in range(0, n_blocks, self._nu):
            nu = min(self._nu, n_blocks - start)
            width = min(nu * 16, n_valid - (n1 + start) * 16)
            strip = (l0c[start : start + nu], n1 + start, width, tile)
            if holds_back and start + nu == n_blocks:
                self._held = strip
                return
            yield from self._strip(*strip)
        yield self.queue.free()

    def finish(self) -> Iterator[Instr]:
        """The strip that was held back, if any."""
        if self._held is not None:
            strip, self._held = self._held, None
            yield from self._strip(*strip)
            yield self.queue.free()

    def _strip(self, l0c: Region, n1: int, width: int, tile: TileSpan) -> Iterator[Instr]:
        k, spec, (nu, m16) = self._k, self._spec, l0c.shape[:2]
        key = (nu, width, tile.rows)
        for operand, queue in self._residuals.items():
            slot = yield from queue.alloc()
            yield k.memo(
                ("residual", operand, *key),
                lambda slot=slot, op=operand: self._load_operand(slot, op, nu, n1, tile, width),  # type: ignore[misc]
            )
            yield queue.enque()
        queue = self._kept if spec.kept else self._out
        first = yield from queue.alloc()
        local = self._shape(first, spec.out, nu, m16)
        yield k.memo(("copy_l0c", nu, m16), lambda: k.l0c_to_ub(local, l0c))
        result = first
        if spec.kept:
            result = yield from self._out.alloc()
        source, size = first, nu * m16 * 16
        for i, step in enumerate(spec.steps):
            yield from self._library_step(i, step, result, source, (nu, size))
            source = result
        outputs = [(self._kept, first), (self._out, result)] if spec.kept else [(queue, first)]
        for output, (done, alloc) in enumerate(outputs):
            yield from self._write(output, done, alloc, n1, nu, tile, key)

    def _load_operand(
        self, slot: Alloc, operand: int, nu: int, n1: int, tile: TileSpan, width: int
    ) -> Instr:
        """A further tensor's strip, or the stretch of a row."""
        k = self._k
        if not is_row(k.args, operand):
            return self._load_residual(slot, operand, nu, n1, tile)
        row, out = k.args.operands[operand], k.args.outputs[0]
        batch = tile.batch * prod(row.shape[:-2]) // prod(out.shape[:-2])
        start = (batch * row.shape[-1] + n1 * 16) * row.dtype.size
        src = Region.dense(GM, operand, start, (width,), row.dtype.np)
        whole = slot.region((nu * 16,), row.dtype.np)
        return k.load(whole[:width], src, whole if width < nu * 16 else None)

    def _write(
        self, output: int, queue: Queue, alloc: Alloc, n1: int, nu: int, tile: TileSpan,
        key: tuple[int, ...],
    ) -> Iterator[Instr]:  # fmt: skip
        """A finished strip of an output to GM."""
        k = self._k
        yield queue.enque()
        yield queue.deque()

        def store() -> Instr:
            strip = self._shape(alloc, self._spec.out, nu, tile.m16)
            return k.store_pairs(self._view.pieces(k.output(output), strip, n1, tile))

        yield k.memo(("store", output, *key), store)
        yield queue.free()

    def _library_step(
        self, i: int, step: EpilogueStep, result: Alloc, source: Alloc, extent: tuple[int, int]
    ) -> Iterator[Instr]:
        """result ← step(source) in the stored type; extent: column blocks, elements."""
        k, dtype = self._k, self._spec.out
        nu, size = extent
        dst, src = result.region((size,), dtype), source.region((size,), dtype)
        other: Region | None = None
        if step.operand is not None:
            queue = self._residuals[step.operand]
            yield queue.deque()
            other = queue.front.region((size,), dtype)
        key = ("step", i, size)
        if step.operand is not None and is_row(k.args, step.operand):
            slot = self._residuals[step.operand].front
            row = slot.region((nu, 1, 16), dtype)
            held = slot.region((nu, REPEAT, 16), dtype, row.nbytes)
            yield k.memo((*key, "hold"), lambda: k.vec("copy", held, row))
            shape = (nu, size // nu // (REPEAT * 16), REPEAT * 16)
            held = slot.region((nu, 1, REPEAT * 16), dtype, row.nbytes)
            dst, src = result.region(shape, dtype), source.region(shape, dtype)
            yield k.memo(key, lambda: k.vec("add", dst, src, held))
        elif step.op_type in PROGRAMS:
            yield from self._run(step, dst, src, other, key)
        elif other is not None:
            yield k.memo(key, lambda: k.vec(_TENSOR[step.op_type], dst, src, other))
        else:
            op = "maxs" if step.op_type == "Relu" else _SCALAR[step.op_type]
            scalar = 0.0 if step.op_type == "Relu" else dict(step.attrs)["const1"]
            yield k.memo(key, lambda: k.vec(op, dst, src, scalar=scalar))
        if step.operand is not None:
            yield self._residuals[step.operand].free()

    def _run(
        self, step: EpilogueStep, dst: Region, src: Region, other: Region | None,
        key: tuple[object, ...],
    ) -> Iterator[Instr]:  # fmt: skip
        """A step's program in fp32, with the conversions to it and back."""
        k, program = self._k, step_program(step)
        words = [w.region(dst.shape, F32) for w in self._words]
        for j, operand in enumerate(o for o in (src, other) if o is not None):
            yield k.memo((*key, "in", j), lambda w=words[j], o=operand: k.vec(_to(o), w, o))  # type: ignore[misc]

        def place(v: Value) -> Region:
            if v in program.results:
                return words[0]
            return words[v.operand] if v.operand >= 0 else words[2 + program.slots[v]]

        for j, line in enumerate(program.steps):
            yield k.memo(
                (*key, j),
                lambda s=line: k.vec(s.op, place(s.dst), *map(place, s.srcs), scalar=s.scalar),  # type: ignore[misc]
            )
        yield k.memo((*key, "out"), lambda: k.vec(_to(dst), dst, words[0]))


def _to(narrow: Region) -> str:
    """The instruction between fp32 and the stored type."""
    return "copy" if narrow.dtype == np.float32 else "conv"
