"""BinaryCrossEntropy in the passes of its TBE source, flat.

Where the vector unit has no fp32 logarithm (the 310) the source takes it by a Taylor series
instead: two range reductions towards 1, nine terms, the same for 1/x, and a select for every
range: some 90 passes and 14 selects a logarithm. Two of them are nearly all of the time there.

A reduction adds the losses up in one block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.elementwise import unsupported_type
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.passes import F32, Passes, partials
from npusim.kernels.rows import largest
from npusim.kernels.stage import Stage
from npusim.ops.cann_binary_cross_entropy import EPSILON
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

UB_SHARE = 0.95  #: of UB that tiles take
TEMPORARIES = 9  #: fp32 tiles
GRAIN = 64  #: elements that blocks are dealt in
MIN_BLOCK_BYTES = 1024  #: of an operand per block
#: Cycles of a compare and select of 64 lanes in an elementwise schedule, and in one that ends in a
#: reduction: what is left of vec_ratio on the 310 after the other passes, over 28 of them.
SELECT, SELECT_REDUCED = 8.0, 15.0
SERIES = (1 / 9, -1 / 8, 1 / 7, -1 / 6, 1 / 5, -1 / 4, 1 / 3, -1 / 2, 1.0)  #: of ln(1 + x)
THIRD = 1 / 3


def _reduces(args: KernelArgs) -> bool:
    return bool(args.get("reduction", "mean") != "none")


def _size(args: KernelArgs) -> int:
    return args.operands[0].nbytes // args.operands[0].dtype.size


def has_logarithm(chip: ChipSpec) -> bool:
    """The vector unit has a logarithm in fp32: else its stand-in costs more than fp16's."""
    costs = chip.core.vector.costs["ln"]
    return (costs.b32 or 0.0) <= (costs.b16 or 0.0)


def _footprint(args: KernelArgs, piece: int) -> int:
    width = args.operands[0].dtype.size
    tiles = 2 * len(args.inputs) * width + (0 if _reduces(args) else 2 * width)
    wide = 0 if width == 4 else 4 * len(args.inputs)
    return piece * (tiles + wide + 4 * TEMPORARIES) + partials(piece) + 256


