"""RotaryPositionEmbedding and its gradient, mode "half", as CANN's Ascend C kernels compute them.

x is seen as (outer, positions, inner, D), cos and sin as (positions, D): a tile of positions loads
cos and sin once and then every head's rows, D elements a burst. One slot a queue, so a head's
transfers overlap little with its arithmetic (rotate_half_grad.h: BUFFER_NUM 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.elementwise import unsupported_type
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.library_rows import UB_LEFT, RowJob, Spread
from npusim.kernels.rows import F32
from npusim.kernels.stage import Stage
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region


@dataclass(frozen=True)
class Job:
    """(outer, positions, inner, D)."""

    outer: int
    positions: int
    inner: int
    width: int

    @property
    def rows(self) -> RowJob:
        """Positions as rows, to be dealt to blocks."""
        return RowJob(self.positions, self.width)


def _job(args: KernelArgs) -> Job | None:
    """None where the axes that share cos lie on both sides of several that do not."""
    x, cos = args.operands[0].shape, args.operands[1].shape
    if len(x) != len(cos) or x[-1] != cos[-1]:
        return None
    sizes, at = [1, 1, 1], 0
    for n, m in zip(x[:-1], cos[:-1], strict=True):
        if n == 1:
            continue
        if m not in (1, n):
            return None
        if m == n:  # along the positions
            if at == 2:
                return None
            at = 1
        elif at == 1:
            at = 2
        sizes[at] *= n
    return Job(sizes[0], sizes[1], sizes[2], x[-1])


def _footprint(args: KernelArgs, m: int) -> int:
    """UB bytes: one slot of x, cos, sin and the result, seven fp32 tiles."""
    size = m * args.operands[0].shape[-1]
    return size * (4 * args.operands[0].dtype.size + 28) + 512


@kernel("Rotary")
class Rotary(TileKernel):
    """x (dy), cos, sin → the rotated x (dx). Tiling: blocks, `m` positions a tile."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Floats of one type, ND, halves of whole 32 B blocks."""
        if args.op_type not in ("RotaryPositionEmbedding", "RotaryPositionEmbeddingGrad"):
            return f"operator {args.op_type}"
        if len(args.inputs) != 3 or len(args.outputs) != 1 or args.epilogue:
            return f"{len(args.inputs)} inputs and {len(args.outputs)} outputs"
        if any(o is None or o.layout is not Layout.ND or not o.nbytes for o in args.operands):
            return "takes ND tensors that are not empty"
        kind = args.operands[0].dtype
        kinds = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
        if any(o.dtype is not kind for o in args.operands) or kind not in kinds:
            return "operands of one type: fp16, bf16 or fp32"
        job = _job(args)
        if job is None or args.operands[1].shape != args.operands[2].shape:
            return f"cos of {args.operands[1].shape} for {args.operands[0].shape}"
        if job.width % 32:
            return f"rows of {job.width} elements, halves of no whole 32 B blocks"
        return unsupported_type(kind, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """One: as many positions as fit."""
        job, room = _job(args), chip.core.ub.size - UB_LEFT
        if job is None or _footprint(args, 1) > room:
            return
        blocks = job.rows.blocks(chip.vector_cores())
        per = _footprint(args, 2) - _footprint(args, 1)
        most = 1 + (room - _footprint(args, 1)) // per
        yield {"m": min(-(-job.positions // blocks), most), "blocks": blocks}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling: its tiles."""
        job = _job(args)
        return float(job.rows.tiles(tiling, 0)) if job else 0.0

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Every byte once."""
        job, n = _job(args), tiling["blocks"]
        assert job is not None
        traffic = {i: Traffic(o.nbytes, o.nbytes) for i, o in enumerate(args.operands)}
        shares = [job.rows.share(n, b) for b in range(n)]
        return Plan(tiling, n, traffic, group_blocks([p1 - p0 for p0, p1 in shares]))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """Tiles of positions, and in each of them every head."""
        job = _job(args)
        assert job is not None
        run = _Run(k, args, job, tiling["m"])
        p0, p1 = job.rows.share(tiling["blocks"], block)
        for t in k.loop(job.rows.tiles(tiling, block)):
            start = p0 + t * tiling["m"]
            run.at(start, min(p1, start + tiling["m"]))
            yield from run.tables()
            for h in k.loop(job.outer * job.inner):
                yield from run.head(*divmod(h, job.inner))
            yield from run.leave()


class _Run:
    """One block at work: positions [p0, p1)."""

    def __init__(self, k: Kernel, args: KernelArgs, job: Job, m: int) -> None:
        self.k, self.args, self.job = k, args, job
        self.stage, self.room = Stage(k, slots=1), m * job.width
        self.dtype = args.operands[0].dtype.np
        self.back = args.op_type.endswith("Grad")

    def at(self, p0: int, p1: int) -> None:
        """Move to a tile."""
        self.p0, self.p1 = p0, p1
        self.shape = (p1 - p0, self.job.width)

    def _temp(self, name: str) -> Region:
        return self.stage.temp(name, self.shape, F32, self.room)

    def _table(self, index: int, name: str) -> Spread:
        """cos or sin in fp32; fp32 as loaded."""
        shape = (self.job.positions, self.job.width)
        gm = Region.dense(GM, index, 0, shape, self.dtype)[self.p0 : self.p1]
        x = yield from self.stage.load(gm, self.room)
        if self.dtype == F32:
            return x
        wide = self._temp(name)
        yield self.k.vec("conv", wide, x)
        return wide

    def tables(self) -> Iterator[Instr]:
        """cos and sin of the tile's positions."""
        self.cos = yield from self._table(1, "cos")
        self.sin = yield from self._table(2, "sin")

    def leave(self) -> Iterator[Instr]:
        """The tables have been read."""
        yield self.stage.free(1)
        yield self.stage.free(2)

    def _gm(self, index: int, outer: int, inner: int) -> Region:
        job = self.job
        shape = (job.outer, job.positions, job.inner, job.width)
        whole = Region.dense(GM, index, 0, shape, self.dtype)
        return whole[outer, self.p0 : self.p1, inner]

    def head(self, outer: int, inner: int) -> Iterator[Instr]:
        """The rows of one head."""
        k, stage = self.k, self.stage
        raw = yield from stage.load(self._gm(0, outer, inner), self.room)
        x = raw
        if self.dtype != F32:
            x = self._temp("x")
            yield k.vec("conv", x, raw)
            yield stage.free(0)
        total = self._temp("total")
        yield k.vec("mul", total, self.cos, x)
        turned = yield from self._turned_back(x) if self.back else self._turned(x)
        if self.dtype == F32:
            yield stage.free(0)
        yield k.vec("add", total, turned, total)
        out = yield from stage.out(3, self.shape, self.dtype, self.room)
        yield k.vec("conv" if self.dtype != F32 else "copy", out, total)
        yield from stage.store(self._gm(3, outer, inner), out)

    def _turned_back(self, x: Region) -> Spread:
        """(b, -a) of (a, b) = x·sin: scaled, negated, put together by two copies."""
        k, half = self.k, self.job.width // 2
        scaled, negative, turned = (self._temp(n) for n in ("scaled", "negative", "turned"))
        yield k.vec("mul", scaled, self.sin, x)
        yield k.vec("muls", negative, scaled, scalar=-1.0)
        yield k.vec("copy", turned[:, :half], scaled[:, half:])
        yield k.vec("copy", turned[:, half:], negative[:, :half])
        return turned

    def _turned(self, x: Region) -> Spread:
        """(-b, a)·sin of x = (a, b)."""
        k, half = self.k, self.job.width // 2
        negative, turned = self._temp("negative"), self._temp("turned")
        yield k.vec("muls", negative, x, scalar=-1.0)
        yield k.vec("copy", turned[:, :half], negative[:, half:])
        yield k.vec("copy", turned[:, half:], x[:, :half])
        yield k.vec("mul", turned, turned, self.sin)
        return turned
