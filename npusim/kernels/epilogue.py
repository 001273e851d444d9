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
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import EpilogueStep
from npusim.kernels.lang import Alloc, Kernel, Queue
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs
from npusim.program.region import Region

F32 = np.dtype(np.float32)
FIXP_STEPS = ("Relu",)  #: what FIXP can do behind a cube result (besides bias and cast)
VECTOR_STEPS = ("Relu", "Add", "Sum", "Max", "Min")  #: what the vector epilogue can do

#: Vector instruction of a step, with a constant scalar and with a tensor.
_SCALAR = {"Add": "adds", "Sum": "adds", "Max": "maxs", "Min": "mins"}
_TENSOR = {"Add": "add", "Sum": "add", "Max": "max", "Min": "min"}


class OutputView(Protocol):
    """Where a kernel's result tiles lie in GM."""

    rows: bool  #: True for ND output: strips lie as rows in UB

    def pieces(self, operand: Region, local: Region, n1: int, tile: TileSpan) -> list[
        tuple[Region, Region]
    ]:
        """(GM piece, local piece) pairs of the strip `local` (nu, m16, 16) at column block n1."""

    def bursts(self, nu: int, tile: TileSpan) -> int:
        """Contiguous GM pieces of a strip when FIXP stores it."""


@dataclass(frozen=True)
class TileSpan:
    """One L0C tile of the output: rows [m, m + rows) of batch `batch`, columns from block n1.

    `row0`: position of the tile's first row in the output's own row order; `m16`: rows rounded
    up to fractals.
    """

    batch: int
    row0: int
    rows: int
    m16: int


@dataclass(frozen=True)
class EpilogueSpec:
    """A fused epilogue as the kernels need it: a bias operand, then steps."""

    bias: int | None
    steps: tuple[EpilogueStep, ...]
    out: np.dtype

    @property
    def on_vector(self) -> bool:
        """True when fp32 work in UB is needed beyond the cast."""
        return self.bias is not None or bool(self.steps)


def refuse_epilogue(args: KernelArgs, chip: ChipSpec) -> str:
    """'' when the chip can do the epilogue behind a cube result, else why not."""
    allowed = FIXP_STEPS if chip.core.fixp is not None else VECTOR_STEPS
    for step in args.epilogue:
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


def strip_bytes(spec: EpilogueSpec, m_blocks: int) -> int:
    """UB bytes that one column block of a strip of `m_blocks` row blocks needs."""
    half = 2 * spec.out.itemsize  # output and residual strips are double-buffered
    per_block = half + sum(half + 4 for s in spec.steps if s.operand is not None)
    if spec.on_vector:
        per_block += 4
    bias = 384 if spec.bias is not None else 0
    return 256 * per_block * m_blocks + bias


