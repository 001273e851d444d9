"""Iou in the steps of its TIK source: one ground truth after the other against all boxes.

The scalar unit takes the boxes apart into four rows of coordinates, element by element; then some
26 short vector instructions a ground truth, and a store.
Where the vector unit has no division the quotient is a reciprocal with two Newton steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.elementwise import unsupported_type
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.queues import Alloc
from npusim.ops.cann_iou import sides
from npusim.program.effects import VectorOp
from npusim.program.isa import Instr, Kind, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import Region

GRAIN = 16  #: boxes that blocks are dealt in: 32 B of fp16
MOST = 2048  #: boxes and ground truths of a block
SCALE = 0.2  #: of sides, against overflow in fp16
# From the 310's times of nine pairs of box counts, which grow by 280 cycles a ground truth, and
# from vec_ratio, 200 cycles for its 26 instructions:
POINT = 95  #: cycles of the scalar unit for the four coordinates of a box: eight accesses to UB
READ = 7  #: … for one value of a ground truth
HEAD = 6  #: fixed cycles of an instruction; this kernel's wait for one another no longer


def has_division(chip: ChipSpec) -> bool:
    """The vector unit has a division: else its stand-in costs more in fp32 than in fp16."""
    costs = chip.core.vector.costs["div"]
    return (costs.b32 or 0.0) <= (costs.b16 or 0.0)


def _counts(args: KernelArgs) -> tuple[int, int]:
    """Boxes, ground truths."""
    return args.operands[0].shape[0], args.operands[1].shape[0]


def _padded(n: int) -> int:
    return -(-n // 128) * 128


@kernel("Iou")
class Iou(TileKernel):
    """Tiling: blocks over the boxes."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """fp16 or fp32 boxes in ND, as many as UB holds."""
        if args.op_type != "Iou" or args.epilogue:
            return f"operator {args.op_type}"
        x = args.operands[0]
        if any(o.layout is not Layout.ND or o.dtype is not x.dtype for o in args.operands):
            return "takes ND tensors of one type"
        if x.dtype not in (DType.FLOAT16, DType.FLOAT32) or max(_counts(args)) > MOST:
            return f"{max(_counts(args))} boxes in {x.dtype.value}: at most {MOST}"
        return unsupported_type(x.dtype, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """The source's only one."""
        boxes, truths = _counts(args)
        blocks = min(chip.vector_cores(), -(-boxes // GRAIN))
        width = _padded(-(-boxes // GRAIN // blocks) * GRAIN)
        size = (14 * width + 9 * _padded(truths)) * args.operands[0].dtype.size
        if size + 1024 <= chip.core.ub.size:
            yield {"blocks": blocks}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling: a ground truth's instructions."""
        return float(_counts(args)[1] * 400)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Boxes once, ground truths once a block."""
        traffic = {i: Traffic(o.nbytes, o.nbytes) for i, o in enumerate(args.operands)}
        truths = args.operands[1].nbytes
        traffic[1] = Traffic(truths, truths * tiling["blocks"])
        keys = [len(_share(args, tiling, b)) for b in range(tiling["blocks"])]
        return Plan(tiling, tiling["blocks"], traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """All ground truths against the block's boxes."""
        run = _Run(k, args, _share(args, tiling, block))
        yield from run.prepare()
        for i in k.loop(_counts(args)[1]):
            yield from run.truth(i)


def _share(args: KernelArgs, tiling: Tiling, block: int) -> range:
    boxes, n = _counts(args)[0], tiling["blocks"]
    grains = -(-boxes // GRAIN)
    return range(*(min(boxes, grains * (block + i) // n * GRAIN) for i in (0, 1)))


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, share: range) -> None:
        self.k, self.args, self.share = k, args, share
        self.dtype = args.operands[0].dtype.np
        self.n, self.m = len(share), _counts(args)[1]
        self.own, self.shared = sides(args.get("eps", 1.0))
        self.out = k.queue("UB", self.n * self.dtype.itemsize, 2, Pipe.V, Pipe.MTE3)
        self._temps: dict[str, Alloc] = {}

    def temp(self, name: str, n: int) -> Region:
        """A row of n values."""
        if name not in self._temps:
            self._temps[name] = self.k.alloc("UB", n * self.dtype.itemsize)
        return self._temps[name].region((n,), self.dtype)

    def prepare(self) -> Iterator[Instr]:
        """Coordinates and areas of ground truths and boxes."""
        for operand, rows, name in ((1, range(self.m), "t"), (0, self.share, "b")):
            n, k = len(rows), self.k
            queue = k.queue("UB", 4 * n * self.dtype.itemsize, 1, Pipe.MTE2, Pipe.V)
            place = (yield from queue.alloc()).region((n, 4), self.dtype)
            yield k.load(place, k.operand(operand)[rows.start : rows.stop])
            yield queue.enque()
            yield queue.deque()
            for c in range(4):
                row = self.temp(f"{name}{c}", n)
                yield self._by_scalar(row, place[:, c], n * POINT // 4)
            yield from self._area(self.temp(f"{name}area", n), name, n, self.own)
            yield queue.free()

    def _by_scalar(self, dst: Region, src: Region, issue: int) -> Instr:
        """The scalar unit copies values within UB."""
        effect = VectorOp(_same, dst, (src,)) if self.k.functional else None
        return Instr(Kind.LOCAL, Pipe.V, "scalar_copy", issue, 0, 0, effect)

    def vec(self, op: str, dst: Region, *srcs: Region, scalar: Any = None) -> Instr:
        """A vector instruction; its result is there when it ends."""
        instr = self.k.vec(op, dst, *srcs, scalar=scalar)
        instr.occupy += HEAD - self.k.chip.core.vector.head
        instr.tail, instr.serial = 0, False
        return instr

    def _area(self, dst: Region, name: str, n: int, add: np.float32) -> Iterator[Instr]:
        """dst = (x1 - x0 + add)·(y1 - y0 + add), sides scaled."""
        x0, y0, x1, y1 = (self.temp(f"{name}{c}", n) for c in range(4))
        other = self.temp("side" + name, n)
        yield self.vec("sub", dst, x1, x0)
        yield self.vec("sub", other, y1, y0)
        if add:
            yield self.vec("adds", dst, dst, scalar=float(add))
            yield self.vec("adds", other, other, scalar=float(add))
        yield self.vec("muls", dst, dst, scalar=SCALE)
        yield self.vec("muls", other, other, scalar=SCALE)
        if name == "i":  # boxes that do not meet
            yield self.vec("maxs", dst, dst, scalar=0.0)
            yield self.vec("maxs", other, other, scalar=0.0)
        yield self.vec("mul", dst, dst, other)

    def truth(self, index: int) -> Iterator[Instr]:
        """One ground truth against all boxes."""
        k, n = self.k, self.n
        lanes = 32 // self.dtype.itemsize
        for c in range(4):
            block = self.temp(f"truth{c}", lanes)
            value = self.temp(f"t{c}", self.m)[index : index + 1]
            yield Instr(Kind.LOCAL, Pipe.V, "read", READ, 0)
            yield self.vec("copy", block, value.broadcast((lanes,)))
        for c in range(4):
            low = c < 2
            block = self.temp(f"truth{c}", lanes)[:1]
            box = self.temp(f"b{c}", n)
            yield self.vec("max" if low else "min", self.temp(f"i{c}", n), box, block)
        inter, whole = self.temp("inter", n), self.temp("whole", n)
        yield from self._area(inter, "i", n, self.shared)
        yield Instr(Kind.LOCAL, Pipe.V, "read", READ, 0)
        area = self.temp("truth4", lanes)
        yield self.vec(
            "copy", area, self.temp("tarea", self.m)[index : index + 1].broadcast((lanes,))
        )
        if self.args.get("mode", "iou") == "iou":
            yield self.vec("add", whole, self.temp("barea", n), area[:1])
            yield self.vec("sub", whole, whole, inter)
        else:
            yield self.vec("copy", whole, area[:1].broadcast((n,)))
        out = (yield from self.out.alloc()).region((n,), self.dtype)
        yield from self._quotient(out, inter, whole)
        yield self.out.enque()
        yield self.out.deque()
        gm = k.output(0)[index, self.share.start : self.share.stop]
        yield k.store(gm, out)
        yield self.out.free()

    def _quotient(self, dst: Region, x: Region, y: Region) -> Iterator[Instr]:
        if has_division(self.k.chip):
            yield self.vec("div", dst, x, y)
            return
        guess, error = self.temp("guess", self.n), self.temp("error", self.n)
        yield self.vec("rec", guess, y)
        for _ in range(2):
            yield self.vec("mul", error, guess, y)
            yield self.vec("muls", error, error, scalar=-1.0)
            yield self.vec("adds", error, error, scalar=2.0)
            yield self.vec("mul", guess, guess, error)
        yield self.vec("mul", dst, guess, x)


def _same(x: np.ndarray) -> np.ndarray:
    return x
