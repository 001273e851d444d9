"""A matrix product as MatMul sees it: the problem, its legal tilings and their estimated cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from npusim.chip.spec import ChipSpec
from npusim.ir import Layout
from npusim.ir.layout import blocks
from npusim.kernels import epilogue as ep
from npusim.kernels import epilogue_costs as costs
from npusim.kernels.cube_tiling import Share, share, tile_sizes
from npusim.kernels.matrix import MatrixOutput, StoredMatrix
from npusim.program.kernel import KernelArgs, OperandSpec, Tiling

HOT = 0.02  #: weight of what the busiest pipe hides: it parts tilings that are equal but for it


@dataclass(frozen=True)
class Problem:
    """A launch as the kernel sees it: sizes in elements, operands as stored matrices."""

    batch: int
    m: int
    n: int
    k: int
    a: StoredMatrix
    b: StoredMatrix
    trans_a: bool
    trans_b: bool
    out: MatrixOutput
    spec: ep.EpilogueSpec

    @property
    def m1(self) -> int:
        """M in blocks."""
        return blocks(self.m)

    @property
    def n1(self) -> int:
        """N in blocks."""
        return blocks(self.n)

    @property
    def k1(self) -> int:
        """K in blocks (of 32 elements in int8)."""
        return blocks(self.k, self.a.c0)


@lru_cache(maxsize=256)
def problem(args: KernelArgs) -> Problem:
    """The launch as a batched matrix product."""
    sa, sb = args.inputs[0], args.inputs[1]
    assert sa is not None and sb is not None
    trans_a = bool(args.get("transA"))
    trans_b = bool(args.get("transB")) or len(sb.shape) == 1  # a vector is a column
    rows_a, cols_a = _matrix_shape(sa)
    rows_b, cols_b = _matrix_shape(sb)
    batch_a, batch_b = prod(sa.shape[:-2]), prod(sb.shape[:-2])
    plain = sa.layout is args.outputs[0].layout is Layout.ND
    if batch_b == 1 and batch_a > 1 and not trans_a and plain:
        # One B for all: the batch is just more rows of A.
        rows_a, batch_a = rows_a * batch_a, 1
    m, k = (cols_a, rows_a) if trans_a else (rows_a, cols_a)
    n = rows_b if trans_b else cols_b
    out = args.outputs[0]
    return Problem(
        max(batch_a, batch_b),
        m,
        n,
        k,
        StoredMatrix(0, sa, batch_a, rows_a, cols_a),
        StoredMatrix(1, sb, batch_b, rows_b, cols_b),
        trans_a,
        trans_b,
        MatrixOutput(out.layout, m, n),
        ep.make_spec(args),
    )


def batches_match(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """True when the batch dimensions are equal (but for leading ones), or one operand has none."""
    if 1 in (prod(a[:-2]), prod(b[:-2])):
        return True
    rank = max(len(a), len(b)) - 2
    padded = [(1,) * (rank - len(s[:-2])) + s[:-2] for s in (a, b)]
    return padded[0] == padded[1]


def _matrix_shape(spec: OperandSpec) -> tuple[int, int]:
    return (1, spec.shape[0]) if len(spec.shape) == 1 else (spec.shape[-2], spec.shape[-1])


def operand_reads(p: Problem, t: Tiling, s: Share) -> tuple[int, int]:
    """How often a block loads its part of A and of B, per batch."""
    m_tiles, n_tiles = blocks(s.m, t["m0"] * 16), blocks(s.n, t["n0"] * 16)
    return (
        1 if t["resident"] == 1 else n_tiles,
        1 if t["resident"] == 2 else m_tiles,
    )


def moved_a(p: Problem, m: int) -> int:
    """Bytes of A that m rows of the result read."""
    return p.a.moved(p.k, m) if p.trans_a else p.a.moved(m, p.k)


def moved_b(p: Problem, n: int) -> int:
    """Bytes of B that n columns of the result read."""
    return p.b.moved(n, p.k) if p.trans_b else p.b.moved(p.k, n)


def matmul_tiles(p: Problem, chip: ChipSpec, split: tuple[int, int, int]) -> Iterator[Tiling]:
    """Legal L0 and L1 tiles of a block split."""
    bb, bm, bn = split
    mc, nc = blocks(p.m1, bm), blocks(p.n1, bn)
    fractal = p.a.fractal
    half_a, half_b = chip.core.l0a.size // 2 // fractal, chip.core.l0b.size // 2 // fractal
    l1 = (chip.core.l1.size - p.spec.bias_bytes) // fractal
    l0c = chip.core.l0c.size // 1024
    for m0 in tile_sizes(mc, half_a):
        for n0 in tile_sizes(nc, half_b):
            k0 = min(half_a // m0, half_b // n0, p.k1)
            if k0 < 1 or m0 * n0 > l0c or not _fits_ub(p, chip, m0, n0):
                continue
            for resident in (0, 1, 2):
                panel = 0 if resident == 0 else (m0 if resident == 1 else n0) * p.k1
                moving = (m0 + n0) if resident == 0 else (n0 if resident == 1 else m0)
                panels = 2 if l1 - 2 * panel >= 2 * moving * k0 else 1
                room = (l1 - panels * panel) // (2 * moving)
                if room < k0:
                    continue
                for want in {k0, 16 // k0 * k0 or k0}:
                    k1 = min(p.k1, room // k0 * k0, want)
                    yield {
                        "bb": bb,
                        "bm": bm,
                        "bn": bn,
                        "m0": m0,
                        "n0": n0,
                        "k0": k0,
                        "k1": k1,
                        "resident": resident,
                        "panels": panels,
                    }


def _fits_ub(p: Problem, chip: ChipSpec, m0: int, n0: int) -> bool:
    if chip.core.fixp is not None:
        return True
    return ep.strip_blocks(p.spec, chip, m0, n0) > 0


def _weights_rate(p: Problem, chip: ChipSpec, t: Tiling, s: Share, rate: float) -> float:
    """Bytes of B per cycle that a core loads, where each comes from HBM once."""
    cold = chip.core.mte2.cold_rate
    if cold is None:
        return rate
    loaded = operand_reads(p, t, s)[1] * moved_b(p, s.n) * s.batches * t["bb"] * t["bm"] * t["bn"]
    return min(rate, cold * max(1.0, loaded / p.b.unique))


def _load_cycles(
    p: Problem, chip: ChipSpec, t: Tiling, s: Share, rates: tuple[float, float]
) -> tuple[float, float, float]:
    """MTE2 in a batch of a block: its cycles, those in which the cube has nothing to do, those
    before the first product; rates: of A, B."""
    mte2, fractal = chip.core.mte2, p.a.fractal
    m_tiles, n_tiles = blocks(s.m, t["m0"] * 16), blocks(s.n, t["n0"] * 16)
    chunks, nd2nz = blocks(p.k1, t["k1"]), chip.core.fixp is not None
    total = idle = fill = 0.0
    for i, (side, extent, reads, trans) in enumerate((
        (p.a, s.m, operand_reads(p, t, s)[0], p.trans_a),
        (p.b, s.n, operand_reads(p, t, s)[1], not p.trans_b),
    )):  # fmt: skip
        resident, wide = t["resident"] == i + 1, t[("m0", "n0")[i]]
        parts = 1 if resident else chunks
        width = p.k if resident else min(p.k, t["k1"] * p.a.c0)
        pieces = side.bursts(width, extent, nd2nz) if trans else side.bursts(extent, width, nd2nz)
        nbytes = side.moved(p.k, extent) if trans else side.moved(extent, p.k)
        total += reads * max(nbytes / rates[i], parts * pieces * mte2.burst)
        tiles = (m_tiles, n_tiles)[i]
        total += tiles * reads * parts * mte2.head
        panel = wide * p.k1 * fractal / rates[i]
        if resident and t["panels"] == 1:
            idle = (tiles - 1) * (panel + costs.load_latency(chip))
        fill += panel if resident else wide * t["k1"] * fractal / rates[i]
    return total, idle, fill


def matmul_estimate(p: Problem, chip: ChipSpec, t: Tiling) -> float:
    """Cycles of a tiling: max over the pipes of the largest block, plus what cannot overlap."""
    core = chip.core
    s = share(p, t, 0)
    mc, nc = blocks(s.m), blocks(s.n)
    m_tiles, n_tiles = blocks(mc, t["m0"]), blocks(nc, t["n0"])
    k_steps = blocks(p.k1, t["k0"])
    mmads = m_tiles * n_tiles * k_steps
    step = p.a.c0 / core.cube.k[p.a.spec.dtype.value]
    cube = core.cube.blocks(mc, nc) * p.k1 * step + mmads * core.cube.head
    mte1 = 2 * core.mte1.head * mmads + p.k1 * p.a.fractal * (
        mc * n_tiles / core.mte1.l0a_rate + nc * m_tiles / core.mte1.l0b_rate
    )
    chunks = blocks(p.k1, t["k1"])
    block_dim = t["bb"] * t["bm"] * t["bn"]
    rate = min(core.mte2.rate, chip.l2_rate / block_dim)
    mte2, idle, fill = _load_cycles(p, chip, t, s, (rate, _weights_rate(p, chip, t, s, rate)))
    out_bytes = p.out.moved(s.m, s.n, p.spec.out.itemsize)
    drain = costs.drain_cycles(p.spec, chip, out_bytes, (mc, nc), (t["m0"], t["n0"]))
    scalar = mmads * 12 * core.scalar.issue
    unique = p.a.unique + p.b.unique + p.batch * p.m * p.n * p.spec.out.itemsize
    tiles = m_tiles * n_tiles
    chunk = (mte2 + mte1) / (tiles * chunks) + costs.load_latency(chip)
    floor = tiles * max(costs.tile_floor(chip, (t["m0"], t["n0"])), chunks * chunk / 2)
    body = s.batches * (idle + max(cube, mte1, mte2, drain, scalar, floor))
    body += HOT * (cube + mte1 + mte2)
    exposed = s.batches * drain if ep.l0c_slots(chip, (t["m0"], t["n0"])) == 1 else drain / tiles
    overhead = chip.cycles(chip.scheduler.per_block) * block_dim
    return max(body, unique / chip.hbm_rate) + exposed + fill + overhead
