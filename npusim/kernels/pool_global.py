"""Global pools of NC1HWC0: each (n, c1) slice of H·W positions folds to one by halving."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.kernels.bands import UB_SHARE
from npusim.kernels.grid import deal
from npusim.kernels.lang import Kernel
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks
from npusim.program.region import GM, Region

_F32 = np.dtype(np.float32)


@dataclass(frozen=True)
class _Shape:
    """A global pool: slices, positions of each, types."""

    slices: int
    positions: int
    dtype: np.dtype
    mean: bool

    @staticmethod
    def of(args: KernelArgs) -> _Shape:
        """From the launch's arguments."""
        spec = args.operands[0]
        n, c1, h, w, _ = spec.storage_shape
        return _Shape(n * c1, h * w, spec.dtype.np, args.op_type == "GlobalAveragePool")

    @property
    def wide(self) -> bool:
        """True when tiles are converted to fp32."""
        return self.dtype.itemsize == 2 and (self.mean or self.dtype != np.float16)

    def slice_bytes(self, positions: int) -> int:
        """UB per slice of a tile: input twice, fp32 copy, running fold, output twice."""
        size = self.dtype.itemsize
        return 16 * (positions * (2 * size + 4 * self.wide) + 4 + 2 * size)


def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
    """Several slices a tile where they fit, else a slice in several pieces."""
    s = _Shape.of(args)
    budget = int(chip.core.ub.size * UB_SHARE)
    blocks = min(s.slices, chip.vector_cores())
    mine = -(-s.slices // blocks)
    fit = budget // s.slice_bytes(s.positions)
    if fit:
        for pieces in (1, 2, 4):
            if pieces == 1 or mine >= pieces:
                yield {"slices": min(fit, -(-mine // pieces)), "positions": s.positions}
        return
    most = (budget - s.slice_bytes(0)) // (s.slice_bytes(1) - s.slice_bytes(0))
    if most > 0:
        pieces = -(-s.positions // most)
        yield {"slices": 1, "positions": -(-s.positions // pieces)}


def estimate(args: KernelArgs, chip: ChipSpec, t: Tiling) -> float:
    """Cycles of the busiest block."""
    s = _Shape.of(args)
    blocks = min(s.slices, chip.vector_cores())
    mine = -(-s.slices // blocks)
    size = s.dtype.itemsize
    elements = t["slices"] * t["positions"] * 16
    tiles = -(-mine // t["slices"]) * -(-s.positions // t["positions"])
    load = chip.core.mte2.head + elements * size / min(
        chip.core.mte2.ub_rate, chip.l2_rate / blocks
    )
    binary = chip.core.vector.costs["binary"].b32 or 0.0
    passes = 2 if s.wide else 1
    vector = passes * elements / 64 * binary + 25 * (t["positions"].bit_length() + 2)
    return tiles * max(load, vector) + load + vector


def plan(args: KernelArgs, chip: ChipSpec, t: Tiling) -> Plan:
    """Slices dealt to blocks."""
    s = _Shape.of(args)
    blocks = min(s.slices, chip.vector_cores())
    keys = [deal([s.slices], blocks, b)[0].count for b in range(blocks)]
    sizes = {0: args.operands[0].nbytes, len(args.inputs): args.outputs[0].nbytes}
    return Plan(t, blocks, {o: Traffic(n, n) for o, n in sizes.items()}, group_blocks(keys))


def body(k: Kernel, args: KernelArgs, t: Tiling, block: int) -> Iterator[Instr]:
    """The block's slices."""
    s = _Shape.of(args)
    blocks = min(s.slices, k.chip.vector_cores())
    share = deal([s.slices], blocks, block)[0]
    fold = _Fold(k, s, t, len(args.inputs))
    whole, rest = divmod(share.count, t["slices"])
    for i in k.loop(whole):
        yield from fold.run(share.start + i * t["slices"], t["slices"])
    if rest:
        yield from fold.run(share.start + whole * t["slices"], rest)


class _Fold:
    """Queues and scratch of a global pool."""

    def __init__(self, k: Kernel, s: _Shape, t: Tiling, output: int) -> None:
        self._k, self._s, self._step = k, s, t["positions"]
        size, n = s.dtype.itemsize, t["slices"]
        self._x = Region.dense(GM, 0, 0, (s.slices, s.positions, 16), s.dtype)
        self._y = Region.dense(GM, output, 0, (s.slices, 16), s.dtype)
        self._in = k.queue("UB", n * t["positions"] * 16 * size, 2, Pipe.MTE2, Pipe.V)
        self._out = k.queue("UB", n * 16 * size, 2, Pipe.V, Pipe.MTE3)
        self._wide = k.alloc("UB", n * t["positions"] * 64) if s.wide else None
        self._total = k.alloc("UB", n * 64)

    def run(self, first: int, n: int) -> Iterator[Instr]:
        """Fold `n` slices from `first`."""
        k, s = self._k, self._s
        kind = _F32 if s.wide else s.dtype
        total = self._total.region((n, 16), kind)
        op = "add" if s.mean else "max"
        for at in range(0, s.positions, self._step):
            m = min(self._step, s.positions - at)
            slot = yield from self._in.alloc()
            x = slot.region((n, m, 16), s.dtype)
            yield k.load(x, self._x[first : first + n, at : at + m])
            yield self._in.enque()
            yield self._in.deque()
            if self._wide is not None:
                wide = self._wide.region((n, m, 16), _F32)
                yield k.vec("conv", wide, x)
                x = wide
            yield from self._halve(op, x)
            if at:
                yield k.vec(op, total, total, x[:, 0])
            else:
                yield k.vec("copy", total, x[:, 0])
            yield self._in.free()
        if s.mean:
            yield k.vec("muls", total, total, scalar=1.0 / s.positions)
        room = yield from self._out.alloc()
        y = room.region((n, 16), s.dtype)
        yield k.vec("conv" if s.wide else "copy", y, total)
        yield self._out.enque()
        yield self._out.deque()
        yield k.store(self._y[first : first + n], y)
        yield self._out.free()

    def _halve(self, op: str, x: Region) -> Iterator[Instr]:
        """Fold x (n, m, 16) into x[:, 0], the upper half onto the lower one each time."""
        m = x.shape[1]
        while m > 1:
            low = (m + 1) // 2
            yield self._k.vec(op, x[:, : m - low], x[:, : m - low], x[:, low:m])
            m = low
