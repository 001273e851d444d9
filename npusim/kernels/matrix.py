"""Matrices in GM as the cube kernels load and store them: ND or FRACTAL_NZ, plain or transposed.

A stored matrix is [R, C] (per batch). Its tiles come into L1 in NZ form (C1, R16, 16): on chips
with ND2NZ in MTE2 (those with FIXP) one burst per GM row, otherwise one 32 B burst per row and
column block, which is slow and is what makes FRACTAL_NZ worth having.

A column block is C0 wide: 16 elements, 32 of a byte (int8's fractals are 16 × 32, 512 B as well).
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.ir import Layout
from npusim.ir.layout import blocks, c0_of
from npusim.kernels.epilogue import TileSpan
from npusim.kernels.lang import Alloc, Kernel
from npusim.program.isa import Instr
from npusim.program.kernel import OperandSpec
from npusim.program.region import GM, Region


@dataclass(frozen=True)
class StoredMatrix:
    """One matrix operand [batch, R, C] of a launch.

    Attributes:
        operand: index in the launch; spec: its type and layout.
        batch, rows, cols: as stored (batch 1 broadcasts).
    """

    operand: int
    spec: OperandSpec
    batch: int
    rows: int
    cols: int

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.spec.dtype.size

    @property
    def c0(self) -> int:
        """Columns of a fractal."""
        return c0_of(self.spec.dtype)

    @property
    def fractal(self) -> int:
        """Bytes of a fractal."""
        return 16 * self.c0 * self.itemsize

    def rows_bytes(self, rows: int) -> int:
        """Rows as counted in traffic: padded to fractals in NZ."""
        return blocks(rows) * 16 if self.spec.layout is Layout.FRACTAL_NZ else rows

    def cols_bytes(self, cols: int) -> int:
        """Columns as counted in traffic."""
        padded = blocks(cols, self.c0) * self.c0
        return padded if self.spec.layout is Layout.FRACTAL_NZ else cols

    def moved(self, rows: int, cols: int) -> int:
        """Bytes of loading a [rows, cols] tile."""
        return self.rows_bytes(rows) * self.cols_bytes(cols) * self.itemsize

    @property
    def unique(self) -> int:
        """Bytes of the whole operand that the kernel touches."""
        return self.batch * self.moved(self.rows, self.cols)

    def bursts(self, rows: int, cols: int, nd2nz: bool) -> int:
        """Contiguous GM pieces of a [rows, cols] tile."""
        if self.spec.layout is Layout.FRACTAL_NZ:
            return blocks(cols, self.c0)
        return rows if nd2nz else rows * blocks(cols, self.c0)

    def load(
        self, k: Kernel, dst: Alloc, batch: int, row: int, rows: int, col: int, cols: int
    ) -> Instr:
        """MTE2: tile [row:+rows, col:+cols] into L1 as (C1, R16, C0), from a fractal on."""
        dtype, c0 = self.spec.dtype.np, self.c0
        c1, r16 = blocks(cols, c0), blocks(rows) * 16
        tile = dst.region((c1, r16, c0), dtype)
        nd2nz = k.chip.core.fixp is not None
        pieces = self.bursts(rows, cols, nd2nz)
        b = batch if self.batch > 1 else 0
        if self.spec.layout is Layout.FRACTAL_NZ:
            src = self._nz(b, row, r16, col, c1)
            return k.load_pairs([(tile, src)], None, pieces)
        full, tail = cols // c0, cols % c0
        pairs = []
        if full:
            pairs.append((tile[:full, :rows], self._nd(b, row, col, (full, rows, c0))))
        if tail:
            last = self._nd(b, row, col + full * c0, (1, rows, tail))
            pairs.append((tile[full, :rows, :tail], last[0]))
        ragged = tail or rows % 16
        return k.load_pairs(pairs, tile if ragged else None, pieces)

    def _nz(self, batch: int, row: int, r16: int, col: int, c1: int) -> Region:
        es, c0 = self.itemsize, self.c0
        stride = blocks(self.rows) * self.fractal
        offset = (batch * blocks(self.cols, c0) + col // c0) * stride + row * c0 * es
        shape, strides = (c1, r16, c0), (stride, c0 * es, es)
        return Region(GM, self.operand, offset, shape, strides, self.spec.dtype.np)

    def _nd(self, batch: int, row: int, col: int, shape: tuple[int, int, int]) -> Region:
        """ND elements from (row, col) as (column blocks, rows, width)."""
        es = self.itemsize
        start = (batch * self.rows + row) * self.cols + col
        strides = (self.c0 * es, self.cols * es, es)
        return Region(GM, self.operand, start * es, shape, strides, self.spec.dtype.np)


@dataclass(frozen=True)
class MatrixOutput:
    """A result [batch, M, N] in GM, ND or FRACTAL_NZ (an `epilogue.OutputView`)."""

    layout: Layout
    m: int
    n: int

    @property
    def rows(self) -> bool:
        """ND outputs leave as rows."""
        return self.layout is Layout.ND

    def pieces(
        self, operand: Region, local: Region, n1: int, tile: TileSpan
    ) -> list[tuple[Region, Region]]:
        """(GM, local) pairs of the strip `local` (nu, m16, 16) at column block n1."""
        nu, m16, _ = local.shape
        es = operand.dtype.itemsize
        if self.layout is Layout.FRACTAL_NZ:
            col = blocks(self.m) * 256 * es
            offset = tile.batch * blocks(self.n) * col + n1 * col + tile.row0 * 16 * es
            gm = Region(
                GM, operand.operand, offset, (nu, m16, 16), (col, 16 * es, es), operand.dtype
            )
            return [(gm, local)]
        width = min(nu * 16, self.n - n1 * 16)
        full, tail = width // 16, width % 16
        start = (tile.batch * self.m + tile.row0) * self.n + n1 * 16
        strides = (16 * es, self.n * es, es)
        out = []
        if full:
            shape = (full, tile.rows, 16)
            gm = Region(GM, operand.operand, start * es, shape, strides, operand.dtype)
            piece = local[:full, : tile.rows]
            # (row, block, 16): a row of the strip is one burst.
            out.append((gm.permute(1, 0, 2), piece.permute(1, 0, 2)))
        if tail:
            shape = (1, tile.rows, tail)
            offset = (start + full * 16) * es
            gm = Region(GM, operand.operand, offset, shape, strides, operand.dtype)
            out.append((gm[0], local[full, : tile.rows, :tail]))
        return out

    def bursts(self, nu: int, tile: TileSpan) -> int:
        """Contiguous pieces of a strip when FIXP stores it."""
        return nu if self.layout is Layout.FRACTAL_NZ else tile.rows

    def moved(self, rows: int, cols: int, itemsize: int) -> int:
        """Bytes of storing [rows, cols]."""
        if self.layout is Layout.FRACTAL_NZ:
            return blocks(rows) * blocks(cols) * 256 * itemsize
        return rows * cols * itemsize