def strip_blocks(spec: EpilogueSpec, chip: ChipSpec, m_blocks: int, n_blocks: int) -> int:
    """Column blocks per strip so that everything in UB fits; 0 when not even one does."""
    return min(n_blocks, chip.core.ub.size // strip_bytes(spec, m_blocks))


class CubeOutput:
    """Drains L0C tiles to GM. One per kernel body.

    Life cycle of a tile: the body takes `l0c` slots from `queue.alloc()`, accumulates, calls
    `yield self.queue.enque()`, then `yield from self.drain(...)`.
    """

    def __init__(
        self, k: Kernel, spec: EpilogueSpec, view: OutputView, m_blocks: int, n_blocks: int
    ) -> None:
        self._k, self._spec, self._view = k, spec, view
        self._fixp = k.chip.core.fixp is not None
        drain_pipe = Pipe.FIXP if self._fixp else Pipe.V
        tile_bytes = m_blocks * n_blocks * 1024
        slots = 2 if 2 * tile_bytes <= k.chip.core.l0c.size else 1
        self.queue = k.queue("L0C", tile_bytes, slots, Pipe.M, drain_pipe)
        self.nu = n_blocks if self._fixp else strip_blocks(spec, k.chip, m_blocks, n_blocks)
        if spec.bias is not None:
            space = "L1" if self._fixp else "UB"
            self._bias_q = k.queue(space, self.nu * 16 * 4, 1, Pipe.MTE2, drain_pipe)
        if self._fixp:
            return
        strip = self.nu * m_blocks * 256
        self._out = k.queue("UB", strip * spec.out.itemsize, 2, Pipe.V, Pipe.MTE3)
        self._work = k.alloc("UB", strip * 4) if spec.on_vector else None
        self._residuals: dict[int, Queue] = {}
        self._wide: Alloc | None = None
        for step in spec.steps:
            if step.operand is not None:
                dtype = k.args.operands[step.operand].dtype.np
                self._residuals[step.operand] = k.queue(
                    "UB", strip * dtype.itemsize, 2, Pipe.MTE2, Pipe.V
                )
                if dtype != F32 and self._wide is None:
                    self._wide = k.alloc("UB", strip * 4)
        if spec.bias is not None:
            self._bias32 = k.alloc("UB", self.nu * 16 * 4)
            self._bias_rep = k.alloc("UB", self.nu * 64 * 4)

    def drain(self, n1: int, n_blocks: int, n_valid: int, tile: TileSpan) -> Iterator[Instr]:
        """Move the oldest full tile out: column blocks n1 … n1+n_blocks of the output.

        Args:
            n_valid: valid columns of the whole output (bias beyond them is not read).
        """
        yield self.queue.deque()
        l0c = self.queue.front.region((n_blocks, tile.m16, 16), F32)
        if self._fixp:
            yield from self._fixpipe(l0c, n1, n_valid, tile)
        else:
            for start in range(0, n_blocks, self.nu):
                nu = min(self.nu, n_blocks - start)
                yield from self._strip(l0c[start : start + nu], n1 + start, n_valid, tile)
        yield self.queue.free()

    # -- chips with FIXP ---------------------------------------------------------------------

    def _fixpipe(self, l0c: Region, n1: int, n_valid: int, tile: TileSpan) -> Iterator[Instr]:
        k, spec = self._k, self._spec
        gm, nu = k.output(0), l0c.shape[0]
        pairs = self._view.pieces(gm, l0c, n1, tile)
        relu = any(s.op_type == "Relu" for s in spec.steps)
        biases: list[Region] = []
        if spec.bias is not None:
            yield from self._load_bias(n1, nu, n_valid)
            yield self._bias_q.deque()
            row = self._bias_q.front.region((nu, 1, 16), k.args.operands[spec.bias].dtype.np)
            local = row.broadcast((nu, tile.m16, 16))
            biases = [b for _, b in self._view.pieces(gm, local, n1, tile)]
        yield k.fixpipe(pairs, self._view.bursts(nu, tile), biases, relu)
        if spec.bias is not None:
            yield self._bias_q.free()

    # -- chips whose L0C leaves through the vector pipe --------------------------------------

    def _strip(self, l0c: Region, n1: int, n_valid: int, tile: TileSpan) -> Iterator[Instr]:
        k, spec = self._k, self._spec
        nu, m16 = l0c.shape[0], tile.m16
        operands = [s.operand for s in spec.steps if s.operand is not None]
        for operand in operands:
            slot = yield from self._residuals[operand].alloc()
            local = self._shape(slot, k.args.operands[operand].dtype.np, nu, m16)
            pieces = self._view.pieces(k._operand(operand), local, n1, tile)
            yield k.load_pairs([(loc, gm) for gm, loc in pieces])
            yield self._residuals[operand].enque()
        if spec.bias is not None:
            yield from self._load_bias(n1, nu, n_valid)
        out = yield from self._out.alloc()
        flat = out.region((nu * m16 * 16,), spec.out)
        if self._work is None:
            yield k.l0c_to_ub(self._shape(out, spec.out, nu, m16), l0c)
        else:
            work = self._work.region((nu * m16 * 16,), F32)
            yield k.l0c_to_ub(self._shape(self._work, F32, nu, m16), l0c)
            yield from self._bias_add(nu, m16)
            for step in spec.steps:
                yield from self._step(step, work)
            yield k.vec("conv" if spec.out != F32 else "copy", flat, work)
        yield self._out.enque()
        yield self._out.deque()
        pieces = self._view.pieces(k.output(0), self._shape(out, spec.out, nu, m16), n1, tile)
        yield k.store_pairs(pieces)
        yield self._out.free()

    def _shape(self, alloc: Alloc, dtype: np.dtype, nu: int, m16: int) -> Region:
        """The strip in an allocation as (nu, m16, 16), lying as rows or as blocks."""
        if self._view.rows:
            return alloc.region((m16, nu, 16), dtype).permute(1, 0, 2)
        return alloc.region((nu, m16, 16), dtype)

    def _load_bias(self, n1: int, nu: int, n_valid: int) -> Iterator[Instr]:
        k, bias = self._k, self._spec.bias
        assert bias is not None
        spec = k.args.operands[bias]
        width = min(nu * 16, n_valid - n1 * 16)
        slot = yield from self._bias_q.alloc()
        src = Region.dense("GM", bias, n1 * 16 * spec.dtype.size, (width,), spec.dtype.np)
        whole = slot.region((nu * 16,), spec.dtype.np)
        yield k.load(whole[:width], src, whole if width < nu * 16 else None)
        yield self._bias_q.enque()

    def _bias_add(self, nu: int, m16: int) -> Iterator[Instr]:
        k, bias = self._k, self._spec.bias
        if bias is None:
            return
        assert self._work is not None
        yield self._bias_q.deque()
        raw = self._bias_q.front.region((nu * 16,), k.args.operands[bias].dtype.np)
        wide = self._bias32.region((nu * 16,), F32)
        yield k.vec("conv", wide, raw)
        yield self._bias_q.free()
        if self._view.rows:
            work = self._work.region((m16, nu * 16), F32)
            yield k.vec("add", work, work, wide.expand(0))
            return
        rep = self._bias_rep.region((nu, 4, 16), F32)
        yield k.vec("copy", rep, wide.split(0, 16).expand(1))
        work = self._work.region((nu, m16 // 4, 64), F32)
        yield k.vec("add", work, work, self._bias_rep.region((nu, 1, 64), F32))

    def _step(self, step: EpilogueStep, work: Region) -> Iterator[Instr]:
        k = self._k
        if step.op_type == "Relu":
            yield k.vec("maxs", work, work, scalar=0.0)
        elif step.operand is None:
            yield k.vec(_SCALAR[step.op_type], work, work, scalar=dict(step.attrs)["const1"])
        else:
            assert step.operand is not None
            queue = self._residuals[step.operand]
            yield queue.deque()
            other = queue.front.region(work.shape, k.args.operands[step.operand].dtype.np)
            if other.dtype != F32:
                assert self._wide is not None
                wide = self._wide.region(work.shape, F32)
                yield k.vec("conv", wide, other)
                other = wide
            yield k.vec(_TENSOR[step.op_type], work, work, other)
            yield queue.free()


def epilogue_bytes(
    args: KernelArgs, bias: int | None, out_bytes: int, bias_reads: int
) -> dict[int, tuple[int, int]]:
    """operand → (unique, total) bytes of the epilogue's own operands."""
    traffic: dict[int, tuple[int, int]] = {}
    for step in args.epilogue:
        if step.operand is not None:
            other = args.operands[step.operand]
            scaled = out_bytes * other.dtype.size // args.outputs[0].dtype.size
            traffic[step.operand] = (scaled, scaled)
    if bias is not None:
        spec = args.operands[bias]
        traffic[bias] = (spec.nbytes, bias_reads * spec.dtype.size)
    return traffic


def drain_cycles(
    spec: EpilogueSpec,
    chip: ChipSpec,
    out_bytes: int,
    share: tuple[int, int],
    tile: tuple[int, int],
) -> float:
    """Cycles to drain a block's share (M, N blocks) in tiles, to rank tilings.

    The slowest of the pipes that take part, with the fixed cost of every strip.
    """
    core = chip.core
    tiles = -(-share[0] // tile[0]) * -(-share[1] // tile[1])
    if core.fixp is not None:
        return out_bytes / core.fixp.rate + tiles * (core.fixp.head + core.fixp.tail)
    elements = share[0] * share[1] * 256
    strips = tiles * -(-tile[1] // max(1, strip_blocks(spec, chip, tile[0], tile[1])))
    assert core.vector.l0c_rate is not None
    vector = elements * 4 / core.vector.l0c_rate
    passes = 1
    if spec.on_vector:
        passes += 1 + 2 * (spec.bias is not None)
        passes += sum(2 if s.operand is not None else 1 for s in spec.steps)
        vector += (passes - 1) * elements / 64 * (core.vector.costs["binary"].b32 or 2.0)
    vector += strips * passes * (core.vector.head + core.vector.tail)
    store = out_bytes / core.mte3.rate + strips * core.mte3.head
    return max(vector, store)


def load_latency(chip: ChipSpec) -> int:
    """Cycles of a GM load that nothing hides, besides its bytes."""
    return chip.core.mte2.head + chip.l2.read_latency + chip.hbm.latency


def tile_floor(chip: ChipSpec, tile: tuple[int, int]) -> float:
    """Least cycles between two L0C tiles: the way through the pipes, over the L0C slots."""
    core = chip.core
    slots = 2 if 2 * tile[0] * tile[1] * 1024 <= core.l0c.size else 1
    latency = core.mte1.tail + core.cube.tail + 4 * core.scalar.flag
    if core.fixp is not None:
        latency += core.fixp.head + chip.l2.write_latency
    else:
        latency += 2 * (core.vector.head + core.vector.tail)
    return latency / slots