@kernel("BinaryCrossEntropy")
class BinaryCrossEntropy(TileKernel):
    """Tiling: blocks over the flat tensor; tiles of `piece` elements."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """fp16 or fp32 in ND, all of one type."""
        if args.op_type != "BinaryCrossEntropy" or args.epilogue or len(args.outputs) != 1:
            return f"operator {args.op_type}"
        x = args.operands[0]
        if any(o is None or o.layout is not Layout.ND for o in args.operands) or not x.nbytes:
            return "takes ND tensors with elements"
        if any(o.dtype is not x.dtype for o in args.operands):
            return "operands of several types"
        if x.dtype not in (DType.FLOAT16, DType.FLOAT32):
            return x.dtype.value
        return unsupported_type(x.dtype, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """One: the largest tiles."""
        room, size = int(chip.core.ub.size * UB_SHARE), _size(args)
        if _footprint(args, min(size, GRAIN)) > room:
            return
        want = max(1, min(chip.vector_cores(), args.operands[0].nbytes // MIN_BLOCK_BYTES))
        blocks = 1 if _reduces(args) else min(want, -(-size // GRAIN))
        share = -(-size // GRAIN // blocks) * GRAIN
        piece = largest(min(size, share), GRAIN, lambda n: _footprint(args, n) <= room)
        yield {"blocks": blocks, "piece": piece}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling: its passes."""
        passes = 12 if has_logarithm(chip) else 320
        return _size(args) / tiling["blocks"] / 64 * passes * 2.0

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Everything once."""
        traffic = {i: Traffic(o.nbytes, o.nbytes) for i, o in enumerate(args.operands)}
        keys = [len(_share(args, tiling, b)) for b in range(tiling["blocks"])]
        return Plan(tiling, tiling["blocks"], traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """Tile by tile."""
        run, share = _Run(k, args, tiling), _share(args, tiling, block)
        yield from run.begin()
        for i in k.loop(-(-len(share) // tiling["piece"])):
            start = share.start + i * tiling["piece"]
            yield from run.tile(start, min(tiling["piece"], share.stop - start))
        yield from run.finish()


def _share(args: KernelArgs, tiling: Tiling, block: int) -> range:
    size = _size(args)
    grains, n = -(-size // GRAIN), tiling["blocks"]
    return range(*(min(size, grains * (block + i) // n * GRAIN) for i in (0, 1)))


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling) -> None:
        self.k, self.args, self.piece = k, args, tiling["piece"]
        self.stored, self.reduces = args.operands[0].dtype.np, _reduces(args)
        self.stage, self.passes = Stage(k), Passes(k)
        self.native = has_logarithm(k.chip)
        self.cost = SELECT_REDUCED if self.reduces else SELECT
        self.partial = k.alloc("UB", partials(self.piece))
        self.total, self.more = (k.alloc("UB", 32).region((1,), F32) for _ in range(2))
        self.n = 0

    def temp(self, name: str) -> Region:
        """An fp32 tile."""
        return self.stage.temp(name, (self.n,), F32, self.piece)

    def begin(self) -> Iterator[Instr]:
        """An empty sum."""
        if self.reduces:
            yield from self.passes("dup", self.total, scalar=0.0)

    def _load(self, index: int, start: int) -> Iterator[Instr]:
        """A tile of an operand, in fp32 → self.x."""
        gm = Region.dense(GM, index, start * self.stored.itemsize, (self.n,), self.stored)
        x = yield from self.stage.load(gm, self.piece)
        if self.stored != F32:
            wide = self.temp(f"wide{index}")
            yield from self.passes("conv", wide, x)
            x = wide
        self.x = x

    def tile(self, start: int, n: int) -> Iterator[Instr]:
        """y·ln x + (1-y)·ln(1-x), times -1 and the weight."""
        p, self.n = self.passes, n
        loss, other = self.temp("loss"), self.temp("p")
        yield from self._load(0, start)
        x = self.x
        yield from p("maxs", other, x, scalar=EPSILON)
        yield from self.stage_free(0)
        yield from self._log(loss, other)
        yield from self._load(1, start)
        y = self.x
        yield from p("mul", loss, loss, y)
        yield from p("muls", other, other, scalar=-1.0)
        yield from p("adds", other, other, scalar=1.0)
        yield from p("maxs", other, other, scalar=EPSILON)
        log = self.temp("log")
        yield from self._log(log, other)
        yield from p("muls", other, y, scalar=-1.0)
        yield from self.stage_free(1)
        yield from p("adds", other, other, scalar=1.0)
        yield from p("mul", log, log, other)
        yield from p("add", loss, loss, log)
        yield from p("muls", loss, loss, scalar=-1.0)
        if len(self.args.inputs) > 2:
            yield from self._load(2, start)
            yield from p("mul", loss, loss, self.x)
            yield from self.stage_free(2)
        if not self.reduces:
            yield from self._store(start, loss)
            return
        if self.args.get("reduction", "mean") == "mean":
            yield from p("muls", loss, loss, scalar=1.0 / _size(self.args))
        yield from p.sum(self.more, loss, self.partial)
        yield from p("add", self.total, self.total, self.more)

    def stage_free(self, index: int) -> Iterator[Instr]:
        """V has read the operand's tile."""
        yield self.stage.free(index)

    def finish(self) -> Iterator[Instr]:
        """The sum, if there is one."""
        if self.reduces:
            self.n = 1
            yield from self._store(0, self.total)

    def _store(self, start: int, value: Region) -> Iterator[Instr]:
        operand, n = len(self.args.inputs), value.shape[0]
        room = 1 if self.reduces else self.piece
        out = yield from self.stage.out(operand, (n,), self.stored, room)
        yield from self.passes("copy" if self.stored == F32 else "conv", out, value)
        gm = Region.dense(GM, operand, start * self.stored.itemsize, (n,), self.stored)
        yield from self.stage.store(gm, out)

    # -- the logarithm ------------------------------------------------------------------------

    def _log(self, dst: Region, x: Region) -> Iterator[Instr]:
        """dst = ln x."""
        p = self.passes
        if self.native:
            yield from p("ln", dst, x)
            return
        data, limit, series = self.temp("data"), self.temp("limit"), self.temp("series")
        yield from self._log_above_one(dst, x)
        yield from p("dup", limit, scalar=1.0)
        yield from p("adds", data, x, scalar=-1.0)
        yield from self._series(series, data)
        yield from self._select("le", dst, x, limit, series, dst)
        yield from p("dup", limit, scalar=0.5)
        inverse, above = self.temp("inverse"), self.temp("above")
        yield from p("rec", inverse, x)
        yield from self._log_above_one(above, inverse)
        yield from p("muls", above, above, scalar=-1.0)
        # The source fills the threshold before; the tile has been used since.
        yield from p("dup", limit, scalar=0.5)
        yield from self._select("le", dst, x, limit, above, dst)

    def _log_above_one(self, dst: Region, x: Region) -> Iterator[Instr]:
        """dst = ln x for x ≥ 1: the series up to 2, the unit's fp16 logarithm beyond."""
        p = self.passes
        data, limit, series = self.temp("data"), self.temp("limit"), self.temp("series")
        near = self.temp("near")
        yield from p("adds", data, x, scalar=-1.0)
        yield from p("dup", limit, scalar=2 * THIRD)
        yield from p("adds", dst, data, scalar=-2 * THIRD)
        yield from p("muls", dst, dst, scalar=0.6)
        yield from self._select("ge", near, data, limit, dst, data)
        yield from p("dup", limit, scalar=THIRD)
        yield from p("adds", dst, near, scalar=-THIRD)
        yield from p("muls", dst, dst, scalar=0.75)
        yield from self._select("ge", dst, near, limit, dst, near)
        yield from self._series(series, dst)
        yield from p("adds", dst, series, scalar=float(np.log(4 / 3)))
        yield from self._select("ge", dst, near, limit, dst, series)
        yield from p("adds", series, series, scalar=float(np.log(5 / 3)))
        yield from p("dup", limit, scalar=2 * THIRD)
        yield from self._select("ge", dst, data, limit, series, dst)
        yield from p("dup", limit, scalar=2.0)
        yield from p("ln", series, x)
        yield from self._select("ge", dst, x, limit, series, dst)
        yield from p("dup", limit, scalar=32768.0)
        yield from p("muls", series, x, scalar=0.4)
        yield from p("ln", series, series)
        yield from p("adds", series, series, scalar=float(np.log(2.5)))
        yield from self._select("ge", dst, x, limit, series, dst)

    def _series(self, dst: Region, x: Region) -> Iterator[Instr]:
        """dst = ln(1 + x) by nine terms (Horner)."""
        p = self.passes
        yield from p("muls", dst, x, scalar=SERIES[0])
        for term in SERIES[1:]:
            yield from p("adds", dst, dst, scalar=term)
            yield from p("mul", dst, dst, x)

    def _select(
        self, condition: str, dst: Region, x: Region, y: Region, then: Region, other: Region
    ) -> Iterator[Instr]:
        """dst = then where x compares so with y, else other."""
        compare: Any = np.greater_equal if condition == "ge" else np.less_equal
        yield from self.passes.select(
            lambda a, b, c, d: np.where(compare(a, b), c, d),
            (condition, self.cost), dst, x, y, then, other, cost=self.cost,
        )  # fmt: skip
