"""The cube core's part of the attention gradient (dav-2201): five products per block of scores."""

from __future__ import annotations

from collections.abc import Iterator

from npusim.kernels.attention_cube import Cube, pieces
from npusim.kernels.attention_grad_shape import (
    DK,
    DP,
    DQ,
    DSCORES,
    DV,
    DY,
    KEY,
    PROBS,
    QUERY,
    SCORES,
    SLICE,
    VALUE,
    Block,
    Workspace,
)
from npusim.kernels.attention_shape import CUBE, Problem, load_nz, up
from npusim.kernels.cross_core import await_signal, signal
from npusim.kernels.lang import Kernel
from npusim.kernels.queues import Alloc
from npusim.program.isa import Instr, Pipe
from npusim.program.region import Region

VECTOR = 1  #: number of the first vector core in the block
READY, DONE = 0, 10  #: events: scores are there; probabilities are (plus the vector core's number)


def cube_program(
    k: Kernel, p: Problem, mine: list[Block], workspace: Workspace, side: int, vectors: int
) -> Iterator[Instr]:
    """dP and S of a block (of `side` rows and columns at most), then the gradients of the one
    before."""
    core = Products(k, p, workspace, side)
    for t in range(len(mine) + 1):
        if t < len(mine):
            yield from core.scores(mine[t], t)
            for v in range(vectors):
                yield signal(k, VECTOR + v, Pipe.FIXP, Pipe.MTE2, READY + v)
        if t:
            for v in range(vectors):
                yield await_signal(k, Pipe.MTE3, Pipe.MTE2, DONE + v)
            yield from core.gradients(mine[t - 1], t - 1)


