"""SwiGlu and SwiGluGrad: the two halves of x are columns [0, L) and [L, 2L) of rows.

Tiles are pieces of rows or several rows, two slots a queue, fp32 throughout, the steps of CANN's
Ascend C kernels (swi_glu_grad_bf16.hpp; σ(a) = 1 / (1 + e^-a) with a dividing instruction).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.elementwise import unsupported_type
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.library_rows import UB_LEFT, Spread
from npusim.kernels.rows import F32, padded
from npusim.kernels.stage import Stage
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

#: Operator → operand index of x, fp32 tiles, tiles stored (two slots each) in and out.
_SHAPES = {"SwiGlu": (0, 4, 3), "SwiGluGrad": (1, 5, 5)}
_GRAIN = 16  #: elements of a 32 B block in 16 bits


@dataclass(frozen=True)
class Job:
    """(rows, 2, length): the halves of a row lie one after the other."""

    rows: int
    length: int

    def tiles(self, tiling: Tiling) -> tuple[int, int]:
        """Tiles along the rows and along a half."""
        return -(-self.rows // tiling["m"]), -(-self.length // tiling["w"])

    def share(self, tiling: Tiling, block: int) -> tuple[int, int]:
        """Tiles [t0, t1) of a block."""
        total = prod(self.tiles(tiling))
        t0, t1 = (total * (block + i) // tiling["blocks"] for i in (0, 1))
        return t0, t1

    def cut(self, tiling: Tiling, tile: int) -> tuple[slice, slice]:
        """Rows and columns of a tile."""
        t, c = divmod(tile, self.tiles(tiling)[1])
        m, w = tiling["m"], tiling["w"]
        return (
            slice(t * m, min(self.rows, t * m + m)),
            slice(c * w, min(self.length, c * w + w)),
        )


def _job(args: KernelArgs) -> Job:
    shape = args.operands[_SHAPES[args.op_type][0]].shape
    axis = int(args.get("dim", -1)) % len(shape)
    return Job(prod(shape[:axis]), prod(shape[axis:]) // 2)


def _footprint(args: KernelArgs, m: int, w: int) -> int:
    """UB bytes of a tile."""
    _, wide, stored = _SHAPES[args.op_type]
    size = m * padded(w, _GRAIN)
    return size * (4 * wide + 2 * stored * args.operands[0].dtype.size) + 512


@kernel("Gated")
class Gated(TileKernel):
    """a·σ(a)·b, and its gradients. Tiling: `m` rows × `w` columns of each half, blocks."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Floats of one type, ND."""
        if args.op_type not in _SHAPES or args.epilogue:
            return f"operator {args.op_type}"
        if any(o is None or o.layout is not Layout.ND or not o.nbytes for o in args.operands):
            return "takes ND tensors that are not empty"
        kind = args.operands[0].dtype
        if any(o.dtype is not kind for o in args.operands) or kind not in (
            DType.FLOAT16,
            DType.BFLOAT16,
            DType.FLOAT32,
        ):
            return "operands of one type: fp16, bf16 or fp32"
        halves = {"SwiGlu": (args.outputs[0],), "SwiGluGrad": (args.operands[0],)}[args.op_type]
        x = args.operands[_SHAPES[args.op_type][0]]
        if any(2 * h.nbytes != x.nbytes for h in halves):
            return f"halves of {x.shape}"
        return unsupported_type(kind, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """One: rows that fit, pieces of a row where none does."""
        job, room, cores = _job(args), chip.core.ub.size - UB_LEFT, chip.vector_cores()
        each = -(-job.rows // cores)
        if _footprint(args, 1, job.length) <= room:
            per = _footprint(args, 2, job.length) - _footprint(args, 1, job.length)
            most = 1 + (room - _footprint(args, 1, job.length)) // per
            tile = {"m": min(each, most), "w": job.length}
        else:
            per = _footprint(args, 1, 2 * _GRAIN) - _footprint(args, 1, _GRAIN)
            most = (room - _footprint(args, 1, _GRAIN)) // per * _GRAIN
            if most < _GRAIN:
                return
            pieces = -(-job.length // most)
            tile = {"m": 1, "w": padded(-(-job.length // pieces), _GRAIN)}
        total = prod(job.tiles(tile))
        yield {**tile, "blocks": min(cores, total)}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling: its tiles a block."""
        return prod(_job(args).tiles(tiling)) / tiling["blocks"]

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Every byte once."""
        job, n = _job(args), tiling["blocks"]
        traffic = {i: Traffic(o.nbytes, o.nbytes) for i, o in enumerate(args.operands)}
        keys = [_sizes(job, tiling, b) for b in range(n)]
        return Plan(tiling, n, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """Tile by tile."""
        run = _Run(k, args, tiling)
        t0, t1 = run.job.share(tiling, block)
        even = run.job.rows % tiling["m"] == 0 and run.job.length % tiling["w"] == 0
        for i in k.loop(t1 - t0) if even else range(t1 - t0):
            run.at(*run.job.cut(tiling, t0 + i))
            yield from run.gradients() if args.op_type == "SwiGluGrad" else run.product()


def _sizes(job: Job, tiling: Tiling, block: int) -> tuple[int, ...]:
    """Tiles of a block; where some are ragged, the elements of each."""
    t0, t1 = job.share(tiling, block)
    if job.rows % tiling["m"] == 0 and job.length % tiling["w"] == 0:
        return (t1 - t0,)
    cuts = [job.cut(tiling, t) for t in range(t0, t1)]
    return tuple((r.stop - r.start) * (c.stop - c.start) for r, c in cuts)


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling) -> None:
        self.k, self.args, self.job = k, args, _job(args)
        self.stage = Stage(k)
        self.room = tiling["m"] * padded(tiling["w"], _GRAIN)
        self.x = _SHAPES[args.op_type][0]

    def at(self, rows: slice, columns: slice) -> None:
        """Move to a tile."""
        self.rows, self.columns = rows, columns
        self.width = columns.stop - columns.start
        self.shape = (rows.stop - rows.start, padded(self.width, _GRAIN))

    def _gm(self, index: int, half: int | None) -> Region:
        """The tile in GM: of one half of a tensor of pairs, or of a tensor of halves."""
        dtype = self.args.operands[index].dtype.np
        shape: tuple[int, ...] = (self.job.rows, self.job.length)
        if half is None:
            return Region.dense(GM, index, 0, shape, dtype)[self.rows, self.columns]
        pairs = Region.dense(GM, index, 0, (shape[0], 2, shape[1]), dtype)
        return pairs[self.rows, half, self.columns]

    def _wide(self, name: str, index: int, half: int | None = None) -> Spread:
        """Load a tile, in fp32."""
        gm, key = self._gm(index, half), index + 100 * (half or 0)
        inside = self.width
        x = yield from self.stage.load_inside(
            gm, self.room, self.shape, lambda t: t[:, :inside], key
        )
        wide = self._temp(name)
        yield self.k.vec("conv" if x.dtype != F32 else "copy", wide, x)
        yield self.stage.free(key)
        return wide

    def _temp(self, name: str) -> Region:
        return self.stage.temp(name, self.shape, F32, self.room)

    def _store(self, index: int, half: int | None, value: Region) -> Iterator[Instr]:
        gm, key = self._gm(index, half), index + 100 * (half or 0)
        dtype: np.dtype = gm.dtype
        out = yield from self.stage.out(key, self.shape, dtype, self.room)
        yield self.k.vec("conv" if dtype != F32 else "copy", out, value)
        yield from self.stage.store(gm, out[:, : self.width], key=key)

    def _sigmoid(self, a: Region) -> Spread:
        """1 / (1 + e^-a)."""
        k, s, one = self.k, self._temp("sigmoid"), self._temp("work")
        yield k.vec("muls", s, a, scalar=-1.0)
        yield k.vec("exp", s, s)
        yield k.vec("adds", s, s, scalar=1.0)
        yield k.vec("dup", one, scalar=1.0)
        yield k.vec("div", s, one, s)
        return s

    def product(self) -> Iterator[Instr]:
        """a·σ(a)·b."""
        k = self.k
        a = yield from self._wide("a", self.x, 0)
        s = yield from self._sigmoid(a)
        yield k.vec("mul", s, s, a)
        b = yield from self._wide("a", self.x, 1)
        yield k.vec("mul", s, s, b)
        yield from self._store(1, None, s)

    def gradients(self) -> Iterator[Instr]:
        """db = dy·a·σ, then da = dy·b·(σ + a·σ·(1 - σ))."""
        k = self.k
        a = yield from self._wide("a", self.x, 0)
        s = yield from self._sigmoid(a)
        result = self._temp("result")
        yield k.vec("mul", result, s, a)
        dy = yield from self._wide("dy", 0)
        yield k.vec("mul", result, result, dy)
        yield from self._store(2, 1, result)
        work = self._temp("work")
        yield k.vec("muls", work, s, scalar=-1.0)
        yield k.vec("adds", work, work, scalar=1.0)
        yield k.vec("mul", result, s, work)
        yield k.vec("mul", result, result, a)
        yield k.vec("muls", result, result, scalar=1.0)
        yield k.vec("add", result, result, s)
        b = yield from self._wide("a", self.x, 1)
        yield k.vec("mul", result, result, dy)
        yield k.vec("mul", result, result, b)
        yield from self._store(2, 0, result)
