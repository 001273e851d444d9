"""MatMulVector: fp32 matrix products on the vector unit, where the cube does not take fp32.

Serves MatMul and Gemm as `matmul` does: batches, one B for all, transposed operands, a bias per
column, a fused epilogue. A block walks tiles of its share (see `vector_macs` for the arithmetic):

    for batch: for n tile: for m tile:
        for k chunk: MTE2: A and B chunks → UB (double-buffered)
            V: spread A; transpose B where it is stored transposed; multiply-accumulate
        V: epilogue; MTE3: → GM

Tiling: bb, bm, bn blocks over batch, M, N; m0, n0, k0 the tile (elements); ways the accumulators.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from npusim.chip.spec import ChipSpec
from npusim.ir import Layout
from npusim.ir.layout import blocks
from npusim.kernels import epilogue_costs as costs
from npusim.kernels import vector_macs as vm
from npusim.kernels.bands import UB_SHARE
from npusim.kernels.cube_tiling import Share, block_share, work_splits
from npusim.kernels.lang import Alloc, Kernel, TileKernel
from npusim.kernels.matmul_tiling import Problem, batches_match, problem
from npusim.program import cost
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

CHUNKS = (8, 16, 32, 64, 128, 256)  #: values of k loaded at a time
COLUMNS = (1024, 512, 256, 128, 64)  #: columns of a tile, besides the whole share
MAX_WAYS = 64


@kernel("MatMulVector")
class MatMulVector(TileKernel):
    """Batched fp32 matrix product on the vector unit."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """fp32 ND operands; batches that are equal or one of them 1; a bias per column."""
        if args.op_type not in ("MatMul", "Gemm"):
            return f"operator {args.op_type}"
        if any(o is not None and o.layout is not Layout.ND for o in args.operands):
            return "operands in ND only"
        a, b = args.inputs[0], args.inputs[1]
        assert a is not None and b is not None
        if not a.nbytes or not args.outputs[0].nbytes:
            return "an empty tensor"
        if not batches_match(a.shape, b.shape):
            return "batch dimensions broadcast in more than one way"
        for name in ("alpha", "beta"):
            if args.get(name, 1.0) != 1.0:
                return f"{name} other than 1"
        p = problem(args)
        if p.spec.bias is not None:
            shape = args.operands[p.spec.bias].shape
            if prod(shape) != p.n or shape[-1:] not in ((), (p.n,)):
                return "a bias that is not one value per column"
        return vm.refuse_vector(args, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Best block splits crossed with columns and chunks; as many rows as fit in UB."""
        p = problem(args)
        units = blocks(p.n, vm.lanes_of(chip))
        for split in work_splits(p.batch, p.m, units, chip.vector_cores())[:4]:
            yield from _tiles(p, chip, split)

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """The slower of vector and MTE2 in the largest block, plus what cannot overlap."""
        return _estimate(problem(args), chip, tiling)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Traffic by the loop nest; classes by (batches, rows, columns)."""
        p, t = problem(args), tiling
        shares = [_share(p, chip, t, i) for i in range(t["bb"] * t["bm"] * t["bn"])]
        a_total = b_total = bias_reads = 0
        for s in shares:
            m_tiles, n_tiles = blocks(s.m, t["m0"]), blocks(s.n, t["n0"])
            a_total += s.batches * n_tiles * s.m * p.k * 4
            b_total += s.batches * m_tiles * s.n * p.k * 4
            bias_reads += s.batches * m_tiles * s.n
        c_total = p.batch * p.m * p.n * 4
        traffic = {
            0: Traffic(p.a.unique, a_total),
            1: Traffic(p.b.unique, b_total),
            len(args.inputs): Traffic(c_total, c_total),
        }
        extra = costs.epilogue_bytes(args, p.spec.bias, c_total, bias_reads)
        traffic.update({i: Traffic(*v) for i, v in extra.items()})
        return Plan(t, len(shares), traffic, group_blocks([(s.batches, s.m, s.n) for s in shares]))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """See the module's text."""
        p = problem(args)
        return _Body(k, p, tiling, _share(p, k.chip, tiling, block)).run()