class Products:
    """Buffers of the cube core for blocks of `side` rows and columns at most.

    L1: all of a block's rows of queries or dY, of keys or values, a slice of its scores; each in
    pieces of 128 rows (four of a block of 512).
    """

    def __init__(self, k: Kernel, p: Problem, workspace: Workspace, side: int) -> None:
        self.k, self.p, self.workspace = k, p, workspace
        es, d, piece = p.dtype.itemsize, p.shape.d, min(CUBE, side)
        self.cube = Cube(k, p.dtype, piece)
        self.l0c = self.cube.results(2, Pipe.FIXP)
        to_l1, slots = (Pipe.MTE2, Pipe.MTE1), side // piece
        self.rows = k.queue("L1", piece * d * es, slots, *to_l1)
        self.keys = k.queue("L1", piece * d * es, slots, *to_l1)
        self.slice = k.queue("L1", piece * min(SLICE, side) * es, slots, *to_l1)

    def scores(self, b: Block, index: int) -> Iterator[Instr]:
        """dP = dY·Vᵀ, then S = Q·Kᵀ, each to workspace in NZ."""
        for rows, keys, kind in ((DY, VALUE, DP), (QUERY, KEY, SCORES)):
            yield from self._scores(b, rows, keys, self.workspace.scores(kind, b, index))

    def _scores(self, b: Block, rows: int, keys: int, out: Region) -> Iterator[Instr]:
        k, d = self.k, self.p.shape.d
        held: list[Region] = []
        for m0, m in pieces(b.rows):
            slot = yield from self.rows.alloc()
            src = self.p.rows(rows, b.batch, b.head, b.row + m0, m)
            yield load_nz(k, slot, src, ("rows", rows))
            yield self.rows.enque()
            yield self.rows.deque()
            a = self.cube.panel(self.rows.front, m, d)
            for i, (n0, n) in enumerate(pieces(b.columns)):
                if m0 == 0:
                    slot = yield from self.keys.alloc()
                    src = self.p.kv_rows(keys, b.batch, b.head, b.column + n0, n)
                    yield load_nz(k, slot, src, ("keys", keys))
                    yield self.keys.enque()
                    yield self.keys.deque()
                    held.append(self.cube.panel(self.keys.front, n, d))
                c = yield from self.l0c.alloc()
                yield from self.cube.product(c, a, False, held[i], False, True)
                yield self.l0c.enque()
                dst = out[n0 // 16 : (n0 + up(n, 16)) // 16, m0 : m0 + m].permute(1, 0, 2)
                yield from self.cube.drain(self.l0c, dst, m)
            yield self.rows.free()
        for _ in held:
            yield self.keys.free()

    def gradients(self, b: Block, index: int) -> Iterator[Instr]:
        """dQ += dS·K and dK += dSᵀ·Q, then dV += Pᵀ·dY."""
        d_scores = self.workspace.scores(DSCORES, b, index)
        yield from self._gradients(b, d_scores, QUERY, DK, True)
        probs = self.workspace.scores(PROBS, b, index)
        yield from self._gradients(b, probs, DY, DV, False)

    def _gradients(
        self, b: Block, scores: Region, rows: int, kind: int, with_dq: bool
    ) -> Iterator[Instr]:
        """Slice by slice of the keys: dQ where asked, then the keys' gradient `kind`."""
        k, d = self.k, self.p.shape.d
        row_panels: list[Region] = []
        for m0, m in pieces(b.rows):
            slot = yield from self.rows.alloc()
            src = self.p.rows(rows, b.batch, b.head, b.row + m0, m)
            yield load_nz(k, slot, src, ("rows", rows))
            yield self.rows.enque()
            yield self.rows.deque()
            row_panels.append(self.cube.panel(self.rows.front, m, d))
        for c0 in range(0, b.columns, SLICE):
            columns = min(SLICE, b.columns - c0)
            panels: list[Region] = []
            for m0, m in pieces(b.rows):
                slot = yield from self.slice.alloc()
                part = scores[c0 // 16 : (c0 + up(columns, 16)) // 16, m0 : m0 + m]
                yield self._load_scores(slot, part)
                yield self.slice.enque()
                yield self.slice.deque()
                panels.append(self.cube.panel(self.slice.front, m, up(columns, 16)))
            if with_dq:
                yield from self._dq(b, panels, c0, columns)
            yield from self._dkv(b, kind, panels, row_panels, c0, columns)
            for _ in panels:
                yield self.slice.free()
        for _ in row_panels:
            yield self.rows.free()

    def _load_scores(self, slot: Alloc, src: Region) -> Instr:
        """(blocks, rows, 16) of GM into L1, rows up to whole blocks (zeros)."""
        k = self.k

        def build() -> Instr:
            blocks, rows, _ = src.shape
            tile = slot.region((blocks, up(rows, 16), 16), src.dtype)
            return k.load_pairs([(tile[:, :rows], src)], tile if rows % 16 else None)

        return k.memo(("slice", *src.shape, src.operand), build)

    def _dq(self, b: Block, panels: list[Region], c0: int, columns: int) -> Iterator[Instr]:
        k, d = self.k, self.p.shape.d
        keys: list[tuple[int, Region]] = []
        for n0, n in pieces(columns):
            slot = yield from self.keys.alloc()
            src = self.p.kv_rows(KEY, b.batch, b.head, b.column + c0 + n0, n)
            yield load_nz(k, slot, src, ("keys", KEY))
            yield self.keys.enque()
            yield self.keys.deque()
            keys.append((n0, self.cube.panel(self.keys.front, n, d)))
        for panel, (m0, m) in zip(panels, pieces(b.rows), strict=True):
            c = yield from self.l0c.alloc()
            for n0, key in keys:
                a = panel[n0 // 16 : n0 // 16 + key.shape[1] // 16]
                yield from self.cube.product(c, a, False, key, True, n0 == 0)
            yield self.l0c.enque()
            dst = self.workspace.gradient(DQ, b.batch, b.head, b.row + m0, m)
            yield from self.cube.drain(self.l0c, dst, m, atomic=True)
        for _ in keys:
            yield self.keys.free()

    def _dkv(
        self,
        b: Block,
        kind: int,
        panels: list[Region],
        rows: list[Region],
        c0: int,
        columns: int,
    ) -> Iterator[Instr]:
        for n0, n in pieces(columns):
            c = yield from self.l0c.alloc()
            for i, (panel, row) in enumerate(zip(panels, rows, strict=True)):
                a = panel[n0 // 16 : (n0 + up(n, 16)) // 16]
                yield from self.cube.product(c, a, True, row, True, i == 0)
            yield self.l0c.enque()
            head = b.head // self.p.shape.group
            dst = self.workspace.gradient(kind, b.batch, head, b.column + c0 + n0, n)
            yield from self.cube.drain(self.l0c, dst, n, atomic=True)
