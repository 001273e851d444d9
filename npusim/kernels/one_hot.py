"""OneHot: tiles of rows are filled with the off value, then the scalar unit sets one element each.

The on and off values are attributes, or scalars in GM that every block loads first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from math import prod
from typing import Any

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.lang import ALIGN, Kernel, TileKernel
from npusim.kernels.ub_pass import SCALAR_COPY
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

UB_SHARE = 0.45  #: of UB, for one of two slots of rows


def _sizes(args: KernelArgs) -> tuple[int, int]:
    """(rows, elements of a row)."""
    rows = prod(args.operands[0].shape)
    return rows, prod(args.operands[len(args.inputs)].shape) // max(1, rows)


def _share(rows: int, blocks: int, block: int) -> tuple[int, int]:
    r0, r1 = (rows * (block + j) // blocks for j in (0, 1))
    return r0, r1


def _hot(depth: int, columns: range, indices: Any, on: Any, off: Any) -> np.ndarray:
    """Rows of `depth` elements, those in `columns`; negative indices count from the end."""
    places = np.where(indices < 0, indices + depth, indices)
    return np.where(places[:, None] == np.asarray(columns), on, off)


@kernel("OneHot")
class OneHot(TileKernel):
    """Indices (int32 or int64)[, on, off] → (indices…, depth).

    Attributes `on` (1) and `off` (0), or ONNX's `values` [off, on], where they are no inputs.
    """

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Plain layouts, the new axis last, an output as wide as the vector unit's elements."""
        given = [o for o in args.operands if o is not None]
        if args.op_type != "OneHot" or args.epilogue or len(given) not in (2, 4):
            return f"no program for {args.op_type} of {len(given) - 1} inputs"
        indices, *values, out = given
        if any(v.dtype is not out.dtype or prod(v.shape) != 1 for v in values):
            return "on and off values that are no scalars of the output's type"
        if any(o.layout is not Layout.ND for o in given):
            return "a blocked layout"
        if indices.dtype not in (DType.INT32, DType.INT64):
            return f"indices of type {indices.dtype.value}"
        if out.shape[:-1] != indices.shape:
            return "an axis that is not the last"
        if out.dtype not in (DType.FLOAT16, DType.FLOAT32, DType.INT32):
            return f"an output of type {out.dtype.value}"
        return "" if out.nbytes else "an empty tensor"

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """One: rows a tile, or parts of a long row."""
        rows, depth = _sizes(args)
        size = args.operands[-1].dtype.size
        # Beside the rows: the values, a position, what rounding to 32 B blocks takes.
        half = chip.core.ub.size // 2 - 3 * ALIGN
        room = min(int(chip.core.ub.size * UB_SHARE), half) // ALIGN * ALIGN
        if room < ALIGN:
            return
        blocks = min(rows, chip.vector_cores())
        part = min(depth, room // size)
        most = room // (part * size + args.operands[0].dtype.size)
        yield {"rows": max(1, min(-(-rows // blocks), most)), "part": part, "blocks": blocks}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling: rows of the busiest block."""
        return float(-(-_sizes(args)[0] // tiling["blocks"]))

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Rows dealt to blocks; indices once."""
        rows, _ = _sizes(args)
        n = tiling["blocks"]
        present = {i: o for i, o in enumerate(args.operands) if o is not None}
        traffic = {i: Traffic(o.nbytes, o.nbytes) for i, o in present.items()}
        for i in [i for i in present if 0 < i < len(args.inputs)]:
            traffic[i] = Traffic(args.operands[i].nbytes, n * args.operands[i].nbytes)
        shares = [_share(rows, n, b) for b in range(n)]
        return Plan(tiling, n, traffic, group_blocks([b - a for a, b in shares]))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """The values, then tile by tile the indices and the rows."""
        rows, depth = _sizes(args)
        run = _Run(k, args, tiling)
        yield from run.values()
        r0, r1 = _share(rows, tiling["blocks"], block)
        for i in k.loop(-(-(r1 - r0) // tiling["rows"])):
            a = r0 + i * tiling["rows"]
            b = min(r1, a + tiling["rows"])
            chosen = yield from run.pick(a, b)
            for c in range(0, depth, tiling["part"]):
                yield from run.tile(chosen, a, c, min(depth, c + tiling["part"]))
            yield run.picks.free()


class _Run:
    """One block at work."""

    def __init__(self, k: Kernel, args: KernelArgs, tiling: Tiling) -> None:
        self.k, self.args = k, args
        (rows, self.depth), indices, out = _sizes(args), args.operands[0], args.operands[-1]
        self.dtype = out.dtype.np
        self.picks = k.queue("UB", tiling["rows"] * indices.dtype.size, 2, Pipe.MTE2, Pipe.V)
        room = tiling["rows"] * tiling["part"] * out.dtype.size
        self.tiles = k.queue("UB", room, 2, Pipe.V, Pipe.MTE3)
        self.x = Region.dense(GM, 0, 0, (rows,), indices.dtype.np)
        self.y = Region.dense(GM, len(args.inputs), 0, (rows, self.depth), self.dtype)
        self.pair: list[Region] = []

    def values(self) -> Iterator[Instr]:
        """Load on and off where they are inputs."""
        if not any(self.args.inputs[1:]):
            return
        queue = self.k.queue("UB", 2 * ALIGN, 1, Pipe.MTE2, Pipe.V)
        place = yield from queue.alloc()
        self.pair = [place.region((1,), self.dtype, i * ALIGN) for i in (0, 1)]
        for i, there in enumerate(self.pair):
            yield self.k.load(there, Region.dense(GM, i + 1, 0, (1,), self.dtype))
        yield queue.enque()
        yield queue.deque()

    def pick(self, a: int, b: int) -> Generator[Instr, None, Region]:
        """Load the indices of rows [a, b)."""
        place = yield from self.picks.alloc()
        chosen = place.region((b - a,), self.x.dtype)
        yield self.k.load(chosen, self.x[a:b])
        yield self.picks.enque()
        yield self.picks.deque()
        return chosen

    def tile(self, chosen: Region, a: int, c: int, end: int) -> Iterator[Instr]:
        """Columns [c, end) of the rows from a on."""
        k, rows = self.k, chosen.shape[0]
        slot = yield from self.tiles.alloc()
        tile = slot.region((rows, end - c), self.dtype)
        fn: Callable[..., Any] = partial(_hot, self.depth, range(c, end))
        if self.pair:
            yield k.vec("copy", tile, self.pair[1])
        else:
            given = [self.args.get(n, v) for n, v in (("off", 0), ("on", 1))]
            off, on = map(self.dtype.type, self.args.get("values", given))
            yield k.vec("dup", tile, scalar=off)
            fn = partial(fn, on=on, off=off)
        each = rows * SCALAR_COPY
        yield k.vec_by("copy", fn, chosen[:1], tile, chosen, *self.pair, per_repeat=each)
        yield self.tiles.enque()
        yield self.tiles.deque()
        yield k.store(self.y[a : a + rows, c:end], tile)
        yield self.tiles.free()
