"""Constants of one-byte types, as the vector unit without them makes them.

Cores that add nothing of one byte fill a tile in fp16 once, cast it for every store and store it
from the same buffer, one after the other (310: vector and MTE3 ratios of 0.21 and 0.78 add up to
one); where single bytes can be filled, one tile is stored again and again.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import Layout
from npusim.kernels.lang import ALIGN, Kernel, Queue, TileKernel
from npusim.kernels.stage import Loading
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

UB_SHARE = 0.3  #: of UB for the tile; its fp16 source takes twice that


def _size(args: KernelArgs) -> int:
    return prod(args.operands[0].shape)


def _share(args: KernelArgs, tiling: Tiling, block: int) -> tuple[int, int]:
    """Bytes [b0, b1) of a block, whole 32 B blocks but for the last."""
    units = -(-_size(args) // ALIGN)
    b0, b1 = (units * (block + j) // tiling["blocks"] * ALIGN for j in (0, 1))
    return b0, min(b1, _size(args))


@kernel("FillBytes")
class FillBytes(TileKernel):
    """An output of int8, uint8 or bool, every element the attribute `value` (0)."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """It takes one plain output of one-byte elements."""
        if args.op_type != "MemSet" or args.inputs:
            return f"operator {args.op_type} with {len(args.inputs)} inputs"
        spec = args.operands[0]
        if spec.dtype.size != 1:
            return f"elements of type {spec.dtype.value}"
        if spec.layout is not Layout.ND:
            return "a blocked layout"
        return "" if spec.nbytes else "an empty tensor"

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """One: as large a tile as there is room for."""
        blocks = max(1, min(chip.vector_cores(), _size(args) // ALIGN))
        room = int(chip.core.ub.size * UB_SHARE) // 256 * 256
        if room:
            yield {"tile": min(room, -(-_size(args) // blocks)), "blocks": blocks}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling: bytes a block."""
        return _size(args) / tiling["blocks"]

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Every byte once."""
        n = tiling["blocks"]
        shares = [_share(args, tiling, b) for b in range(n)]
        classes = group_blocks([b1 - b0 for b0, b1 in shares])
        return Plan(tiling, n, {0: Traffic(_size(args), _size(args))}, classes)

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """Fill in fp16, then cast and store tile by tile."""
        tile = tiling["tile"]
        wide = k.alloc("UB", 2 * tile).region((tile,), np.float16)
        yield k.vec("dup", wide, scalar=np.float16(args.get("value") or 0))
        queue = k.queue("UB", tile, 1, Pipe.V, Pipe.MTE3)
        out = Region.dense(GM, 0, 0, (_size(args),), args.operands[0].dtype.np)
        b0, b1 = _share(args, tiling, block)
        tiles = -(-(b1 - b0) // tile)
        if k.chip.cores.split:
            room = yield from _cast(k, queue, wide, out.dtype)
            for i in k.loop(tiles):
                first, last = b0 + i * tile, min(b1, b0 + (i + 1) * tile)
                yield k.store(out[first:last], room[: last - first])
            return
        for i in k.loop(tiles):
            first, last = b0 + i * tile, min(b1, b0 + (i + 1) * tile)
            room = yield from _cast(k, queue, wide, out.dtype)
            yield k.store(out[first:last], room[: last - first])
            yield queue.free()


def _cast(k: Kernel, queue: Queue, wide: Region, dtype: np.dtype) -> Loading:
    """The next slot, filled from fp16 and handed to MTE3."""
    place = yield from queue.alloc()
    room = place.region(wide.shape, dtype)
    yield k.vec("conv", room, wide)
    yield queue.enque()
    yield queue.deque()
    return room
