"""FullyConnection on first-generation chips: few rows against long weights in FRACTAL_Z.

Rows in FRACTAL_NZ go straight to L1, and batches are dealt to blocks: each re-reads the weights
for every batch of its own. Rows of an image (NC1HWC0) lie too far apart for one command: each is
brought to UB by its own, as many blocks of K at a time as UB holds. From there fp16 is put into
fractals by the vector unit and moved on to L1; int8 is scattered into L1 block by block by MTE3.
UB has one buffer, so that load and move take turns; N is dealt to blocks.

The weights are read once a batch and are longer than L2: nearly all of these kernels wait for HBM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.ir.layout import blocks
from npusim.kernels.elementwise import unsupported_type
from npusim.kernels.lang import Kernel, TileKernel
from npusim.program import effects
from npusim.program.isa import Instr, Kind, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

STRIP = 16 << 10  #: UB bytes of a strip of results, of which there are two
UB_SHARE = 0.95
MOST_ROWS = 8  #: 16-row blocks of a tile
PIECES = 4  #: that a chunk of an image's rows is put into fractals in


@dataclass(frozen=True)
class Job:
    """A launch: batch × (m rows, K1 blocks) · (K1, N1 blocks); `image`: rows of NC1HWC0."""

    batch: int
    m: int
    k1: int
    n1: int
    c0: int
    image: bool
    dtype: np.dtype
    out: np.dtype

    @property
    def m1(self) -> int:
        """Rows in blocks of 16."""
        return blocks(self.m)

    @property
    def fractal(self) -> int:
        """Bytes of a fractal of operands."""
        return 16 * self.c0 * self.dtype.itemsize


def _job(args: KernelArgs) -> Job:
    x, w = args.operands[0].storage_shape, args.operands[1].storage_shape
    dtype, out = args.operands[0].dtype.np, args.outputs[0].dtype.np
    if args.operands[0].layout is Layout.NC1HWC0:
        return Job(1, x[0], x[1] * x[2] * x[3], w[1], w[3], True, dtype, out)
    batch, k1, m1 = ((1, *x) if len(x) == 4 else x)[:3]
    return Job(batch, m1 * 16, k1, w[1], w[3], False, dtype, out)


@dataclass(frozen=True)
class Share:
    """A block's batches, 16-row blocks and N blocks."""

    batches: range
    rows: range
    columns: range


