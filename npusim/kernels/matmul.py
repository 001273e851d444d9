"""MatMul: C[b, m, n] = A[b, m, k] · B[b, k, n] (+ bias) on the cube, with a fused epilogue.

Serves MatMul, Gemm (transposed operands, bias) and, in int8 and uint8, MatMulV2. Work is split
over blocks by batch, M and N; a block walks tiles of its share:

    for batch: for m tile: for n tile:          (the resident operand's loop is the outer one)
        for k chunk: MTE2: A and B chunks → L1            (double-buffered)
            for k step: MTE1: L1 → L0A, L0B (double-buffered); M: mmad into L0C
        V (or FIXP): L0C → UB, epilogue, cast; MTE3: → GM

A *resident* operand's whole K panel stays in L1 while the other operand streams past it.

Tiling (in 16-blocks): bb, bm, bn blocks over batch, M, N; m0, n0, k0 the L0 tile; k1 the L1
chunk; resident 0 none, 1 A, 2 B; panels the buffers of a resident panel.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.ir.layout import blocks
from npusim.kernels import epilogue as ep
from npusim.kernels import epilogue_costs as costs
from npusim.kernels.cube_tiling import Share, share, work_splits
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.matmul_tiling import (
    Problem,
    batches_match,
    matmul_estimate,
    matmul_tiles,
    moved_a,
    moved_b,
    operand_reads,
    problem,
)
from npusim.kernels.queues import Alloc, Queue
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import (
    KernelArgs,
    Plan,
    Tiling,
    Traffic,
    group_blocks,
    kernel,
)
from npusim.program.region import Region


@kernel("MatMul")
class MatMul(TileKernel):
    """Batched matrix product on the cube."""

    core_type = "AIC"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Dtypes the cube takes, ONNX broadcasting of batches, epilogues of the chip."""
        sa, sb = args.inputs[0], args.inputs[1]
        assert sa is not None and sb is not None
        if not args.outputs[0].nbytes or not sa.nbytes:
            return "an empty tensor"
        if sa.dtype is not sb.dtype or sa.dtype.value not in chip.core.cube.k:
            return f"the cube takes {', '.join(chip.core.cube.k)}, not {sa.dtype.value}"
        ends = bool(args.epilogue) and args.epilogue[-1].op_type in ep.QUANT_STEPS
        if not sa.dtype.is_float and not ends and args.outputs[0].dtype is not DType.INT32:
            return "int32 sums leave as they are"
        if not sa.dtype.is_float and (args.get("transA") or not args.get("transB")):
            return f"{sa.dtype.value} fractals are loaded untransposed: A [M, K], B [N, K]"
        if not batches_match(sa.shape, sb.shape):
            return "batch dimensions broadcast in more than one way"
        for name in ("alpha", "beta"):
            if args.get(name, 1.0) != 1.0:
                return f"{name} other than 1"
        if len(args.inputs) > 2 and args.inputs[2] is not None:
            bias = args.inputs[2]
            n = sb.shape[-2 if args.get("transB") else -1]
            per_column = prod(bias.shape) == n and bias.shape[-1:] in ((), (n,))
            if 2 not in {s.operand for s in args.epilogue} and not per_column:
                return "a bias that is not one value per column"
        if _fills_padding(args):
            return "a bias or constant that would change the zeros which pad FRACTAL_NZ"
        return ep.refuse_epilogue(args, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Best block splits crossed with legal L0/L1 tiles."""
        p = problem(args)
        for split in work_splits(p.batch, p.m1, p.n1, chip.cores.count):
            yield from matmul_tiles(p, chip, split)

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """max over the pipes of the largest block, plus what cannot overlap."""
        return matmul_estimate(problem(args), chip, tiling)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Traffic by the loop nest; classes by (batches, rows, columns)."""
        p = problem(args)
        block_dim = tiling["bb"] * tiling["bm"] * tiling["bn"]
        shares = [share(p, tiling, b) for b in range(block_dim)]
        out_es = p.spec.out.itemsize
        a_total = b_total = c_total = bias_reads = 0
        for s in shares:
            reads_a, reads_b = operand_reads(p, tiling, s)
            a_total += s.batches * reads_a * moved_a(p, s.m)
            b_total += s.batches * reads_b * moved_b(p, s.n)
            c_total += s.batches * p.out.moved(s.m, s.n, out_es)
            bias_reads += s.n
        out = len(args.inputs)
        traffic = {
            0: Traffic(p.a.unique, a_total),
            1: Traffic(p.b.unique, b_total),
            out: Traffic(c_total, c_total),
        }
        extra = costs.epilogue_bytes(args, p.spec.bias, c_total, bias_reads)
        traffic.update({i: Traffic(*v) for i, v in extra.items()})
        keys = [(s.batches, s.m, s.n) for s in shares]
        return Plan(tiling, block_dim, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """See the module's text."""
        p = problem(args)
        return Body(k, p, tiling, share(p, tiling, block)).run()


def _fills_padding(args: KernelArgs) -> bool:
    """True when bias or constants reach the padding of a ragged FRACTAL_NZ result."""
    out = args.outputs[0]
    if out.layout is not Layout.FRACTAL_NZ:
        return False
    constants = any("const1" in dict(s.attrs) for s in args.epilogue)
    bias = problem(args).spec.bias is not None
    return bool((out.shape[-2] % 16 and (bias or constants)) or (out.shape[-1] % 16 and constants))


class Body:
    """The program of one block.

    `seeded`: a tile does not start from nothing (see `begin`).
    """

    seeded = False

    def __init__(self, k: Kernel, p: Problem, t: Tiling, s: Share) -> None:
        self.k, self.p, self.t, self.s = k, p, t, s
        fractal = p.a.fractal
        m0, n0, k0, k1 = t["m0"], t["n0"], t["k0"], t["k1"]
        self.panel: Queue | None = None
        if t["resident"] == 0:
            self.l1 = k.queue(
                "L1", m0 * k1 * fractal, 2, Pipe.MTE2, Pipe.MTE1, ("L1", n0 * k1 * fractal)
            )
        else:
            side, other = (m0, n0) if t["resident"] == 1 else (n0, m0)
            self.panel = k.queue("L1", side * p.k1 * fractal, t["panels"], Pipe.MTE2, Pipe.MTE1)
            self.l1 = k.queue("L1", other * k1 * fractal, 2, Pipe.MTE2, Pipe.MTE1)
        self.l0 = k.queue(
            "L0A", m0 * k0 * fractal, 2, Pipe.MTE1, Pipe.M, ("L0B", n0 * k0 * fractal)
        )
        self.out = self.output()

    def output(self) -> ep.CubeOutput:
        """What takes finished tiles to GM."""
        p, t, s = self.p, self.t, self.s
        return ep.CubeOutput(self.k, p.spec, p.out, (t["m0"], t["n0"]), (s.n0, s.n))

    def begin(self, c: Region, col0: int) -> Iterator[Instr]:
        """Prepares an L0C tile whose columns start at col0, if it does not start from nothing."""
        yield from ()

    def leave(self, n1: int, n_blocks: int, span: ep.TileSpan) -> Iterator[Instr]:
        """A full tile on its way out: column blocks n1 … n1 + n_blocks."""
        yield from self.out.drain(n1, n_blocks, self.p.n, span)

    def read_l1(self, load: Instr) -> Iterator[Instr]:
        """A load from L1 into L0A or L0B."""
        yield load

    def run(self) -> Iterator[Instr]:
        """All tiles of the share; the resident operand's loop is outermost."""
        k, t, s = self.k, self.t, self.s
        m_tiles, n_tiles = blocks(s.m, t["m0"] * 16), blocks(s.n, t["n0"] * 16)
        yield from self.out.prepare()
        outer, inner = (n_tiles, m_tiles) if t["resident"] == 2 else (m_tiles, n_tiles)
        for b in k.loop(s.batches):
            for i in k.loop(outer):
                if self.panel is not None:
                    yield from self.load_panel(s.batch0 + b, i)
                yield from self.line(s.batch0 + b, i, inner)
                if self.panel is not None:
                    yield self.panel.free()

    def line(self, batch: int, i: int, count: int) -> Iterator[Instr]:
        """The tiles along one of the outer loop."""
        for j in self.k.loop(count):
            yield from self.tile(batch, *((j, i) if self.t["resident"] == 2 else (i, j)))

    def rows(self, mi: int) -> tuple[int, int]:
        """First row and row count of m tile mi."""
        size = self.t["m0"] * 16
        return self.s.m0 + mi * size, min(size, self.s.m - mi * size)

    def _cols(self, ni: int) -> tuple[int, int]:
        size = self.t["n0"] * 16
        return self.s.n0 + ni * size, min(size, self.s.n - ni * size)

    def load_a(self, alloc: Alloc, batch: int, mi: int, k0: int, kn: int) -> Instr:
        """K [k0, k0 + kn) of A for m tile mi."""
        m0, m = self.rows(mi)
        if self.p.trans_a:
            return self.p.a.load(self.k, alloc, batch, k0, kn, m0, m)
        return self.p.a.load(self.k, alloc, batch, m0, m, k0, kn)

    def _load_b(self, alloc: Alloc, batch: int, ni: int, k0: int, kn: int) -> Instr:
        n0, n = self._cols(ni)
        if self.p.trans_b:
            return self.p.b.load(self.k, alloc, batch, n0, n, k0, kn)
        return self.p.b.load(self.k, alloc, batch, k0, kn, n0, n)

    def load_panel(self, batch: int, i: int) -> Iterator[Instr]:
        """The resident operand's whole panel of tile i."""
        assert self.panel is not None
        alloc = yield from self.panel.alloc()
        load = self.load_a if self.t["resident"] == 1 else self._load_b
        yield load(alloc, batch, i, 0, self.p.k)
        yield self.panel.enque()
        yield self.panel.deque()

    def tile(self, batch: int, mi: int, ni: int) -> Iterator[Instr]:
        """One L0C tile, from its loads to its way out."""
        k, p, t = self.k, self.p, self.t
        (row0, rows), (col0, cols) = self.rows(mi), self._cols(ni)
        m_b, n_b = blocks(rows), blocks(cols)
        c_alloc = yield from self.out.queue.alloc()
        c = c_alloc.region((n_b, m_b, 16, 16), self.out.sums)
        c0 = p.a.c0
        chunk = t["k1"] * c0
        yield from self.begin(c, col0)
        first = not self.seeded
        for kc in k.loop(blocks(p.k1, t["k1"])):
            k_start = kc * chunk
            k_len = min(chunk, p.k - k_start)
            yield from self.load_chunk(batch, mi, ni, k_start, k_len)
            yield self.l1.deque()
            kb = blocks(k_len, c0)
            for ks in k.loop(blocks(kb, t["k0"])):
                lo = ks * t["k0"]
                width = min(t["k0"], kb - lo)
                yield from self._step(c, m_b, n_b, k_start // c0, kb, lo, width, first)
                first = False
            yield self.l1.free()
        yield self.out.queue.enque()
        span = ep.TileSpan(batch, row0, rows, m_b * 16)
        yield from self.leave(col0 // 16, n_b, span)

    def load_chunk(self, batch: int, mi: int, ni: int, k_start: int, k_len: int) -> Iterator[Instr]:
        """What is not resident of K [k_start, k_start + k_len)."""
        alloc = yield from self.l1.alloc()
        if self.t["resident"] == 0:
            yield self.load_a(alloc, batch, mi, k_start, k_len)
            yield self._load_b(self.l1.back_partner, batch, ni, k_start, k_len)
        elif self.t["resident"] == 1:
            yield self._load_b(alloc, batch, ni, k_start, k_len)
        else:
            yield self.load_a(alloc, batch, mi, k_start, k_len)
        yield self.l1.enque()

    def _step(
        self,
        c: Region,
        m_b: int,
        n_b: int,
        k_first: int,
        kb: int,
        lo: int,
        width: int,
        first: bool,
    ) -> Iterator[Instr]:
        """One k step: L1 → L0A, L0B, mmad. lo: block within the chunk; k_first: chunk's start."""
        k, dtype, c0 = self.k, self.p.a.spec.dtype.np, self.p.a.c0
        resident = self.t["resident"]
        l0a = yield from self.l0.alloc()
        l0b = self.l0.back_partner
        a_src, b_src = self.l1.front, self.l1.front
        a_kb = b_kb = kb
        a_lo = b_lo = lo
        if resident == 0:
            b_src = self.l1.front_partner
        elif resident == 1:
            assert self.panel is not None
            a_src, a_kb, a_lo = self.panel.front, self.p.k1, k_first + lo
        else:
            assert self.panel is not None
            b_src, b_kb, b_lo = self.panel.front, self.p.k1, k_first + lo

        def l0a_tile() -> Region:
            return l0a.region((m_b, width, 16, c0), dtype)

        def l0b_tile() -> Region:
            return l0b.region((width, n_b, 16, c0), dtype)

        def load_a() -> Instr:
            if self.p.trans_a:  # L1 (M1, K1, 16k, 16m) → (M1, K1, 16m, 16k)
                src = a_src.region((m_b, a_kb, 16, 16), dtype)[:, a_lo : a_lo + width]
                return k.load_l0(l0a_tile(), src.permute(0, 1, 3, 2))
            # L1 (K1, M1, 16m, 16k)
            src = a_src.region((a_kb, m_b, 16, c0), dtype)[a_lo : a_lo + width]
            return k.load_l0(l0a_tile(), src.permute(1, 0, 2, 3))

        def load_b() -> Instr:
            if self.p.trans_b:  # L1 (K1, N1, 16n, 16k)
                src = b_src.region((b_kb, n_b, 16, c0), dtype)[b_lo : b_lo + width]
                return k.load_l0(l0b_tile(), src)
            # L1 (N1, K1, 16k, 16n) → (K1, N1, 16n, 16k)
            src = b_src.region((n_b, b_kb, 16, 16), dtype)[:, b_lo : b_lo + width]
            return k.load_l0(l0b_tile(), src.permute(1, 0, 3, 2))

        key = (m_b, n_b, width)
        for name, load in (("l0a", load_a), ("l0b", load_b)):
            yield from self.read_l1(k.memo((name, *key), load))
        yield self.l0.enque()
        yield self.l0.deque()
        yield k.memo(("mmad", *key), lambda: k.mmad(c, l0a_tile(), l0b_tile(), not first))
        yield self.l0.free()
