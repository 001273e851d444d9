"""Conv2D + BNTrainingReduce: the convolution, with each channel's sum and square sum for BN.

A strip of L0C is moved to UB twice: in fp16, to be stored, and in fp32 for the statistics. There
every column block is walked by two instructions that hold 64 fp32 accumulators (4 positions × 16
channels): vadd of x, vmla of x·x. Accumulators stay in UB for the block's whole share; at its end
they are folded to 16 channels and added to GM atomically, one store per statistic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir.layout import blocks
from npusim.kernels import epilogue as ep
from npusim.kernels.conv import Conv2D, ConvBody, conv_plan
from npusim.kernels.conv_tiling import TrainingProblem, conv_estimate, conv_problem, conv_tilings
from npusim.kernels.cube_tiling import exact_splits, share
from npusim.kernels.lang import Kernel
from npusim.program.isa import Instr, Kind, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, kernel
from npusim.program.region import GM, Region

LANES = 64  #: fp32 accumulators of a column block and statistic
#: Cycles at the end of a block that the measured kernels spend beyond their arithmetic, whatever
#: the shape: taken as the merge of all blocks' sums in GM (a fit, see the accuracy page).
MERGE = 7000

#: Cycles per column block of a tile that an untuned kernel's move out of L0C takes besides its
#: bytes. A fit: the cube of InceptionV3's convolutions waits about 125 cycles per tile and C1.
MOVE = 125
#: The same of a tuned kernel, whose sums are taken before L0C is free: a fit to the sum of
#: ResNet-50's rows, 25 to 50 are as good.
TUNED_MOVE = 30


@dataclass(frozen=True)
class StatsSpec(ep.EpilogueSpec):
    """The epilogue as the tiling sees it; `bias_bytes` is the room of the accumulators."""

    @property
    def on_vector(self) -> bool:
        """Statistics are fp32 work."""
        return True

    @property
    def passes(self) -> int:
        """Two moves out of L0C, vadd, vmla."""
        return 4

    def vector_cycles(self, chip: ChipSpec, elements: float) -> float:
        """Two moves and two fp32 passes."""
        assert chip.core.vector.l0c_rate is not None
        binary = chip.core.vector.costs["binary"].b32 or 2.0
        return 2 * elements * (4 / chip.core.vector.l0c_rate + binary / 64)


@dataclass(frozen=True)
class StatsProblem(TrainingProblem):
    """The convolution, split as CANN's training kernels are.

    Tuned tilings hold L0C until a tile's sums are taken; untuned ones free it when the tile is in
    UB, block by block (their large images take less than cube and vector work together).
    """

    def splits(self, cores: int) -> list[tuple[int, int, int]]:
        """Block splits worth trying."""
        return exact_splits(self.batch, self.m, self.n1, cores)

    def held_cycles(self, chip: ChipSpec, t: Tiling) -> float:
        """The moves out of L0C, and the sums of all strips but a tile's last."""
        vec, m0, n0 = chip.core.vector, t["m0"], t["n0"]
        assert vec.l0c_rate is not None
        rows = min(m0, self.m1) * 256
        strip = max(1, ep.strip_blocks(self.spec, chip, m0, n0))
        before = (blocks(n0, strip) - 1) * strip
        sums = 2 * (vec.costs["binary"].b32 or 2.0) / 64
        return n0 * (2 * rows * 4 / vec.l0c_rate + MOVE) + before * rows * sums


@lru_cache(maxsize=256)
def stats_problem(args: KernelArgs) -> StatsProblem:
    """The convolution with the room that statistics need."""
    p = conv_problem(args)
    room = p.n1 * 2 * (LANES + 16) * 4
    spec = StatsSpec(None, (), args.outputs[0].dtype.np, room)
    shared = {f.name: getattr(p, f.name) for f in fields(p)}
    return StatsProblem(**{**shared, "spec": spec})


