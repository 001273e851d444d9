"""ReduceSum and ReduceMean as CANN's first-generation kernels do them: lane by lane.

Where npusim's own kernel works on all lanes of a tile with each instruction, the library's loops
over the lanes, and every instruction waits for the one before:

* rows: one vcadd chain a row; rows of several repeats take body, tail, their sum, and its move;
* matrices (outer, length, inner): folded in halves one after the other, each level whole repeats
  of a row, then its tail;
* one wide matrix: a strip of columns per block, whose rows come one a command and are added up.

Whatever else (other operators and types, short strips, lanes beyond UB, chips with FIXP) goes
npusim's way.
"""

from __future__ import annotations

from collections.abc import Iterator

from npusim.chip.spec import ChipSpec
from npusim.kernels.lang import Kernel
from npusim.kernels.reduce import Reduce, reduce_job
from npusim.kernels.rows import F32, UB_SHARE, RowReducer, padded
from npusim.kernels.stage import Loading, Stage
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

SHORT_STRIP = 1024  #: bytes of a strip's row up to which many rows come in one command
MIN_OUTER = 8  #: results of a block at least
MIN_TILES = 4  #: of a block's rows, so that loads and sums overlap


@kernel("LibraryReduce")
class LibraryReduce(Reduce):
    """ReduceSum, ReduceMean of fp16 and fp32; else Reduce."""

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """The library's only one, where it has one."""
        found = _tiling(args, chip)
        if found is None:
            yield from Reduce.tilings(args, chip)
        else:
            yield found

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling."""
        return 0.0 if "lanes" in tiling else Reduce.estimate(args, chip, tiling)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        if "lanes" not in tiling:
            return Reduce.plan(args, chip, tiling)
        traffic = {i: Traffic(o.nbytes, o.nbytes) for i, o in enumerate(args.operands)}
        n = tiling["blocks"]
        keys = [s.stop - s.start for s in (_share(args, tiling, b) for b in range(n))]
        return Plan(tiling, n, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        if "lanes" not in tiling:
            yield from Reduce.body(k, args, tiling, block)
            return
        run, share = _Run(k, args, tiling), _share(args, tiling, block)
        if run.job.lanes.is_rows:
            yield from run.rows(share)
        elif run.job.lanes.outer > 1:
            for i in k.loop(share.stop - share.start):
                yield from run.matrix(share.start + i)
        else:
            yield from run.strip(share)


def _tiling(args: KernelArgs, chip: ChipSpec) -> Tiling | None:
    """Rows of a tile, blocks and lanes of a block; None: not the library's way."""
    job = reduce_job(args)
    if job is None or chip.core.fixp is not None or job.repeats > 1 or job.work != F32:
        return None
    if args.op_type not in ("ReduceSum", "ReduceMean"):
        return None
    cores, size, lanes = chip.vector_cores(), job.stored.itemsize, job.lanes
    wide = 0 if job.stored == F32 else 4
    room = int(chip.core.ub.size * UB_SHARE)
    if lanes.outer == 1 and not lanes.is_rows:
        mine = -(-lanes.inner // cores)
        fits = padded(mine) * (4 * size + wide + 4) <= room
        if mine * size <= SHORT_STRIP or not fits:
            return None
        return {"lanes": mine, "m": 1, "blocks": -(-lanes.inner // mine)}
    blocks = min(cores, lanes.outer // MIN_OUTER)
    if not blocks:
        return None
    mine = -(-lanes.outer // blocks)
    if lanes.is_rows:
        per = padded(lanes.length) * (2 * size + wide) + 16
        room -= padded(lanes.length) // 8 + 256  # partial sums of a row
    else:
        per = lanes.length * padded(lanes.inner) * (2 * size + wide) + 8 * padded(lanes.inner)
    if per > room:
        return None
    m = min(-(-mine // MIN_TILES), room // per) if lanes.is_rows else 1
    return {"lanes": mine, "m": m, "blocks": -(-lanes.outer // mine)}


def _share(args: KernelArgs, tiling: Tiling, block: int) -> slice:
    """The lanes of a block, along outer, or along inner where outer is 1."""
    job = reduce_job(args)
    assert job is not None
    lanes = job.lanes
    total = lanes.inner if lanes.outer == 1 and not lanes.is_rows else lanes.outer
    return slice(*(total * (block + j) // tiling["blocks"] for j in (0, 1)))


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling) -> None:
        job = reduce_job(args)
        assert job is not None
        self.k, self.job, self.m, self.stage = k, job, tiling["m"], Stage(k)
        self.most = tiling["lanes"]
        self.out_index = len(args.inputs)
        self.repeat = k.chip.core.vector.repeat_bytes // 4
        if job.lanes.is_rows:
            self.sums = RowReducer(k, "add", 1, job.lanes.length, F32)

    def _gm(self) -> Region:
        return Region.dense(GM, 0, 0, self.job.lanes.shape, self.job.stored)

    def _load(self, gm: Region, line: int) -> Loading:
        """A tile (rows, n) in fp32, its rows `line` elements apart; freed if it was converted."""
        m, n = gm.shape
        x = yield from self.stage.load_inside(
            gm, self.m_room(m) * line, (m, line), lambda t: t[:, :n]
        )
        if x.dtype == F32:
            return x[:, :n]
        wide = self.stage.temp("wide", (m, line), F32, self.m_room(m) * line)
        yield self.k.vec("conv", wide, x)
        yield self.stage.free(0)
        return wide[:, :n]

    def m_room(self, rows: int) -> int:
        """Rows of the largest tile."""
        return max(rows, self.m)

    def _release(self) -> Iterator[Instr]:
        if self.job.stored == F32:
            yield self.stage.free(0)

    def _alone(self, steps: Iterator[Instr]) -> Iterator[Instr]:
        """Instructions that each wait for the one before."""
        while True:
            self.k.barrier()
            step = next(steps, None)
            if step is None:
                return
            yield step

    def _store(self, total: Region, gm: Region, room: int) -> Iterator[Instr]:
        k = self.k
        if self.job.recipe.after == "mean":
            yield k.vec("muls", total, total, scalar=1.0 / self.job.count)
        out = yield from self.stage.out(self.out_index, total.shape, self.job.stored, padded(room))
        yield k.vec("conv" if out.dtype != F32 else "copy", out, total)
        yield from self.stage.store(gm, out)

    def rows(self, share: slice) -> Iterator[Instr]:
        """Rows, a tile at a time, each summed by itself."""
        k, length = self.k, self.job.lanes.length
        gm = self._gm()
        out = Region.dense(GM, self.out_index, 0, (self.job.lanes.outer,), self.job.stored)
        for start in range(share.start, share.stop, self.m):
            end = min(share.stop, start + self.m)
            x = yield from self._load(gm[start:end], padded(length))
            total = self.stage.temp("total", (end - start,), F32, self.m)
            for r in k.loop(end - start):
                yield from self._alone(self._row(total[r : r + 1], x[r : r + 1]))
            yield from self._release()
            yield from self._store(total, out[start:end], self.m)

    def _row(self, total: Region, x: Region) -> Iterator[Instr]:
        if x.shape[1] <= self.repeat:
            yield from self.sums(total, x)
            return
        part = self.stage.temp("part", (1,), F32)
        yield from self.sums(part, x)
        yield self.k.vec("copy", total, part)

    def matrix(self, index: int) -> Iterator[Instr]:
        """One matrix (length, inner) folded in halves to its first row."""
        lanes = self.job.lanes
        x = yield from self._load(self._gm()[index], padded(lanes.inner))
        total = self.stage.temp("total", (lanes.inner,), F32)
        yield from self._alone(self._fold(total.expand(0), x))
        yield from self._release()
        shape = (lanes.outer, lanes.inner)
        gm = Region.dense(GM, self.out_index, 0, shape, self.job.stored)[index]
        yield from self._store(total, gm, lanes.inner)

    def _fold(self, total: Region, x: Region) -> Iterator[Instr]:
        """total (1, n) = Σ of x (rows, n), whose rows are lost."""
        rows = x.shape[0]
        if rows == 1:
            yield from self._by_repeats("copy", total, x)
        while rows > 1:
            half = -(-rows // 2)
            low = x[: rows - half]
            yield from self._by_repeats("add", total if rows == 2 else low, low, x[half:rows])
            rows = half

    def _by_repeats(self, op: str, dst: Region, *srcs: Region) -> Iterator[Instr]:
        """Whole repeats of the rows, then what is left of each."""
        whole = dst.shape[1] // self.repeat * self.repeat
        for cut in (slice(0, whole), slice(whole, dst.shape[1])):
            if cut.stop > cut.start:
                yield self.k.vec(op, dst[:, cut], *(s[:, cut] for s in srcs))

    def strip(self, share: slice) -> Iterator[Instr]:
        """A strip of the columns of one matrix, row by row."""
        k, width = self.k, share.stop - share.start
        total = self.stage.temp("total", (1, width), F32, padded(self.most))
        yield k.vec("dup", total, scalar=0.0)
        gm = self._gm()[0, :, share]
        for r in k.loop(self.job.lanes.length):
            x = yield from self._load(gm[r : r + 1], padded(self.most))
            yield k.vec("add", total, total, x)
            yield from self._release()
        out = Region.dense(GM, self.out_index, 0, (self.job.lanes.inner,), self.job.stored)
        yield from self._store(total[0], out[share], self.most)
