"""What happens to a cube result between L0C and GM: bias, activation, residual, cast, store.

On chips without FIXP the result leaves through the vector pipe: strips of an L0C tile are moved
to UB, worked on there in fp32 when there is anything to do, cast and stored by MTE3. On chips
with FIXP the cube core stores L0C itself, with bias and ReLU on the way; nothing else can be
fused there.

An L0C tile is (N1, M1, 16, 16) fp32. A strip is `nu` of its N1 columns: (nu, m16, 16). In UB a
strip lies as *blocks* (NZ, for FRACTAL_NZ and NC1HWC0 outputs) or as *rows* (ND outputs).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import EpilogueStep, Layout
from npusim.ir.layout import c0_of
from npusim.kernels import column_row
from npusim.kernels.column_row import ColumnRow
from npusim.kernels.lang import Kernel
from npusim.kernels.queues import Alloc, Queue
from npusim.kernels.requant import STEPS as QUANT_STEPS
from npusim.kernels.requant import Quant, quant_of, refuse_quant
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs
from npusim.program.region import Region

F32 = np.dtype(np.float32)
I32 = np.dtype(np.int32)
F16 = np.dtype(np.float16)
FIXP_STEPS = ("Relu",)  #: what FIXP can do behind a cube result (besides bias and cast)
VECTOR_STEPS = ("Relu", "Add", "Sum", "Max", "Min")  #: what the vector epilogue can do

#: Vector instruction of a step, with a constant scalar and with a tensor.
_SCALAR = {"Add": "adds", "Sum": "adds", "Max": "maxs", "Min": "mins"}
_TENSOR = {"Add": "add", "Sum": "add", "Max": "max", "Min": "min"}


class OutputView(Protocol):
    """Where a kernel's result tiles lie in GM."""

    @property
    def rows(self) -> bool:
        """True for ND output: strips lie as rows in UB."""

    def pieces(
        self, operand: Region, local: Region, n1: int, tile: TileSpan
    ) -> list[tuple[Region, Region]]:
        """(GM piece, local piece) pairs of the strip `local` (nu, m16, 16) at column block n1."""

    def bursts(self, nu: int, tile: TileSpan) -> int:
        """Contiguous GM pieces of a strip when FIXP stores it."""


@dataclass(frozen=True)
class TileSpan:
    """One L0C tile of the output: rows [m, m + rows) of batch `batch`, columns from block n1.

    `row0`: position of the tile's first row in the output's own row order; `m16`: rows rounded
    up to fractals. `images`: batches from `batch` on whose rows the tile holds; each begins
    `pitch` rows of L0C after the one before.
    """

    batch: int
    row0: int
    rows: int
    m16: int
    images: int = 1
    pitch: int = 0

    def alone(self, image: int) -> TileSpan:
        """The rows of one image, without what fills the last fractal where it is one of several."""
        if self.images == 1:
            return self
        return TileSpan(self.batch + image, self.row0, self.rows, self.rows)


