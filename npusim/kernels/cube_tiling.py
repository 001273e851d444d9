"""How cube kernels cut their work: blocks over batch, M and N, and tile sizes worth trying."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from npusim.ir.layout import blocks
from npusim.program.kernel import Tiling


@dataclass(frozen=True)
class Share:
    """One block's part: batches, rows and columns (in elements; starts are multiples of 16)."""

    batch0: int
    batches: int
    m0: int
    m: int
    n0: int
    n: int


class Extents(Protocol):
    """What `share` needs of a problem: batch, M and N in elements and in blocks."""

    @property
    def batch(self) -> int: ...
    @property
    def m(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def m1(self) -> int: ...
    @property
    def n1(self) -> int: ...


def share(p: Extents, t: Tiling, block: int) -> Share:
    """The part of block `block`, in whole fractals."""
    return block_share(p, t, block, blocks(p.m1, t["bm"]) * 16, blocks(p.n1, t["bn"]) * 16)


def block_share(p: Extents, t: Tiling, block: int, per_m: int, per_n: int) -> Share:
    """The part of block `block` where a block has `per_m` rows and `per_n` columns."""
    bi, rest = divmod(block, t["bm"] * t["bn"])
    mi, ni = divmod(rest, t["bn"])
    per_b = blocks(p.batch, t["bb"])
    return Share(
        bi * per_b,
        min(per_b, p.batch - bi * per_b),
        mi * per_m,
        min(per_m, p.m - mi * per_m),
        ni * per_n,
        min(per_n, p.n - ni * per_n),
    )


def work_splits(batch: int, m1: int, n1: int, cores: int) -> list[tuple[int, int, int]]:
    """The most promising (bb, bm, bn) for batch × m1 × n1 blocks of work.

    Ranked by the largest share (in steps of a tenth), then by what a block must load.
    """
    found: dict[tuple[int, int, int], tuple[float, float]] = {}
    for bb in _factors(batch, cores):
        for bm in range(1, min(cores // bb, m1) + 1):
            bn = min(cores // bb // bm, n1)
            nb, mc, nc = blocks(batch, bb), blocks(m1, bm), blocks(n1, bn)
            split = (blocks(batch, nb), blocks(m1, mc), blocks(n1, nc))
            found[split] = (nb * mc * nc, nb * (mc + nc))
    best = min(v[0] for v in found.values())
    ranked = sorted(found, key=lambda s: (round(found[s][0] / best, 1), found[s][1]))
    return ranked[:4]


def exact_splits(
    batch: int, m: int, n1: int, cores: int, even: bool = False
) -> list[tuple[int, int, int]]:
    """Block splits as CANN's training kernels make them: (bb, bm, bn) with product `cores`.

    Batch and N split into equal parts only; M (positions of an image) only where the image is
    whole fractals, into parts of at least 4 (`even`: equal parts). Where no such product exists
    the batch alone is split, into parts of ceil(batch / cores) images: 32 images on 30 cores keep
    16 busy. Ranked as `work_splits`.
    """
    m1, found = blocks(m), {}
    for bb in (d for d in range(1, min(batch, cores) + 1) if batch % d == cores % d == 0):
        for bn in (d for d in range(1, n1 + 1) if n1 % d == 0 and cores // bb % d == 0):
            bm = cores // bb // bn
            if bm > 1 and (m % 16 or 4 * bm > m1 or (even and m1 % bm)):
                continue
            nb, mc, nc = batch // bb, blocks(m1, bm), n1 // bn
            found[bb, blocks(m1, mc), bn] = (nb * mc * nc, nb * (mc + nc))
    if found:
        best = min(v[0] for v in found.values())
        return sorted(found, key=lambda s: (round(found[s][0] / best, 1), found[s][1]))[:4]
    if batch < cores:
        return work_splits(batch, m1, n1, cores)
    return [(blocks(batch, blocks(batch, cores)), 1, 1)]


def _factors(batch: int, cores: int) -> list[int]:
    """Block counts worth trying for a batch: exact divisors, and as many as there are cores."""
    most = min(batch, cores)
    return sorted({1, most, *(d for d in range(2, most + 1) if batch % d == 0)})


def tile_sizes(n: int, room: int) -> list[int]:
    """Tile sides worth trying for n blocks: powers of two, exact divisors, n itself.

    At most 16, and at most `room`, the blocks that half of L0A or L0B holds.
    """
    most = min(n, 16, room)
    sizes = {s for s in (1, 2, 4, 8, 16, n) if s <= most}
    divisors = [d for d in range(most, 2, -1) if n % d == 0]
    sizes.update(divisors[:2])
    return sorted(sizes, reverse=True)[:5]
