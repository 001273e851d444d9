"""What the parts of the attention gradient share: blocks of scores, workspace, bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from npusim.kernels.attention_shape import F32, Problem, up
from npusim.ops.training_attention import STATS
from npusim.program.region import GM, Region

QUERY, KEY, VALUE, DY, MASK, TOP, TOTAL, ATTENTION = range(8)  #: inputs
#: Workspace operands, after inputs and outputs: dP, S, P, dS; row sums of dY·Y; dQ, dK, dV in fp32.
DP, SCORES, PROBS, DSCORES, SUMS, DQ, DK, DV = range(8)
COPIES = (2, 2, 2, 2, 1, 1, 1, 1)  #: of each, so that stages do not wait for each other


@dataclass(frozen=True)
class Block:
    """Scores of query rows [row, row + rows) of a head on keys [column, column + columns)."""

    batch: int
    head: int
    row: int
    rows: int
    column: int
    columns: int

    @property
    def width(self) -> int:
        """Columns in whole blocks of 16."""
        return up(self.columns, 16)


@lru_cache(maxsize=64)
def blocks_of(p: Problem, s1: int, s2: int) -> tuple[Block, ...]:
    """All blocks with a visible score: per head the keys' blocks, rows innermost (CANN's order)."""
    a = p.shape
    out = []
    for batch in range(a.batch):
        for head in range(a.heads):
            for column in range(0, a.s2, s2):
                for row in range(0, a.s1, s1):
                    rows = min(s1, a.s1 - row)
                    seen = min(column + s2, a.columns(row + rows - 1)) - column
                    if seen > 0:
                        out.append(Block(batch, head, row, rows, column, seen))
    return tuple(out)


def halves(columns: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """(first, count) of the columns that each of two vector cores takes: whole blocks of 16."""
    first = min(columns, up(-(-columns // 2), 16))
    return (0, first), (first, columns - first)


@dataclass(frozen=True)
class Workspace:
    """Where intermediate results lie: per core dP, S, P, dS of two blocks; for all the rest."""

    p: Problem
    base: int
    block: int
    s1: int
    s2: int

    def sizes(self) -> tuple[int, ...]:
        """Bytes of each operand; of the first four per core."""
        a = self.p.shape
        scores, es = self.s1 * self.s2, self.p.dtype.itemsize
        rows, keys = a.batch * a.heads * a.s1, a.batch * a.kv_heads * a.s2
        sums = (rows * STATS * 4, rows * a.d * 4, keys * a.d * 4, keys * a.d * 4)
        each = (scores * 4, scores * 4, scores * es, scores * es, *sums)
        return tuple(n * c for n, c in zip(each, COPIES, strict=True))

    def scores(self, kind: int, b: Block, index: int) -> Region:
        """(columns / 16, rows, 16): scores of a core's block number `index`, in NZ."""
        size = self.sizes()[kind]
        start = self.block * size + index % COPIES[kind] * (size // COPIES[kind])
        dtype = F32 if kind in (DP, SCORES) else self.p.dtype
        shape = (b.width // 16, b.rows, 16)
        return Region.dense(GM, self.base + kind, start, shape, dtype)

    def sums(self, batch: int, head: int, row: int, rows: int) -> Region:
        """(rows, 8): sums of dY·Y."""
        a = self.p.shape
        start = ((batch * a.heads + head) * a.s1 + row) * STATS * 4
        return Region.dense(GM, self.base + SUMS, start, (rows, STATS), F32)

    def gradient(self, kind: int, batch: int, head: int, row: int, rows: int) -> Region:
        """(rows, D) of dQ, or of dK, dV of a key head, in fp32."""
        a = self.p.shape
        heads, length = (a.heads, a.s1) if kind == DQ else (a.kv_heads, a.s2)
        start = ((batch * heads + head) * length + row) * a.d * 4
        return Region.dense(GM, self.base + kind, start, (rows, a.d), F32)


#: Keys of a slice of dS that dQ and dK are computed from at once.
SLICE = 256


def cube_bytes(p: Problem, base: int, b: Block) -> dict[int, int]:
    """Operand → bytes that the cube core moves for a block."""
    a, es = p.shape, p.dtype.itemsize
    rows, keys = b.rows * a.d * es, b.columns * a.d * es
    slices = -(-b.columns // SLICE)
    return {
        QUERY: 2 * rows,
        KEY: 2 * keys,
        VALUE: keys,
        DY: 2 * rows,
        base + DP: b.rows * b.width * 4,
        base + SCORES: b.rows * b.width * 4,
        base + PROBS: b.rows * b.width * es,
        base + DSCORES: b.rows * b.width * es,
        base + DQ: slices * b.rows * a.d * 4,
        base + DK: b.columns * a.d * 4,
        base + DV: b.columns * a.d * 4,
    }