def _share(job: Job, t: Tiling, block: int) -> Share:
    def cut(n: int, parts: int, i: int) -> range:
        return range(*(n * (i + j) // parts for j in (0, 1)))

    rest, ni = divmod(block, t["bn"])
    bi, mi = divmod(rest, t["bm"])
    return Share(cut(job.batch, t["bb"], bi), cut(job.m1, t["bm"], mi), cut(job.n1, t["bn"], ni))


def _tiles(span: range, size: int) -> list[range]:
    return [range(lo, min(lo + size, span.stop)) for lo in range(span.start, span.stop, size)]


@kernel("FullyConnection")
class FullyConnection(TileKernel):
    """Tiling: bb, bm, bn blocks; m0, n0 the L0 tile; k0 its K blocks, kc those of a chunk."""

    core_type = "AIC"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """fp16 or int8 rows in FRACTAL_NZ or NC1HWC0, bias and results in their sums' type."""
        if args.op_type != "FullyConnection" or args.epilogue or len(args.inputs) != 3:
            return f"{args.op_type} of {len(args.inputs)} inputs"
        if chip.core.fixp is not None or chip.core.vector.l0c_rate is None:
            return "L0C does not leave through the vector unit"
        x, w, bias, out = args.operands
        kinds = {DType.FLOAT16: DType.FLOAT16, DType.INT8: DType.INT32}
        if kinds.get(x.dtype) is None or w.dtype is not x.dtype:
            return f"{x.dtype.value} with weights of {w.dtype.value}"
        if x.dtype.value not in chip.core.cube.k:
            return f"the cube does not take {x.dtype.value}"
        if not bias.dtype is out.dtype is kinds[x.dtype]:
            return f"bias of {bias.dtype.value}, results of {out.dtype.value}"
        if w.layout is not Layout.FRACTAL_Z or out.layout is not Layout.FRACTAL_NZ:
            return "weights in FRACTAL_Z and results in FRACTAL_NZ only"
        image = x.layout is Layout.NC1HWC0 and len(out.shape) == 2
        if not image and (x.layout is not Layout.FRACTAL_NZ or len(x.shape) not in (2, 3)):
            return f"rows in {x.layout.value} of {x.shape}"
        job = _job(args)
        if job.k1 != w.storage_shape[0] or bias.nbytes != job.n1 * 16 * bias.dtype.size:
            return f"weights {w.storage_shape} and a bias of {bias.shape} for K1 = {job.k1}"
        return unsupported_type(out.dtype, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Batches to blocks, else rows; of an image columns. The widest tile that L0 takes."""
        job, cores, core = _job(args), chip.cores.count, chip.core
        bb, bm, bn = min(job.batch, cores), 1, 1
        if job.image:
            bn = min(job.n1, cores)
        elif job.batch == 1:
            bm = min(job.m1, cores)
        half_a, half_b = core.l0a.size // 2 // job.fractal, core.l0b.size // 2 // job.fractal
        m0 = min(blocks(job.m1, bm), MOST_ROWS, half_a)
        n0 = min(blocks(job.n1, bn), half_b, core.l0c.size // 1024 // max(1, m0))
        if not m0 or not n0 or m0 * 256 * job.out.itemsize > STRIP:
            return
        k0 = max(1, min(half_a // m0, half_b // n0))
        kc = min(job.k1, core.l1.size // 2 // job.fractal // (m0 + n0))
        room = int(core.ub.size * UB_SHARE) - 2 * STRIP - job.n1 * 64
        if job.image:
            kc = min(kc, room // _ub_bytes(job, m0))
        if kc < 1 or room < 0:
            return
        yield {
            "bb": bb, "bm": bm, "bn": bn, "m0": m0, "n0": n0, "k0": min(k0, kc), "kc": kc,
        }  # fmt: skip

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling: its bytes."""
        job, s = _job(args), _share(_job(args), tiling, 0)
        size = len(s.batches) * (len(s.rows) + len(s.columns)) * job.k1 * job.fractal
        return size * tiling["bb"] * tiling["bm"] * tiling["bn"] / chip.hbm_rate

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Rows once an n tile, weights once a batch and m tile."""
        job, t = _job(args), tiling
        n = t["bb"] * t["bm"] * t["bn"]
        totals, keys = [0, 0, 0, 0], []
        for s in (_share(job, t, b) for b in range(n)):
            m_tiles, n_tiles = _tiles(s.rows, t["m0"]), _tiles(s.columns, t["n0"])
            rows = sum(_rows(job, m) for m in m_tiles) if job.image else len(s.rows) * 16
            row = job.k1 * job.c0 * job.dtype.itemsize
            totals[0] += len(s.batches) * len(n_tiles) * rows * row
            totals[1] += len(s.batches) * len(m_tiles) * len(s.columns) * job.k1 * job.fractal
            totals[2] += len(s.columns) * 16 * job.out.itemsize
            totals[3] += len(s.batches) * len(s.rows) * len(s.columns) * 256 * job.out.itemsize
            keys.append((len(s.batches), tuple(s.rows if job.image else [len(s.rows)]),
                         len(s.columns)))  # fmt: skip
        traffic = {}
        for i, total in enumerate(totals):
            nbytes = args.operands[i].nbytes
            # What is longer than L2 has left it when it is read again.
            fits = nbytes <= chip.l2.size // 2
            traffic[i] = Traffic(min(nbytes, total) if fits else total, total)
        return Plan(tiling, n, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """Tile by tile, K chunk by chunk."""
        run = _Run(k, args, tiling, block)
        yield from run.prepare()
        for b in k.loop(len(run.s.batches)):
            for rows in _tiles(run.s.rows, tiling["m0"]):
                for columns in _tiles(run.s.columns, tiling["n0"]):
                    yield from run.tile(run.s.batches.start + b, rows, columns)


def _rows(job: Job, tile: range) -> int:
    """Rows of an image that a tile of 16-row blocks holds."""
    return min(job.m, tile.stop * 16) - tile.start * 16


def _ub_bytes(job: Job, m0: int) -> int:
    """UB bytes of one K block of an image's rows: as loaded, and in fractals (fp16)."""
    rows = min(job.m, m0 * 16) * job.c0 * job.dtype.itemsize
    return rows if job.dtype.itemsize == 1 else rows + blocks(m0 * job.fractal, PIECES)


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, t: Tiling, block: int) -> None:
        self.k, self.args, self.t, self.job = k, args, t, _job(args)
        job, m0, n0, kc = self.job, t["m0"], t["n0"], t["kc"]
        self.s = _share(job, t, block)
        into = Pipe.MTE3 if job.image else Pipe.MTE2
        self.l1a = k.queue("L1", m0 * kc * job.fractal, 2, into, Pipe.MTE1)
        self.l1b = k.queue("L1", n0 * kc * job.fractal, 2, Pipe.MTE2, Pipe.MTE1)
        size = t["k0"] * job.fractal
        self.l0 = k.queue("L0A", m0 * size, 2, Pipe.MTE1, Pipe.M, ("L0B", n0 * size))
        slots = 2 if 2 * m0 * n0 * 1024 <= k.chip.core.l0c.size else 1
        self.l0c = k.queue("L0C", m0 * n0 * 1024, slots, Pipe.M, Pipe.V)
        self.bias = k.queue("UB", job.n1 * 16 * job.out.itemsize, 1, Pipe.MTE2, Pipe.V)
        self.out = k.queue("UB", STRIP, 2, Pipe.V, Pipe.MTE3)
        if job.image:
            rows = min(job.m, m0 * 16) * kc * job.c0 * job.dtype.itemsize
            self.narrow = job.dtype.itemsize == 1
            self.raw = k.queue("UB", rows, 1, Pipe.MTE2, Pipe.MTE3 if self.narrow else Pipe.V)
            if not self.narrow:
                self.piece = blocks(kc, PIECES)
                self.placed = k.queue("UB", m0 * self.piece * job.fractal, 1, Pipe.V, Pipe.MTE3)

    def prepare(self) -> Iterator[Instr]:
        """The bias of the block's columns."""
        slot = yield from self.bias.alloc()
        n = self.s.columns
        whole = Region.dense(GM, 2, 0, (self.job.n1, 16), self.job.out)
        yield self.k.load(slot.region((len(n), 16), self.job.out), whole[n.start : n.stop])
        yield self.bias.enque()
        yield self.bias.deque()

    def tile(self, batch: int, rows: range, columns: range) -> Iterator[Instr]:
        """One tile of results."""
        k, job, t = self.k, self.job, self.t
        sums = np.dtype(np.int32 if job.dtype.itemsize == 1 else np.float32)
        place = yield from self.l0c.alloc()
        c = place.region((len(columns), len(rows), 16, 16), sums)
        chunks = _tiles(range(job.k1), t["kc"])
        # A chunk is asked for before the one before it is worked on: the steps of a chunk fill
        # the queues, and hold the scalar unit back. Only the last chunk may be shorter.
        yield from self._load(batch, rows, columns, chunks[0])
        for i in k.loop(len(chunks) - 2):
            yield from self._load(batch, rows, columns, chunks[i + 1])
            yield from self._chunk(c, chunks[i])
        if len(chunks) > 1:
            yield from self._load(batch, rows, columns, chunks[-1])
            yield from self._chunk(c, chunks[-2])
        yield from self._chunk(c, chunks[-1])
        yield self.l0c.enque()
        yield self.l0c.deque()
        yield from self._drain(c, batch, rows, columns)
        yield self.l0c.free()

    def _load(self, batch: int, rows: range, columns: range, chunk: range) -> Iterator[Instr]:
        """Both operands of a chunk of K."""
        if self.job.image:
            yield from self._load_image(rows, chunk.start, len(chunk))
        else:
            yield from self._load_rows(batch, rows, chunk.start, len(chunk))
        yield from self._load_weights(columns, chunk.start, len(chunk))

    def _chunk(self, c: Region, chunk: range) -> Iterator[Instr]:
        """The products of a chunk."""
        yield self.l1a.deque()
        yield self.l1b.deque()
        for lo in range(0, len(chunk), self.t["k0"]):
            width = min(self.t["k0"], len(chunk) - lo)
            yield from self._step(c, len(chunk), lo, width, chunk.start + lo == 0)
        yield self.l1a.free()
        yield self.l1b.free()

    def _load_rows(self, batch: int, rows: range, first: int, count: int) -> Iterator[Instr]:
        """FRACTAL_NZ rows → (K blocks, row blocks, 16, C0) in L1."""
        job, slot = self.job, (yield from self.l1a.alloc())
        shape = (job.batch, job.k1, job.m1, 16, job.c0)
        gm = Region.dense(GM, 0, 0, shape, job.dtype)[batch, first : first + count]
        gm = gm[:, rows.start : rows.stop]
        yield self.k.load(slot.region(gm.shape, job.dtype), gm)
        yield self.l1a.enque()

    def _load_weights(self, columns: range, first: int, count: int) -> Iterator[Instr]:
        job, slot = self.job, (yield from self.l1b.alloc())
        gm = Region.dense(GM, 1, 0, (job.k1, job.n1, 16, job.c0), job.dtype)
        gm = gm[first : first + count, columns.start : columns.stop]
        yield self.k.load(slot.region(gm.shape, job.dtype), gm)
        yield self.l1b.enque()

    def _load_image(self, rows: range, first: int, count: int) -> Iterator[Instr]:
        """Rows of NC1HWC0, one command each, by way of UB."""
        k, job, n = self.k, self.job, _rows(self.job, rows)
        slot = yield from self.raw.alloc()
        raw = slot.region((n, count, job.c0), job.dtype)
        whole = Region.dense(GM, 0, 0, (job.m, job.k1, job.c0), job.dtype)
        gm = whole[rows.start * 16 : rows.start * 16 + n, first : first + count]
        yield k.load(raw, gm)
        yield k.memo(("commands", n, count), lambda: self._row_commands(n, raw.nbytes))
        yield self.raw.enque()
        yield self.raw.deque()
        slot = yield from self.l1a.alloc()
        if self.narrow:
            # (K blocks, rows, C0): the blocks of a row end up a column of fractals apart.
            dst = slot.region((count, len(rows) * 16, job.c0), job.dtype)[:, :n].permute(1, 0, 2)
            cycles = n * count * k.chip.core.mte3.burst
            yield k.memo(("scatter", n, count), lambda: self._to_l1(dst, raw, cycles))
        else:
            whole = slot.region((count, len(rows), 16, job.c0), job.dtype)
            for lo in range(0, count, self.piece):
                hi = min(count, lo + self.piece)
                yield from self._place(raw[:, lo:hi], whole[lo:hi])
        yield self.raw.free()
        yield self.l1a.enque()

    def _row_commands(self, n: int, nbytes: int) -> Instr:
        """What n commands take longer than one: their heads, as far as no bytes hide them."""
        k = self.k
        mte2, t = k.chip.core.mte2, self.t
        rate = min(mte2.ub_rate, k.chip.hbm_rate / (t["bb"] * t["bm"] * t["bn"]))
        return k.stall(Pipe.MTE2, round(max(0.0, (n - 1) * mte2.head - nbytes / rate)))

    def _place(self, raw: Region, dst: Region) -> Iterator[Instr]:
        """V puts rows into zeroed fractals, which MTE3 moves on to L1.

        A vector repeat takes eight 32 B blocks wherever they lie.
        """
        k, (n, count, _), m_b = self.k, raw.shape, dst.shape[1]
        out = yield from self.placed.alloc()
        flat = out.region((count * m_b * 256,), raw.dtype)
        if n % 16:
            yield k.memo(("zero", n, count), lambda: k.vec("dup", flat, scalar=0.0))
        rows = out.region((count, m_b * 16, 16), raw.dtype)[:, :n].permute(1, 0, 2)
        walked = Region.dense("UB", -1, raw.offset, (raw.size,), raw.dtype)
        yield k.memo(("place", n, count), lambda: k.vec_by("copy", _same, walked, rows, raw))
        yield self.placed.enque()
        yield self.placed.deque()
        placed = out.region(dst.shape, dst.dtype)
        cycles = placed.nbytes / (k.chip.core.mte3.l1_rate or k.chip.core.mte3.rate)
        yield k.memo(("move", n, count), lambda: self._to_l1(dst, placed, cycles))
        yield self.placed.free()

    def _to_l1(self, dst: Region, src: Region, cycles: float) -> Instr:
        """MTE3: UB → L1."""
        mte3 = self.k.chip.core.mte3
        effect = effects.Copy(((dst, src),)) if self.k.functional else None
        spent = mte3.head + ceil(cycles)
        issue = self.k.chip.core.scalar.issue
        return Instr(Kind.LOCAL, Pipe.MTE3, "copy_l1", issue, spent, 0, effect)

    def _step(self, c: Region, count: int, lo: int, width: int, first: bool) -> Iterator[Instr]:
        """K blocks [lo, lo + width) of the chunk."""
        k, job = self.k, self.job
        n_b, m_b = c.shape[:2]
        a = (yield from self.l0.alloc()).region((m_b, width, 16, job.c0), job.dtype)
        b = self.l0.back_partner.region((width, n_b, 16, job.c0), job.dtype)
        rows = self.l1a.front.region((count, m_b, 16, job.c0), job.dtype)[lo : lo + width]
        weights = self.l1b.front.region((count, n_b, 16, job.c0), job.dtype)[lo : lo + width]
        key = (m_b, n_b, width)
        yield k.memo(("l0a", *key), lambda: k.load_l0(a, rows.permute(1, 0, 2, 3)))
        yield k.memo(("l0b", *key), lambda: k.load_l0(b, weights))
        yield self.l0.enque()
        yield self.l0.deque()
        yield k.memo(("mmad", *key), lambda: k.mmad(c, a, b, not first))
        yield self.l0.free()

    def _drain(self, c: Region, batch: int, rows: range, columns: range) -> Iterator[Instr]:
        """Strips of column blocks: to UB, plus the bias, to GM."""
        k, job, m_b = self.k, self.job, len(rows)
        whole = Region.dense(GM, 3, 0, (job.batch, job.n1, job.m1, 16, 16), job.out)
        width = max(1, STRIP // (m_b * 256 * job.out.itemsize))
        for lo in range(0, len(columns), width):
            n = min(width, len(columns) - lo)
            slot = yield from self.out.alloc()
            strip = slot.region((n, m_b, 16, 16), job.out)
            yield k.l0c_to_ub(strip, c[lo : lo + n])
            at = columns.start - self.s.columns.start + lo
            row = self.bias.front.region((len(self.s.columns), 16), job.out)[at : at + n]
            lines = slot.region((n, m_b * 16, 16), job.out)
            valid = lines[:, : _rows(job, rows)]
            yield k.vec("add", valid, valid, row.expand(1))
            if valid.size < lines.size:  # rows that pad a fractal stay zero
                yield k.vec("dup", lines[:, valid.shape[1] :], scalar=0)
            yield self.out.enque()
            yield self.out.deque()
            first = columns.start + lo
            gm = whole[batch, first : first + n, rows.start : rows.stop]
            yield k.store(gm, strip)
            yield self.out.free()


def _same(x: np.ndarray) -> np.ndarray:
    return x