@dataclass(frozen=True)
class EpilogueSpec:
    """A fused epilogue as the kernels need it: a bias operand, then steps.

    `bias_bytes`: of the whole bias and scales, which a block keeps on chip (at most). `taken`:
    bytes of UB that are in use beside this epilogue. `pair`: column blocks that the result joins
    to one of its own, 2 for bytes in NC1HWC0.
    """

    bias: int | None
    steps: tuple[EpilogueStep, ...]
    out: np.dtype
    bias_bytes: int = 0
    taken: int = field(default=0, kw_only=True)
    pair: int = 1

    @cached_property
    def quant(self) -> Quant | None:
        """The quantisation at the end."""
        return quant_of(self.steps)

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Operands with one value per column: the bias, the scales."""
        scales = None if self.quant is None else self.quant.operand
        return tuple(i for i in (self.bias, scales) if i is not None)

    @cached_property
    def tensors(self) -> tuple[int, ...]:
        """Operands of steps that are as large as the result."""
        return tuple(
            s.operand for s in self.steps if s.operand is not None and s.op_type not in QUANT_STEPS
        )

    @cached_property
    def on_vector(self) -> bool:
        """True when fp32 work in UB is needed beyond the cast."""
        return self.bias is not None or bool(self.steps)

    @cached_property
    def strip_bytes(self) -> int:
        """UB bytes per element of a strip."""
        half = 2 * self.out.itemsize  # output and residual strips are double-buffered
        wide = len(self.tensors) * (half + 4)
        if self.quant is not None and self.quant.narrows:
            wide += 2  # bytes are made of fp16
        return half + wide + (4 if self.on_vector else 0)

    def vector_cycles(self, chip: ChipSpec, elements: float) -> float:
        """Cycles of the vector pipe on so many elements, and (see `passes`) no fixed cost."""
        assert chip.core.vector.l0c_rate is not None
        wide = (self.passes - 1) * elements / 64 * (chip.core.vector.costs["binary"].b32 or 2.0)
        return elements * 4 / chip.core.vector.l0c_rate + wide

    @cached_property
    def passes(self) -> int:
        """Vector instructions per strip: the move out of L0C, then fp32 work."""
        if not self.on_vector:
            return 1
        steps = len(self.steps) + len(self.tensors)
        if self.quant is not None:
            steps += 5 if self.quant.narrows else 1
        return 2 + (self.bias is not None) + steps


def make_spec(args: KernelArgs) -> EpilogueSpec:
    """The launch's epilogue: input 2 is the bias unless a step uses it."""
    fused = {s.operand for s in args.epilogue}
    spec = args.inputs[2] if len(args.inputs) > 2 and 2 not in fused else None
    scales = [args.operands[s.operand] for s in args.epilogue
              if s.op_type in QUANT_STEPS and s.operand is not None]  # fmt: skip
    size = sum(-(-o.nbytes // 512) * 512 for o in (spec, *scales) if o is not None)
    out = args.outputs[0]
    pair = c0_of(out.dtype) // 16 if out.layout is Layout.NC1HWC0 and out.dtype.size == 1 else 1
    return EpilogueSpec(None if spec is None else 2, args.epilogue, out.dtype.np, size, pair)


def refuse_epilogue(args: KernelArgs, chip: ChipSpec) -> str:
    """'' when the chip can do the epilogue behind a cube result, else why not."""
    allowed = FIXP_STEPS if chip.core.fixp is not None else VECTOR_STEPS
    for step in args.epilogue:
        if step.op_type in QUANT_STEPS:
            return refuse_quant(args, step, chip)
        if step.op_type not in allowed:
            return f"epilogue {step.op_type} is not one of {', '.join(allowed)}"
        if step.op_type != "Relu" and step.operand is None and "const1" not in dict(step.attrs):
            return f"epilogue {step.op_type} without an operand"
        if step.operand is not None:
            other = args.inputs[step.operand]
            if other is None or other.shape != args.outputs[0].shape:
                return f"epilogue {step.op_type} broadcasts its operand"
            if other.layout is not args.outputs[0].layout:
                return f"epilogue {step.op_type} mixes layouts"
    return ""


def l0c_slots(chip: ChipSpec, tile: tuple[int, int], most: int = 2) -> int:
    """2 when L0C holds two tiles (M, N blocks): the next is summed while one leaves."""
    return most if most * tile[0] * tile[1] * 1024 <= chip.core.l0c.size else 1


def strip_bytes(spec: EpilogueSpec, m_blocks: int) -> int:
    """UB bytes that one column block of a strip of `m_blocks` row blocks needs."""
    return 256 * spec.strip_bytes * m_blocks + column_row.STRIP * len(spec.rows)


def strip_blocks(spec: EpilogueSpec, chip: ChipSpec, m_blocks: int, n_blocks: int) -> int:
    """Column blocks per strip so that everything in UB fits; 0 when not even one does."""
    left = chip.core.ub.size - spec.bias_bytes - spec.taken
    room = max(0, left) // strip_bytes(spec, m_blocks)
    pairs = min(room // spec.pair, -(-n_blocks // spec.pair))
    return min(n_blocks, pairs * spec.pair)


class CubeOutput:
    """Drains L0C tiles to GM. One per kernel body.

    Life cycle: `yield from prepare()` once; per tile the body takes a slot from `queue.alloc()`,
    accumulates, yields `queue.enque()`, then `yield from drain(...)`.

    Args:
        columns: first output column of the block's share, and how many.
        most: tiles in L0C at most; with 1 the cube waits while a tile leaves.
        groups: of columns, one after the other in the bias; a tile is of group batch % groups.
    """

    tag = ""  #: parts the instructions of two outputs of one kernel

    def __init__(
        self,
        k: Kernel,
        spec: EpilogueSpec,
        view: OutputView,
        tile: tuple[int, int],
        columns: tuple[int, int],
        most: int = 2,
        groups: int = 1,
    ) -> None:
        self._k, self._spec, self._view, self._columns = k, spec, view, columns
        self._groups, self._group = groups, 0
        self.sums = F32 if k.args.operands[0].dtype.is_float else I32  #: what L0C holds
        m_blocks, n_blocks = tile
        self._fixp = k.chip.core.fixp is not None
        self._drain_pipe = Pipe.FIXP if self._fixp else Pipe.V
        slots = l0c_slots(k.chip, tile, most)
        self.queue = k.queue("L0C", m_blocks * n_blocks * 1024, slots, Pipe.M, self._drain_pipe)
        self._nu = n_blocks if self._fixp else strip_blocks(spec, k.chip, m_blocks, n_blocks)
        self.early = False  #: L0C is free once a tile is in UB, not when its work is done
        self._rows = {i: ColumnRow(k, i, columns, groups) for i in spec.rows}
        self._residuals: dict[int, Queue] = {}
        if not self._fixp:
            self._allocate(-(-self._nu // spec.pair) * spec.pair * m_blocks * 256)

    def _allocate(self, strip: int) -> None:
        """UB for strips of `strip` elements."""
        k, spec = self._k, self._spec
        self._out = k.queue("UB", strip * spec.out.itemsize, 2, Pipe.V, Pipe.MTE3)
        self._work = k.alloc("UB", strip * 4) if spec.on_vector else None
        self._wide: Alloc | None = None
        for operand in spec.tensors:
            dtype = k.args.operands[operand].dtype.np
            size = strip * dtype.itemsize
            self._residuals[operand] = k.queue("UB", size, 2, Pipe.MTE2, Pipe.V)
            if dtype != self.sums and self._wide is None:
                self._wide = k.alloc("UB", strip * 4)
        for row in self._rows.values():
            row.allocate(self._nu)
        if spec.quant is not None and spec.quant.narrows:
            self._half = k.alloc("UB", strip * 2)

    def prepare(self) -> Iterator[Instr]:
        """Load the share's bias and scales, of all groups, once."""
        for row in self._rows.values():
            yield from row.load("L1" if self._fixp else "UB", self._drain_pipe)

    def drain(self, n1: int, n_blocks: int, n_valid: int, tile: TileSpan) -> Iterator[Instr]:
        """Move the oldest full tile out: column blocks n1 … n1+n_blocks of the output.

        Args:
            n_valid: valid columns of the whole output.
        """
        yield from self._await_place()
        yield self.queue.deque()
        self._group = tile.batch % self._groups
        l0c = self.queue.front.region((n_blocks, tile.m16, 16), self.sums)
        for image in range(tile.images):
            if image:
                yield from self._await_place()
            part, at = tile.alone(image), image * tile.pitch
            yield from self._leave(l0c[:, at : at + part.m16], n1, n_valid, part)
        if not self.early:
            yield self.queue.free()

    def _await_place(self) -> Iterator[Instr]:
        """What an image's rows wait for where they go; nothing in GM."""
        yield from ()

    def _leave(self, l0c: Region, n1: int, n_valid: int, tile: TileSpan) -> Iterator[Instr]:
        """The rows of one image."""
        if self._fixp:
            yield self._fixpipe(l0c, n1, n_valid, tile)
            return
        for start in range(0, l0c.shape[0], self._nu):
            nu = min(self._nu, l0c.shape[0] - start)
            width = min(nu * 16, n_valid - (n1 + start) * 16)
            self._last = start + nu == l0c.shape[0]
            yield from self._strip(l0c[start : start + nu], n1 + start, width, tile)

    def release_early(self) -> None:
        """Free L0C once a tile is in UB. A subclass that does says so by `_in_ub`."""
        self.early = True

    def _in_ub(self) -> Iterator[Instr]:
        """What an early output yields when a strip is in UB: L0C is free with the last one."""
        if self.early and self._last:
            yield self.queue.free()

    def _row(self, operand: int, n1: int, nu: int) -> Region:
        """What a row operand has loaded for column blocks n1 … n1+nu."""
        return self._rows[operand].stored(self._group, n1, nu)

    # -- chips with FIXP ---------------------------------------------------------------------

    def _target(self, local: Region, n1: int, tile: TileSpan) -> list[tuple[Region, Region]]:
        """(GM, local) pairs of a tile that FIXP stores."""
        if self._spec.pair > 1:
            local = local.split(0, self._spec.pair).permute(0, 2, 1, 3)
        return self._view.pieces(self._k.output(0), local, n1, tile)

    def _fixpipe(self, l0c: Region, n1: int, n_valid: int, tile: TileSpan) -> Instr:
        k, spec, nu = self._k, self._spec, l0c.shape[0]

        def build() -> Instr:
            pairs = self._target(l0c, n1, tile)
            relu = any(s.op_type == "Relu" for s in spec.steps)
            rows: dict[int | None, list[Region]] = {}
            for i in spec.rows:
                local = self._row(i, n1, nu).split(0, 16).expand(1).broadcast((nu, tile.m16, 16))
                rows[i] = [r for _, r in self._target(local, n1, tile)]
            bursts, biases = self._view.bursts(nu // spec.pair, tile), rows.get(spec.bias, [])
            if spec.quant is None:
                return self._by_fixp(pairs, bursts, biases, relu)
            scales = rows.get(spec.quant.operand, ())
            quant = spec.quant.on_fixp()
            return k.fixpipe(pairs, bursts, biases, quant=quant, scales=scales)

        width = min(nu * 16, n_valid - n1 * 16)
        return k.memo(("fixpipe", self.tag, nu, width, tile.rows), build)

    def _by_fixp(
        self, pairs: list[tuple[Region, Region]], bursts: int, biases: list[Region], relu: bool
    ) -> Instr:
        return self._k.fixpipe(pairs, bursts, biases, relu)

    # -- chips whose L0C leaves through the vector pipe --------------------------------------

    def _strip(self, l0c: Region, n1: int, width: int, tile: TileSpan) -> Iterator[Instr]:
        k, spec = self._k, self._spec
        nu, m16 = l0c.shape[0], tile.m16
        key = (nu, width, tile.rows)
        for operand, queue in self._residuals.items():
            slot = yield from queue.alloc()
            yield k.memo(
                ("residual", operand, *key),
                lambda slot=slot, op=operand: self._load_residual(slot, op, nu, n1, tile),  # type: ignore[misc]
            )
            yield queue.enque()
        out = yield from self._out.alloc()
        if self._work is None:
            target = out
        else:
            target = self._work
        dtype = spec.out if self._work is None else self.sums
        yield k.memo(
            ("copy_l0c", nu, m16), lambda: k.l0c_to_ub(self._shape(target, dtype, nu, m16), l0c)
        )
        if self._work is not None:
            yield from self._work_on(self._work, out, n1, nu, m16)
        yield self._out.enque()
        yield self._out.deque()
        local = self._result(out, nu, m16)
        yield k.memo(("store", self.tag, *key), lambda: self._store(local, n1, tile))
        yield self._out.free()

    def _store(self, local: Region, n1: int, tile: TileSpan) -> Instr:
        """MTE3: a finished strip to where the result lies."""
        return self._k.store_pairs(self._view.pieces(self._k.output(0), local, n1, tile))

    def _load_residual(self, slot: Alloc, operand: int, nu: int, n1: int, tile: TileSpan) -> Instr:
        k = self._k
        local = self._shape(slot, k.args.operands[operand].dtype.np, nu, tile.m16)
        pieces = self._view.pieces(k.operand(operand), local, n1, tile)
        return k.load_pairs([(loc, gm) for gm, loc in pieces])

    def _shape(self, alloc: Alloc, dtype: np.dtype, nu: int, m16: int) -> Region:
        """The strip in an allocation as (nu, m16, 16), lying as rows or as blocks."""
        if self._view.rows:
            return alloc.region((m16, nu, 16), dtype).permute(1, 0, 2)
        return alloc.region((nu, m16, 16), dtype)

    def _result(self, out: Alloc, nu: int, m16: int) -> Region:
        """The finished strip, in the result's own blocks."""
        pair = self._spec.pair
        if pair == 1:
            return self._shape(out, self._spec.out, nu, m16)
        return out.region((-(-nu // pair), m16, 16 * pair), self._spec.out)

    def _work_on(self, work: Alloc, out: Alloc, n1: int, nu: int, m16: int) -> Iterator[Instr]:
        """Work on a strip in UB: bias, steps, cast."""
        k, spec, size = self._k, self._spec, nu * m16 * 16
        flat = work.region((size,), self.sums)
        if spec.bias is not None:
            place = (self._group, n1, nu)
            yield from self._rows[spec.bias].apply("add", flat, place, m16, self._view.rows)
        if spec.quant is not None:
            yield from self._quantise(spec.quant, work, out, n1, nu, m16)
            return
        for i, step in enumerate(spec.steps):
            yield from self._step(i, step, work, size)
        op = "conv" if spec.out != self.sums else "copy"
        yield k.memo(("cast", size), lambda: k.vec(op, out.region((size,), spec.out), flat))

    def _quantise(
        self, quant: Quant, work: Alloc, out: Alloc, n1: int, nu: int, m16: int
    ) -> Iterator[Instr]:
        """int32 sums → the result, as the operators of `requant` do it."""
        k, size, rows = self._k, nu * m16 * 16, self._view.rows
        x, sums = work.region((size,), F32), work.region((size,), I32)
        yield k.memo(("real", size), lambda: k.vec("conv", x, sums))
        if quant.operand is None:
            yield k.memo(("scale", size), lambda: k.vec("muls", x, x, scalar=quant.scale))
        else:
            place = (self._group, n1, nu)
            yield from self._rows[quant.operand].apply("mul", x, place, m16, rows)
        if not quant.narrows:
            op = "copy" if self._spec.out == F32 else "conv"
            yield k.memo(("cast", size), lambda: k.vec(op, out.region((size,), self._spec.out), x))
            return
        low, high = quant.limits
        yield k.memo(("round", size), lambda: k.vec("round", x, x))
        for op, value in (("adds", quant.offset), ("maxs", low), ("mins", high)):
            if op != "adds" or value:
                yield k.memo(
                    (op, size),
                    lambda op=op, v=value: k.vec(op, x, x, scalar=float(v)),  # type: ignore[misc]
                )
        yield from self._as_bytes(work, out, nu, m16)

    def _as_bytes(self, work: Alloc, out: Alloc, nu: int, m16: int) -> Iterator[Instr]:
        """fp32 → fp16, pairs of column blocks joined where the result wants that → bytes."""
        k, dtype, pair = self._k, self._spec.out, self._spec.pair
        full, odd = divmod(nu, pair)
        half = self._half.region((full + odd, m16, pair, 16), F16)
        if odd:
            yield k.memo(("no pair", m16), lambda: k.vec("dup", half[full, :, 1], scalar=0.0))
        for first, count, joined in ((0, full, pair), (full, odd, 1)):
            if count:
                src = work.region((count, joined, m16, 16), F32, first * pair * m16 * 64)
                dst = half[first:, :, :joined].permute(0, 2, 1, 3)[:count]
                yield k.memo(
                    ("half", joined, count, m16),
                    lambda d=dst, s=src: k.vec("conv", d, s),  # type: ignore[misc]
                )
        size = half.size
        flat = self._half.region((size,), F16)
        yield k.memo(("bytes", size), lambda: k.vec("conv", out.region((size,), dtype), flat))

    def _step(self, i: int, step: EpilogueStep, alloc: Alloc, size: int) -> Iterator[Instr]:
        k = self._k
        work = alloc.region((size,), self.sums)
        if step.operand is None:
            op, scalar = "maxs", 0.0
            if step.op_type != "Relu":
                op, scalar = _SCALAR[step.op_type], dict(step.attrs)["const1"]
            yield k.memo(("step", self.tag, i, size), lambda: k.vec(op, work, work, scalar=scalar))
            return
        queue = self._residuals[step.operand]
        yield queue.deque()
        other = queue.front.region((size,), k.args.operands[step.operand].dtype.np)
        if self._wide is not None and other.dtype != self.sums:
            wide, narrow = self._wide.region((size,), self.sums), other
            yield k.memo(("widen", i, size), lambda: k.vec("conv", wide, narrow))
            other = wide
        key = ("step", self.tag, i, size)
        yield k.memo(key, lambda: k.vec(_TENSOR[step.op_type], work, work, other))
        yield queue.free()
