"""Tilings of matrix products as CANN's library chooses them, for a block dim known beforehand.

npusim's own search (`MatMul.tilings`) looks for the fastest tiling; the library's kernels follow
simpler rules, read off operator times recorded on first-generation chips:

* blocks: exact divisors of M and N whose product is the block dim; the longer side is cut more;
  among those the cut nearest to the ratio of the sides, the squarer of two. Batches are
  dealt to blocks before anything else is;
* L0 tile: the largest power of two up to 8 that divides the block's side; where that is below 4,
  the largest divisor up to 16. k0: the largest divisor of K up to 8 that fits half of L0A and L0B;
* A's panel stays in L1 where it and two chunks of B fit, and there are several tiles along N.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log

from npusim.chip.spec import ChipSpec
from npusim.ir.layout import blocks
from npusim.kernels.cube_tiling import Extents
from npusim.program.kernel import Tiling

SIDE = 8  #: largest power of two of a tile's side, in 16-blocks
CHUNK_STEPS = 2  #: k steps that one load brings into L1, where they fit
ODD_SIDE = 16  #: largest side of a tile that is no power of two
SMALL_SIDE = 4  #: powers of two below this give way to a larger divisor


def library_tiling(
    p: Extents, k1: int, itemsize: int, chip: ChipSpec, block_dim: int, rows: int, bias: int
) -> Tiling | None:
    """The tiling of a product of batch × (M, K1 blocks) × N; None when nothing fits.

    Args:
        k1: K in blocks; itemsize: bytes of an element of A and B; block_dim: blocks at most.
        rows: 16-blocks along M for which UB holds one column block; bias: its bytes in L1 or UB.
    """
    bb = min(p.batch, block_dim)
    bb = blocks(p.batch, blocks(p.batch, bb))
    bm, bn = (1, 1) if bb > 1 else split(p.m1, p.n1, block_dim)
    fractal = 256 * itemsize
    half_a, half_b = chip.core.l0a.size // 2 // fractal, chip.core.l0b.size // 2 // fractal
    if not min(half_a, half_b, rows):
        return None
    l0c = chip.core.l0c.size // 1024
    m0 = tile_side(blocks(p.m1, bm), min(half_a, rows, l0c))
    n0 = tile_side(blocks(p.n1, bn), min(half_b, l0c // m0))
    room = (chip.core.l1.size - bias) // fractal
    k0 = _divisor(k1, min(SIDE, half_a // m0, half_b // n0, room // (2 * (m0 + n0))))
    if not k0:
        return None
    reused = blocks(p.n1, bn) > n0
    resident = reused and _l1_blocks(m0, n0, k0, k1, True) <= room
    steps = CHUNK_STEPS
    while steps > 1 and _l1_blocks(m0, n0, k0 * steps, k1, resident) > room:
        steps -= 1
    return {
        "bb": bb, "bm": bm, "bn": bn, "m0": m0, "n0": n0, "k0": k0, "k1": min(k1, steps * k0),
        "resident": int(resident), "panels": 1,
    }  # fmt: skip


def _l1_blocks(m0: int, n0: int, chunk: int, k1: int, resident: bool) -> int:
    """16-blocks of L1: A's panel or two chunks of it, and two chunks of B."""
    return (m0 * k1 if resident else 2 * m0 * chunk) + 2 * n0 * chunk


def split(m1: int, n1: int, block_dim: int) -> tuple[int, int]:
    """Blocks over M and N: exact divisors where there are any, else the evenest cut."""
    pairs = list(_pairs(m1, n1, block_dim))
    exact = [(m, n) for m, n in pairs if m1 % m == 0 and n1 % n == 0]
    if exact:
        ordered = [(m, n) for m, n in exact if (m >= n) == (m1 > n1) or m == n]
        ratio = log(m1 / n1)
        return min(
            ordered or exact, key=lambda c: (round(abs(log(c[0] / c[1]) - ratio), 6), max(c))
        )
    if not pairs:  # a prime block dim that neither side has: as many rows as there are
        pairs = [(min(m1, block_dim), 1), (1, min(n1, block_dim))]
    best = min(pairs, key=lambda c: blocks(m1, c[0]) * blocks(n1, c[1]))
    return blocks(m1, blocks(m1, best[0])), blocks(n1, blocks(n1, best[1]))


def _pairs(m1: int, n1: int, block_dim: int) -> Iterator[tuple[int, int]]:
    for bm in range(1, min(m1, block_dim) + 1):
        if block_dim % bm == 0 and block_dim // bm <= n1:
            yield bm, block_dim // bm


def tile_side(n: int, most: int = ODD_SIDE) -> int:
    """Side of an L0 tile, in blocks, for a share of n blocks; at most `most` (1 or more)."""
    power = min(SIDE, n & -n, 1 << (most.bit_length() - 1))
    if power >= min(SMALL_SIDE, n, most):
        return power
    return _divisor(n, min(ODD_SIDE, most))


def _divisor(n: int, most: int) -> int:
    """The largest divisor of n up to `most`; 0 when `most` is 0."""
    return max((d for d in range(1, min(n, most) + 1) if n % d == 0), default=0)
