"""The cube core's products of attention kernels, in tiles of 128 × 128.

Operands come from GM into L1 in NZ form, pieces of 128 rows at a time; L0A, L0B and L0C each hold
two tiles, so loads, products and the way out overlap. Where cube and vector cores are apart
(dav-2201) results leave in fp32 through FIXP.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from npusim.kernels.attention_shape import CUBE, F32, load_nz, up
from npusim.kernels.lang import Kernel
from npusim.kernels.queues import Alloc, Queue
from npusim.program.isa import Instr, Pipe
from npusim.program.region import Region


def pieces(total: int, most: int = CUBE) -> list[tuple[int, int]]:
    """(start, size) of pieces of 128, or of `most`."""
    return [(i, min(most, total - i)) for i in range(0, total, most)]


class Cube:
    """L0A and L0B of a cube, and the instructions of one tile's product.

    Tiles have up to `rows` × 128 elements on A's side, 128 × 128 on B's. Where two of those do not
    fit L0 (fp32) a product is summed over pieces of `depth`.
    """

    def __init__(self, k: Kernel, dtype: np.dtype, rows: int = CUBE) -> None:
        self.k, self.dtype, self.rows = k, dtype, rows
        es, core = dtype.itemsize, k.chip.core
        most = min(core.l0a.size // rows, core.l0b.size // CUBE) // (2 * es)
        self.depth = max(16, min(CUBE, most // 16 * 16))
        other = ("L0B", CUBE * self.depth * es)
        self.l0 = k.queue("L0A", rows * self.depth * es, 2, Pipe.MTE1, Pipe.M, other)

    def results(self, slots: int, pipe: Pipe) -> Queue:
        """Tiles of L0C that `pipe` takes away."""
        return self.k.queue("L0C", self.rows * CUBE * 4, slots, Pipe.M, pipe)

    def panel(self, l1: Alloc, rows: int, cols: int) -> Region:
        """(C1, R16, 16): what `load_nz` left in L1."""
        return l1.region((cols // 16, up(rows, 16), 16), self.dtype)

    def product(
        self, c: Alloc, a: Region, a_turned: bool, b: Region, b_turned: bool, first: bool
    ) -> Iterator[Instr]:
        """c (+)= A · B of tiles in L1.

        Args:
            a: (K1, M16, 16), or (M1, K16, 16) turned. b: (K1, N16, 16) (a stored Bᵀ), or
                (N1, K16, 16) turned.
        """
        deep = self.depth // 16
        a1, b1 = a.split(1, 16), b.split(1, 16)  # (·1, ·1, 16, 16)
        for k0 in range(0, b1.shape[1] if b_turned else b1.shape[0], deep):
            part = slice(k0, k0 + deep)
            left = a1[:, part] if a_turned else a1[part]
            right = b1[:, part] if b_turned else b1[part]
            yield from self._step(c, left, a_turned, right, b_turned, first and k0 == 0)

    def _step(
        self, c: Alloc, a1: Region, a_turned: bool, b1: Region, b_turned: bool, first: bool
    ) -> Iterator[Instr]:
        """A product whose operands fit L0."""
        k = self.k
        m1, k1 = (a1.shape[0], a1.shape[1]) if a_turned else (a1.shape[1], a1.shape[0])
        n1 = b1.shape[0] if b_turned else b1.shape[1]
        l0a = yield from self.l0.alloc()
        l0b = self.l0.back_partner
        ra = l0a.region((m1, k1, 16, 16), self.dtype)
        rb = l0b.region((k1, n1, 16, 16), self.dtype)
        key = (m1, k1, n1, a_turned, b_turned)
        yield k.memo(
            ("l0a", *key),
            lambda: k.load_l0(ra, a1.permute(0, 1, 3, 2) if a_turned else a1.permute(1, 0, 2, 3)),
        )
        yield k.memo(
            ("l0b", *key), lambda: k.load_l0(rb, b1.permute(1, 0, 3, 2) if b_turned else b1)
        )
        yield self.l0.enque()
        yield self.l0.deque()
        rc = c.region((n1, m1 * 16, 16), F32)
        yield k.memo(("mmad", first, *key), lambda: k.mmad(rc.split(1, 16), ra, rb, not first))
        yield self.l0.free()

    def drain(
        self, results: Queue, dst: Region, rows: int, atomic: bool = False
    ) -> Iterator[Instr]:
        """The oldest finished tile to GM, by FIXP.

        dst: (rows, columns in whole blocks), or (rows, blocks, 16) where those lie apart (NZ).
        """
        k = self.k
        yield results.deque()
        by_row = len(dst.shape) == 2
        gm = dst.split(1, 16) if by_row else dst
        count = gm.shape[1]
        tile = results.front.region((count, up(rows, 16), 16), F32)[:, :rows].permute(1, 0, 2)
        yield k.memo(
            ("drain", atomic, *dst.shape, dst.operand),
            lambda: k.fixpipe([(gm, tile)], rows if by_row else count, atomic=atomic),
        )
        yield results.free()


class ScoresAndValues:
    """Q·Kᵀ and P·V of one band at a time, for the forward kernel.

    The band's products with V stand in L0C together: in tiles of fewer than 128 rows where that
    is small.

    Life cycle per band: `load_queries`; per task `scores`, later `values`; `drop_queries` after
    the last task's scores.
    """

    def __init__(self, k: Kernel, dtype: np.dtype, d: int, rows: int) -> None:
        half = k.chip.core.l0c.size // (2 * CUBE * 4) // 16 * 16
        self.rows = max(16, min(CUBE, half))  #: of a tile of results
        self.k, self.d, self.cube = k, d, Cube(k, dtype, self.rows)
        es = dtype.itemsize
        self.l0c = self.cube.results(max(2, len(pieces(rows, self.rows))), Pipe.FIXP)
        self.q = k.queue("L1", up(rows, 16) * d * es, 2, Pipe.MTE2, Pipe.MTE1)
        self.kv = k.queue("L1", CUBE * d * es, 4, Pipe.MTE2, Pipe.MTE1)
        self.p = k.queue("L1", up(rows, 16) * CUBE * es, 2, Pipe.MTE2, Pipe.MTE1)

    def load_queries(self, q: Region) -> Iterator[Instr]:
        """The band's queries (rows, D) into L1."""
        slot = yield from self.q.alloc()
        yield load_nz(self.k, slot, q, ("q",))
        yield self.q.enque()
        yield self.q.deque()

    def drop_queries(self) -> Instr:
        """The band's queries are used."""
        return self.q.free()

    def scores(self, rows: int, keys: Region, out: Region) -> Iterator[Instr]:
        """out (rows, columns in whole blocks) ← Q · keysᵀ."""
        cube = self.cube
        q = cube.panel(self.q.front, rows, self.d)
        for n0, n in pieces(keys.shape[0]):
            slot = yield from self.kv.alloc()
            yield load_nz(self.k, slot, keys[n0 : n0 + n], ("k",))
            yield self.kv.enque()
            yield self.kv.deque()
            b = cube.panel(self.kv.front, n, self.d)
            for m0, m in pieces(rows, self.rows):
                c = yield from self.l0c.alloc()
                a = q[:, m0 : m0 + up(m, 16)]
                yield from cube.product(c, a, False, b, False, True)
                if m0 + m == rows:
                    yield self.kv.free()
                yield self.l0c.enque()
                yield from cube.drain(self.l0c, out[m0 : m0 + m, n0 : n0 + up(n, 16)], m)

    def values(self, probabilities: Region, values: Region, out: Region) -> Iterator[Instr]:
        """out (rows, D) ← P (rows, columns in whole blocks) · values."""
        cube = self.cube
        rows, d = probabilities.shape[0], self.d
        tiles: list[Alloc] = []
        for _ in pieces(rows, self.rows):
            tile = yield from self.l0c.alloc()
            tiles.append(tile)
        for k0, depth in pieces(values.shape[0]):
            slot = yield from self.p.alloc()
            wide = up(depth, 16)
            yield load_nz(self.k, slot, probabilities[:, k0 : k0 + wide], ("p",))
            yield self.p.enque()
            slot = yield from self.kv.alloc()
            yield load_nz(self.k, slot, values[k0 : k0 + depth], ("v",))
            yield self.kv.enque()
            yield self.p.deque()
            yield self.kv.deque()
            p = cube.panel(self.p.front, rows, wide)
            v = cube.panel(self.kv.front, depth, d)
            for c, (m0, m) in zip(tiles, pieces(rows, self.rows), strict=True):
                a = p[:, m0 : m0 + up(m, 16)]
                yield from cube.product(c, a, False, v, True, k0 == 0)
            yield self.p.free()
            yield self.kv.free()
        for m0, m in pieces(rows, self.rows):
            yield self.l0c.enque()
            yield from cube.drain(self.l0c, out[m0 : m0 + m], m)
