"""The attention gradient's blocks of scores where one core is cube and vector core in one (910A).

    cube    S = Q·Kᵀ and dP = dY·Vᵀ of block t            L0C → UB
    vector  P and dS of block t - 1                        UB → L1
    cube    dS·K, dSᵀ·Q, Pᵀ·dY of block t - 1              L0C → UB
    MTE3    atomic adds onto dQ, dK, dV in fp32 in GM

Operands of a block stay in L1 until its gradients are done.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from math import prod

from npusim.chip.spec import ChipSpec
from npusim.kernels.attention_cube import Cube
from npusim.kernels.attention_grad_shape import (
    DK,
    DQ,
    DV,
    DY,
    KEY,
    QUERY,
    SUMS,
    TOP,
    TOTAL,
    VALUE,
    Block,
    Workspace,
)
from npusim.kernels.attention_shape import CUBE, F32, Problem, load_nz, up
from npusim.kernels.attention_vector import F16, U8, hide, stat_rows
from npusim.kernels.cross_core import ub_to_l1
from npusim.kernels.lang import Kernel, fits
from npusim.kernels.queues import Alloc, Queue
from npusim.ops.training_attention import HIDDEN, STATS
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Tiling
from npusim.program.region import Region

SIZES = ((64, 128), (32, 64), (16, 32))  #: rows and columns of a block


def tilings(args: KernelArgs, p: Problem, chip: ChipSpec) -> Iterator[Tiling]:
    """Blocks that fit the core, not larger than the scores."""
    for rows, columns in SIZES:
        s1, s2 = min(rows, up(p.shape.s1, 16)), min(columns, up(p.shape.s2, 16))
        w = Workspace(p, len(args.operands), 0, s1, s2)
        if fits(chip, args, lambda k, w=w: _Core(k, p, w)):  # type: ignore[misc]
            yield {"s1": s1, "s2": s2}


def moved(p: Problem, base: int, b: Block) -> dict[int, int]:
    """Operand → bytes that a block moves."""
    d, es = p.shape.d, p.dtype.itemsize
    rows, keys, stats = b.rows * d, b.columns * d, b.rows * STATS * 4
    out = {
        QUERY: rows * es, DY: rows * es, KEY: keys * es, VALUE: keys * es,
        TOP: stats, TOTAL: stats, base + SUMS: stats,
        base + DQ: rows * 4, base + DK: keys * 4, base + DV: keys * 4,
    }  # fmt: skip
    mask = _mask(p, b)
    if mask is not None:
        out[p.mask] = prod(mask.shape)
    return out


def program(k: Kernel, p: Problem, mine: list[Block], workspace: Workspace) -> Iterator[Instr]:
    """Scores of a block, then everything else of the block before."""
    core = _Core(k, p, workspace)
    held: list[_Operands] = []
    for t in range(len(mine) + 1):
        if t < len(mine):
            operands = yield from core.scores(mine[t])
            held.append(operands)
        if t:
            yield from core.probabilities(mine[t - 1])
            yield from core.gradients(mine[t - 1], held.pop(0))


def _mask(p: Problem, b: Block) -> Region | None:
    return p.mask_tile(b.batch, b.head, b.row, b.rows, b.column, b.columns)


@dataclass(frozen=True)
class _Operands:
    """A block's operands in L1, in NZ."""

    query: Region
    dy: Region
    key: Region