@kernel("Conv2DBNTrainingReduce")
class Conv2DBNTrainingReduce(Conv2D):
    """Convolution with BN's sums. Outputs: y, sum, square sum (both zeroed before)."""

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """As Conv2D; the results must leave through the vector unit, in one type."""
        if chip.core.fixp is not None:
            return "L0C does not leave through the vector unit"
        if len(args.inputs) > 2 or args.epilogue:
            return "no bias and no epilogue besides the statistics"
        return Conv2D.refuse(args, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """As Conv2D."""
        return conv_tilings(stats_problem(args), chip)

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """As Conv2D."""
        return conv_estimate(stats_problem(args), chip, tiling)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """As Conv2D, and every block adds its channels' sums."""
        p = stats_problem(args)
        plan = conv_plan(p, args, tiling)
        total = sum(blocks(share(p, tiling, b).n) * 16 * 4 for b in range(plan.block_dim))
        sums = Traffic(p.n1 * 16 * 4, total)
        out = len(args.inputs)
        traffic = {**plan.traffic, out + 1: sums, out + 2: sums}
        return Plan(plan.tiling, plan.block_dim, traffic, plan.classes)

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """See the module's text."""
        p = stats_problem(args)
        return _Body(k, p, tiling, share(p, tiling, block)).run()


class _StatsOutput(ep.CubeOutput):
    """Drains L0C tiles, and keeps the sums."""

    def _allocate(self, strip: int) -> None:
        k = self._k
        self._first = self._columns[0] // 16
        self._n1 = blocks(self._columns[1])
        self._out = k.queue("UB", strip * self._spec.out.itemsize, 2, Pipe.V, Pipe.MTE3)
        self._x32 = k.alloc("UB", strip * 4)
        self._sums = [k.alloc("UB", self._n1 * LANES * 4) for _ in range(2)]
        self._totals = [k.queue("UB", self._n1 * 16 * 4, 1, Pipe.V, Pipe.MTE3) for _ in range(2)]

    def prepare(self) -> Iterator[Instr]:
        """Zero the accumulators."""
        for sums in self._sums:
            whole = sums.region((self._n1 * LANES,), ep.F32)
            yield self._k.vec("dup", whole, scalar=0.0)

    def _strip(self, l0c: Region, n1: int, width: int, tile: ep.TileSpan) -> Iterator[Instr]:
        k, spec = self._k, self._spec
        nu, m16 = l0c.shape[0], tile.m16
        out = yield from self._out.alloc()
        narrow = self._shape(out, spec.out, nu, m16)
        wide = self._shape(self._x32, ep.F32, nu, m16)
        if self.early:
            for u in range(nu):
                yield from self._move(wide[u], narrow[u], l0c[u])
        else:
            yield k.memo(("wide", nu, m16), lambda: k.l0c_to_ub(wide, l0c))
            yield k.memo(("narrow", nu, m16), lambda: k.l0c_to_ub(narrow, l0c))
            yield k.stall(Pipe.V, nu * TUNED_MOVE)
        yield from self._in_ub()
        yield self._out.enque()
        for u in range(nu):
            yield from self._accumulate(wide[u], n1 + u - self._first)
        yield self._out.deque()

        def store() -> Instr:
            return k.store_pairs(self._view.pieces(k.output(0), narrow, n1, tile))

        yield k.memo(("store", nu, width, tile.rows), store)
        yield self._out.free()

    def _move(self, wide: Region, narrow: Region, l0c: Region) -> Iterator[Instr]:
        """A column block out of L0C, twice."""
        k, m16 = self._k, l0c.shape[0]
        yield k.memo(("wide block", m16), lambda: k.l0c_to_ub(wide, l0c))
        yield k.memo(("narrow block", m16), lambda: k.l0c_to_ub(narrow, l0c))
        yield k.stall(Pipe.V, MOVE)

    def _accumulate(self, x: Region, at: int) -> Iterator[Instr]:
        """Add a column block x (m16, 16) to the sums of the share's block `at`."""
        k, m16 = self._k, x.shape[0]
        walked = Region.dense(x.space, -1, x.offset, (m16 // 4, LANES), x.dtype)
        rows = [s.region((LANES,), ep.F32, at * LANES * 4) for s in self._sums]
        k.barrier()  # each instruction ends before the next begins
        yield k.memo(
            ("sum", m16), lambda: k.vec_by("add", _add_rows, walked, rows[0], rows[0], walked)
        )
        k.barrier()
        yield k.memo(
            ("square", m16), lambda: k.vec_by("mla", _add_squares, walked, rows[1], rows[1], walked)
        )

    def finish(self) -> Iterator[Instr]:
        """Fold the accumulators to channels and add them to GM."""
        k, n1 = self._k, self._n1
        for i, (sums, queue) in enumerate(zip(self._sums, self._totals, strict=True)):
            lanes = sums.region((n1, 4, 16), ep.F32)
            yield k.vec("add", lanes[:, :2], lanes[:, :2], lanes[:, 2:])
            total = yield from queue.alloc()
            row = total.region((n1, 16), ep.F32)
            yield k.vec("add", row, lanes[:, 0], lanes[:, 1])
            yield queue.enque()
            yield queue.deque()
            whole = k.output(1 + i)
            dst = Region.dense(GM, whole.operand, self._first * 16 * 4, (n1, 16), ep.F32)
            yield k.store(dst, row, atomic=True)
            yield queue.free()
        issue = k.chip.core.scalar.issue
        yield Instr(Kind.LOCAL, Pipe.MTE3, "merge_sums", issue, MERGE)


def _add_rows(total: np.ndarray, x: np.ndarray) -> np.ndarray:
    return total + x.sum(axis=0)


def _add_squares(total: np.ndarray, x: np.ndarray) -> np.ndarray:
    return total + (x * x).sum(axis=0)


class _Body(ConvBody):
    """A convolution's block that ends with the sums."""

    output = _StatsOutput
    out: _StatsOutput

    def run(self) -> Iterator[Instr]:
        """All tiles of the share, then the sums."""
        yield from super().run()
        yield from self.out.finish()