def _pad(n: int) -> int:
    """A row length in whole 32 B blocks."""
    return blocks(n, 8) * 8


def _share(p: Problem, chip: ChipSpec, t: Tiling, block: int) -> Share:
    """Batches, rows and columns of a block; columns in whole repeats."""
    lanes = vm.lanes_of(chip)
    per_n = blocks(blocks(p.n, lanes), t["bn"]) * lanes
    return block_share(p, t, block, blocks(p.m, t["bm"]), per_n)


def _operand_bytes(p: Problem, m0: int, n0: int, k0: int) -> int:
    """UB for A and B: double-buffered chunks, spread A, transposed B."""
    a = k0 * _pad(m0) if p.trans_a else m0 * _pad(k0)
    b = n0 * _pad(k0) if p.trans_b else k0 * _pad(n0)
    turned = k0 * _pad(n0) if p.trans_b else 0
    return 4 * (2 * a + 2 * b + m0 * k0 * vm.SPREAD + turned)


def _tiles(p: Problem, chip: ChipSpec, split: tuple[int, int, int]) -> Iterator[Tiling]:
    bb, bm, bn = split
    share = _share(p, chip, {"bb": bb, "bm": bm, "bn": bn}, 0)
    budget = int(chip.core.ub.size * UB_SHARE)
    lanes = vm.lanes_of(chip)
    for n0 in dict.fromkeys((min(share.n, 2 * COLUMNS[0]), *(n for n in COLUMNS if n < share.n))):
        pitch = _pad(n0)
        for k0 in sorted({min(k, max(1, p.k)) for k in CHUNKS}):
            fixed = _operand_bytes(p, 0, n0, k0) + vm.result_bytes(p.spec, 1, 0, pitch)
            ragged = 8 * k0 * 7 if p.trans_a else 0
            row = vm.result_bytes(p.spec, 1, 1, pitch) - vm.result_bytes(p.spec, 1, 0, pitch)
            row += 8 * (k0 if p.trans_a else _pad(k0)) + 4 * k0 * vm.SPREAD
            m0 = min(share.m, (budget - fixed - ragged) // row)
            if m0 < 1:
                continue
            m0 = blocks(share.m, blocks(share.m, m0))
            room = budget - _operand_bytes(p, m0, n0, k0)

            def fits(ways: int, m0: int = m0, pitch: int = pitch, room: int = room) -> bool:
                return vm.result_bytes(p.spec, ways, m0, pitch) <= room

            ways = vm.choose_ways(m0 * blocks(n0, lanes), min(k0, MAX_WAYS), fits)
            yield {"bb": bb, "bm": bm, "bn": bn, "m0": m0, "n0": n0, "k0": k0, "ways": ways}


def _estimate(p: Problem, chip: ChipSpec, t: Tiling) -> float:
    core = chip.core
    s = _share(p, chip, t, 0)
    m0, n0, k0, ways = t["m0"], t["n0"], t["k0"], t["ways"]
    block_dim = t["bb"] * t["bm"] * t["bn"]
    chunks = p.k / k0
    vector = vm.macs_cost(chip, (ways, m0, n0), k0)[0] + vm.spread_cycles(chip, m0 * k0)
    vector += 2 * core.vector.tail
    if p.trans_b:
        vector += int(vm.pass_cycles(chip, n0 * k0))
    rate = min(core.mte2.ub_rate, chip.l2_rate / block_dim)
    load = 2.0 * core.mte2.head
    for rows, width in (
        (k0, m0) if p.trans_a else (m0, k0),
        (n0, k0) if p.trans_b else (k0, n0),
    ):
        nbytes = rows * width * 4
        load += nbytes / cost.dma_cap(nbytes, rows, rate, core.mte2.burst, core.mte2.min_burst)
    tiles = s.batches * blocks(s.m, m0) * blocks(s.n, n0)
    drain = vm.result_passes(p.spec, ways) * vm.pass_cycles(chip, m0 * n0)
    store = m0 * n0 * 4 / core.mte3.rate + core.mte3.head
    body = tiles * (chunks * max(vector, load) + drain)
    unique = p.a.unique + p.b.unique + p.batch * p.m * p.n * 4
    launch = block_dim * chip.cycles(chip.scheduler.per_block)
    return max(body, unique / chip.hbm_rate) + load + store + launch


class _Body:
    """The program of one block."""

    def __init__(self, k: Kernel, p: Problem, t: Tiling, s: Share) -> None:
        self.k, self.p, self.t, self.s = k, p, t, s
        m0, n0, k0 = t["m0"], t["n0"], t["k0"]
        a = k0 * _pad(m0) if p.trans_a else m0 * _pad(k0)
        b = n0 * _pad(k0) if p.trans_b else k0 * _pad(n0)
        self.chunks = k.queue("UB", 4 * a, 2, Pipe.MTE2, Pipe.V, ("UB", 4 * b))
        self.spread = k.alloc("UB", 4 * m0 * k0 * vm.SPREAD)
        self.turned = k.alloc("UB", 4 * k0 * _pad(n0)) if p.trans_b else None
        self.results = vm.Results(k, p.spec, t["ways"], m0, _pad(n0))
        self.a = Region.dense(GM, 0, 0, (p.a.batch, p.a.rows, p.a.cols), vm.F32)
        self.b = Region.dense(GM, 1, 0, (p.b.batch, p.b.rows, p.b.cols), vm.F32)

    def run(self) -> Iterator[Instr]:
        """All tiles of the share."""
        k, t, s = self.k, self.t, self.s
        for b in k.loop(s.batches):
            for ni in k.loop(blocks(s.n, t["n0"])):
                for mi in k.loop(blocks(s.m, t["m0"])):
                    yield from self._tile(s.batch0 + b, mi * t["m0"], ni * t["n0"])

    def _tile(self, batch: int, m_first: int, n_first: int) -> Iterator[Instr]:
        k, p, s = self.k, self.p, self.s
        m, n = min(self.t["m0"], s.m - m_first), min(self.t["n0"], s.n - n_first)
        row, column = s.m0 + m_first, s.n0 + n_first

        def gm(operand: int) -> Region:
            whole = Region.dense(GM, operand, 0, (p.batch, p.m, p.n), vm.F32)
            return whole[batch, row : row + m, column : column + n]

        def local(slot: Alloc) -> Region:
            return slot.region((m, _pad(n)), vm.F32)[:, :n]

        tile = vm.Tile(m, n, _pad(n), column, n, gm, local)
        c = yield from self.results.begin(tile)
        k0 = self.t["k0"]
        for i in k.loop(blocks(p.k, k0)):
            yield from self._chunk(batch, row, column, i * k0, min(k0, p.k - i * k0), c)
        yield from self.results.finish(tile, c)

    def _chunk(
        self, batch: int, row: int, column: int, first: int, depth: int, c: Region
    ) -> Iterator[Instr]:
        """Load `depth` values of k from `first`; c += A · B over them."""
        k, p = self.k, self.p
        _, m, n = c.shape
        rows, columns = slice(row, row + m), slice(column, column + n)
        ks = slice(first, first + depth)
        a_src = self.a[batch if p.a.batch > 1 else 0]
        b_src = self.b[batch if p.b.batch > 1 else 0]
        a_src = a_src[ks, rows] if p.trans_a else a_src[rows, ks]
        b_src = b_src[columns, ks] if p.trans_b else b_src[ks, columns]
        slot = yield from self.chunks.alloc()
        a = slot.region((a_src.shape[0], _pad(a_src.shape[1])), vm.F32)[:, : a_src.shape[1]]
        partner = self.chunks.back_partner
        b = partner.region((b_src.shape[0], _pad(b_src.shape[1])), vm.F32)[:, : b_src.shape[1]]
        yield k.load(a, a_src)
        yield k.load(b, b_src)
        yield self.chunks.enque()
        yield self.chunks.deque()
        spread = self.spread.region((m, depth, vm.SPREAD), vm.F32)
        yield k.vec("brcb", spread, (a.permute(1, 0) if p.trans_a else a).expand(2))
        if self.turned is not None:
            turned = self.turned.region((depth, _pad(n)), vm.F32)[:, :n]
            yield k.vec("transpose", turned, b.permute(1, 0))
            b = turned
        yield vm.macs(k, c, spread, b)
        yield self.chunks.free()