class _Core:
    """Buffers of a block's core."""

    def __init__(self, k: Kernel, p: Problem, workspace: Workspace) -> None:
        self.k, self.p, self.workspace = k, p, workspace
        es, d, s1, s2 = p.dtype.itemsize, p.shape.d, workspace.s1, workspace.s2
        self.cube = Cube(k, p.dtype)
        self.tiles = k.queue("L0C", s1 * CUBE * 4, 2, Pipe.M, Pipe.V)
        self.results = self.cube.results(2, Pipe.V)
        to_l1 = (Pipe.MTE2, Pipe.MTE1)
        self.operands = {
            operand: k.queue("L1", rows * d * es, 2, *to_l1)
            for operand, rows in ((QUERY, s1), (DY, s1), (KEY, s2), (VALUE, s2))
        }
        self.probs, self.d_scores = (
            k.queue("L1", s1 * s2 * es, 2, Pipe.MTE3, Pipe.MTE1) for _ in range(2)
        )
        self.stats = k.queue("UB", 3 * s1 * STATS * 4, 1, Pipe.MTE2, Pipe.V)
        self.mask = k.queue("UB", s1 * s2, 1, Pipe.MTE2, Pipe.V) if p.mask >= 0 else None
        self.x, self.y = (k.alloc("UB", s1 * s2 * 4) for _ in range(2))
        self.narrow = k.queue("UB", s1 * s2 * es, 2, Pipe.V, Pipe.MTE3)
        self.out = k.queue("UB", CUBE * d * 4, 1, Pipe.V, Pipe.MTE3)

    # -- cube ---------------------------------------------------------------------------------

    def scores(self, b: Block) -> Generator[Instr, None, _Operands]:
        """S and dP into L0C; the operands that the gradients need again."""
        p, d = self.p, self.p.shape.d
        panels: dict[int, Region] = {}
        sources = {
            QUERY: p.rows(QUERY, b.batch, b.head, b.row, b.rows),
            KEY: p.kv_rows(KEY, b.batch, b.head, b.column, b.columns),
            DY: p.rows(DY, b.batch, b.head, b.row, b.rows),
            VALUE: p.kv_rows(VALUE, b.batch, b.head, b.column, b.columns),
        }
        for operand, src in sources.items():
            queue = self.operands[operand]
            slot = yield from queue.alloc()
            yield load_nz(self.k, slot, src, (operand,))
            yield queue.enque()
            yield queue.deque()
            panels[operand] = self.cube.panel(slot, src.shape[0], d)
        for rows, keys in ((QUERY, KEY), (DY, VALUE)):
            c = yield from self.tiles.alloc()
            yield from self.cube.product(c, panels[rows], False, panels[keys], False, True)
            yield self.tiles.enque()
        yield self.operands[VALUE].free()
        return _Operands(panels[QUERY], panels[DY], panels[KEY])

    def gradients(self, b: Block, held: _Operands) -> Iterator[Instr]:
        """dQ, dK and dV of a block: products, and atomic adds in GM."""
        kv_head = b.head // self.p.shape.group
        yield self.d_scores.deque()
        ds = self.cube.panel(self.d_scores.front, b.rows, b.width)
        dq = self.workspace.gradient(DQ, b.batch, b.head, b.row, b.rows)
        yield from self._product(ds, False, held.key, dq)
        dk = self.workspace.gradient(DK, b.batch, kv_head, b.column, b.columns)
        yield from self._product(ds, True, held.query, dk)
        yield self.d_scores.free()
        yield self.probs.deque()
        probs = self.cube.panel(self.probs.front, b.rows, b.width)
        dv = self.workspace.gradient(DV, b.batch, kv_head, b.column, b.columns)
        yield from self._product(probs, True, held.dy, dv)
        yield self.probs.free()
        for operand in (QUERY, DY, KEY):
            yield self.operands[operand].free()

    def _product(self, a: Region, turned: bool, b: Region, dst: Region) -> Iterator[Instr]:
        """dst (rows, D) in GM += A · B."""
        k, (rows, d) = self.k, dst.shape
        c = yield from self.results.alloc()
        yield from self.cube.product(c, a, turned, b, True, True)
        yield self.results.enque()
        yield self.results.deque()
        place = yield from self.out.alloc()
        x = place.region((rows, d), F32)
        src = self.results.front.region((d // 16, up(rows, 16), 16), F32)[:, :rows]
        yield k.memo(("gradient", rows), lambda: k.l0c_to_ub(x.split(1, 16).permute(1, 0, 2), src))
        yield self.results.free()
        yield self.out.enque()
        yield self.out.deque()
        yield k.memo(("add", dst.operand, rows), lambda: k.store(dst, x, atomic=True))
        yield self.out.free()

    # -- vector ---------------------------------------------------------------------------------

    def probabilities(self, b: Block) -> Iterator[Instr]:
        """P and dS of a block, into L1."""
        k, mask = self.k, _mask(self.p, b)
        yield from self._load(b, mask)
        shape = (b.rows, b.width)
        x, y = self.x.region(shape, F32), self.y.region(shape, F32)
        yield from self._drain(x)
        yield k.memo(("scale", *shape), lambda: k.vec("muls", x, x, scalar=self.p.scale))
        if mask is not None:
            assert self.mask is not None
            yield self.mask.deque()
            bytes_ = self.mask.front.region(shape, U8)
            yield from hide(k, x, bytes_, self.y.region(shape, F16), shape)
            yield self.mask.free()
        if b.columns < b.width:
            edge = x[:, b.columns :]
            yield k.memo(("edge", *edge.shape), lambda: k.vec("dup", edge, scalar=HIDDEN))
        yield self.stats.deque()
        top, total, sums = (self._stat(i, b.rows) for i in range(3))
        yield k.memo(("shift", *shape), lambda: k.vec("sub", x, x, top))
        yield k.memo(("exp", *shape), lambda: k.vec("exp", x, x))
        yield k.memo(("divide", *shape), lambda: k.vec("div", x, x, total))
        yield from self._to_l1(x, self.probs)
        yield from self._drain(y)
        yield k.memo(("less sums", *shape), lambda: k.vec("sub", y, y, sums))
        yield k.memo(("ds", *shape), lambda: k.vec("mul", y, y, x))
        yield self.stats.free()
        yield from self._to_l1(y, self.d_scores)

    def _stat(self, which: int, rows: int) -> Region:
        """A statistic (maximum, sum, sum of dY·Y) to broadcast over the block."""
        offset = which * self.workspace.s1 * STATS * 4
        return self.stats.front.region((rows, STATS), F32, offset)[:, :1]

    def _load(self, b: Block, mask: Region | None) -> Iterator[Instr]:
        k = self.k
        slot = yield from self.stats.alloc()
        sources = [stat_rows(i, self.p, b.batch, b.head, b.row, b.rows) for i in (TOP, TOTAL)]
        sources.append(self.workspace.sums(b.batch, b.head, b.row, b.rows))
        for i, src in enumerate(sources):
            dst = slot.region((b.rows, STATS), F32, i * self.workspace.s1 * STATS * 4)
            yield k.memo(("stats", i, b.rows), lambda d=dst, s=src: k.load(d, s))  # type: ignore[misc]
        yield self.stats.enque()
        if mask is not None:
            assert self.mask is not None
            slot = yield from self.mask.alloc()
            tile = slot.region((b.rows, b.width), U8)[:, : b.columns]
            yield k.memo(("mask", b.width, *mask.shape), lambda: k.load(tile, mask))
            yield self.mask.enque()

    def _drain(self, x: Region) -> Iterator[Instr]:
        """The oldest tile of L0C into x (rows, columns)."""
        k, (rows, width) = self.k, x.shape
        yield self.tiles.deque()
        src = self.tiles.front.region((width // 16, up(rows, 16), 16), F32)[:, :rows]
        dst = x.split(1, 16).permute(1, 0, 2)
        yield k.memo(("l0c", x.offset, rows, width), lambda: k.l0c_to_ub(dst, src))
        yield self.tiles.free()

    def _to_l1(self, x: Region, queue: Queue) -> Iterator[Instr]:
        """x in the stored type into a panel in L1; rows up to whole blocks are zeros."""
        k, (rows, width) = self.k, x.shape
        place = yield from self.narrow.alloc()
        whole = place.region((up(rows, 16), width), self.p.dtype)
        yield k.memo(("narrow", rows, width), lambda: k.vec("conv", whole[:rows], x))
        if rows % 16:
            yield k.memo(("zeros", rows, width), lambda: k.vec("dup", whole[rows:], scalar=0.0))
        yield self.narrow.enque()
        slot: Alloc = yield from queue.alloc()
        yield self.narrow.deque()
        dst = self.cube.panel(slot, rows, width)
        src = whole.split(1, 16).permute(1, 0, 2)
        yield k.memo(("to l1", rows, width), lambda: ub_to_l1(k, dst, src))
        yield self.narrow.free()
        yield queue.enque()
