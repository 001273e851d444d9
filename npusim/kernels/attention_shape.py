"""What the attention kernels share: operands as heads see them, tiles, the split over cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import Layout
from npusim.kernels.lang import Kernel
from npusim.kernels.queues import Alloc
from npusim.ops.training_attention import COMPRESSED, Shape
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs
from npusim.program.region import GM, Region

F32 = np.dtype(np.float32)
CUBE = 128  #: rows and columns of a product's tile: L0A, L0B and L0C each hold two of them
LINE = 64  #: fp32 values of one vector repeat, to which rows of scores are padded in UB


def up(n: int, to: int) -> int:
    """n rounded up."""
    return -(-n // to) * to


@dataclass(frozen=True)
class Problem:
    """A launch of attention or of its gradient.

    Attributes:
        shape: the extents; mask: index of the mask operand, -1 without one.
        batches, heads: of the mask (1 where it broadcasts).
        bias: index of the operand that is added to scaled scores (pse), -1 without one.
        bias_batches, bias_heads, bias_rows: of the bias (1 where it broadcasts).
        scale: of the scores; dtype: of queries, keys, values and results.
    """

    shape: Shape
    mask: int
    batches: int
    heads: int
    scale: float
    dtype: np.dtype
    bias: int = -1
    bias_batches: int = 1
    bias_heads: int = 1
    bias_rows: int = 1

    def rows(self, operand: int, batch: int, head: int, row: int, count: int) -> Region:
        """(count, D) rows of a query head."""
        return self._rows(operand, batch, head, row, count, self.shape.heads, self.shape.s1)

    def kv_rows(self, operand: int, batch: int, head: int, row: int, count: int) -> Region:
        """(count, D) rows of the key or value head that query head `head` looks at."""
        a = self.shape
        return self._rows(operand, batch, head // a.group, row, count, a.kv_heads, a.s2)

    def _rows(
        self, operand: int, batch: int, head: int, row: int, count: int, heads: int, rows: int
    ) -> Region:
        a, es = self.shape, self.dtype.itemsize
        if a.stored and operand < len(a.first):
            head, heads = head + a.first[operand], a.stored
        start = a.place(batch, head, row, heads, rows) * es
        return Region(GM, operand, start, (count, a.d), (a.pitch(heads) * es, es), self.dtype)

    def distinct(self, operand: int, nbytes: int) -> int:
        """Bytes that an operand of `nbytes` has for this launch: its heads of a shared tensor."""
        a = self.shape
        if not a.stored or operand >= len(a.first):
            return nbytes
        return nbytes // a.stored * (a.kv_heads if operand else a.heads)

    def mask_tile(
        self, batch: int, head: int, row: int, rows: int, column: int, columns: int
    ) -> Region | None:
        """The mask of a tile of scores in GM; None when nothing of it is hidden."""
        a = self.shape
        one = np.dtype(np.uint8)
        if a.mask == "full":
            lead = (batch if self.batches > 1 else 0) * self.heads + (head if self.heads > 1 else 0)
            start = (lead * a.s1 + row) * a.s2 + column
            return Region(GM, self.mask, start, (rows, columns), (a.s2, 1), one)
        # The compressed triangle stands for any tile that the diagonal crosses: shift to it.
        shift = row + a.reach - column
        if not a.mask or shift >= columns:
            return None
        side = COMPRESSED
        start = shift * side if shift >= 0 else -shift
        return Region(GM, self.mask, start, (rows, columns), (side, 1), one)

    def bias_tile(
        self, batch: int, head: int, row: int, rows: int, column: int, columns: int
    ) -> Region:
        """The bias of a tile of scores in GM: (rows, columns), one row where it serves all."""
        s2, es = self.shape.s2, self.dtype.itemsize
        lead = (batch if self.bias_batches > 1 else 0) * self.bias_heads
        lead += head if self.bias_heads > 1 else 0
        one = self.bias_rows == 1
        start = (lead * self.bias_rows + (0 if one else row)) * s2 + column
        shape = (1 if one else rows, columns)
        return Region(GM, self.bias, start * es, shape, (s2 * es, es), self.dtype)


def problem(args: KernelArgs, mask: int, bias: int = -1) -> Problem:
    """The launch's problem; `mask`, `bias`: indices at which the operator takes those (-1: no)."""
    q, k = args.inputs[0], args.inputs[1]
    assert q is not None and k is not None
    given = args.inputs[mask] if len(args.inputs) > mask else None
    attrs = {
        "head_num": args.attr("head_num"),
        "input_layout": args.get("input_layout", "BSH"),
        "sparse_mode": args.get("sparse_mode", 0),
        "next_tokens": args.get("next_tokens", 2**31 - 1),
        "first_heads": args.get("first_heads"),
        "kv_head_num": args.get("kv_head_num", 0),
    }
    shape = Shape.of(q.shape, k.shape, None if given is None else given.shape, attrs)
    batches, heads = (1, 1, *(given.shape[:-2] if given is not None else ()))[-2:]
    index = -1 if given is None else mask
    scale = float(args.get("scale_value", 1.0))
    found = Problem(shape, index, batches, heads, scale, q.dtype.np)
    added = args.inputs[bias] if 0 <= bias < len(args.inputs) else None
    if added is None:
        return found
    lead = added.shape[:3]
    return replace(found, bias=bias, bias_batches=lead[0], bias_heads=lead[1], bias_rows=lead[2])


def refuse_attention(
    args: KernelArgs, chip: ChipSpec, mask: int, bias: int = -1, wide: bool = False
) -> str:
    """'' when an attention kernel takes the launch's operands, else why not.

    Args:
        wide: whether the kernel takes fp32 where the cube does.
    """
    q = args.inputs[0]
    if q is None or any(o is not None and o.layout is not Layout.ND for o in args.operands):
        return "operands in ND only"
    kinds = ("float16", "bfloat16", *(("float32",) if wide else ()))
    if q.dtype.value not in chip.core.cube.k:
        cube = ", ".join(chip.core.cube.k)
        return f"attention in {q.dtype.value}: the cube of {chip.name} takes {cube}"
    if q.dtype.value not in kinds:
        return f"attention in {q.dtype.value}: the kernel takes {', '.join(kinds)}"
    p = problem(args, mask, bias)
    if p.shape.d % 16 or p.shape.d > CUBE:
        return f"heads of {p.shape.d}: multiples of 16 up to {CUBE}"
    if not p.shape.mask and p.shape.reach < p.shape.s2:
        return "hidden scores without a mask"
    if p.bias >= 0 and (p.mask >= 0 or args.operands[p.bias].dtype is not q.dtype):
        return "a bias beside a mask, or in another type than the queries"
    return ""


@dataclass(frozen=True)
class Band:
    """Query rows [row, row + rows) of one head, and how many keys they see."""

    batch: int
    head: int
    row: int
    rows: int
    columns: int


def band(a: Shape, s1: int, index: int) -> Band:
    """Band number `index` of s1 rows: heads of a batch after each other, rows innermost."""
    outer = -(-a.s1 // s1)
    head, i = divmod(index, outer)
    rows = min(s1, a.s1 - i * s1)
    return Band(*divmod(head, a.heads), i * s1, rows, a.columns(i * s1 + rows - 1))


@lru_cache(maxsize=256)
def band_starts(a: Shape, s1: int, cores: int) -> tuple[int, ...]:
    """First band of every core, and the end: runs of bands whose largest load is smallest.

    Loads count blocks of 128 keys; without a mask the runs are of equal length (CANN's tiling).
    """
    outer = -(-a.s1 // s1)
    total = a.batch * a.heads * outer
    per = -(-total // min(total, cores))
    if a.reach >= a.s2:
        return (*range(0, total, per), total)
    used = -(-total // per)
    loads = [-(-band(a, s1, i).columns // CUBE) for i in range(outer)] * (a.batch * a.heads)
    low, high = max(max(loads), sum(loads) // used), sum(loads)
    while low < high:
        middle = (low + high) // 2
        fits = len(_runs(loads, middle)) <= used
        low, high = (low, middle) if fits else (middle + 1, high)
    return (*_runs(loads, low), total)


def _runs(loads: Sequence[int], most: int) -> list[int]:
    """Where runs of at most `most` begin."""
    starts, load = [0], 0
    for i, n in enumerate(loads):
        if load + n > most:
            starts.append(i)
            load = 0
        load += n
    return starts


def load_nz(k: Kernel, slot: Alloc, src: Region, key: tuple[object, ...]) -> Instr:
    """MTE2 with ND2NZ where the chip has it: (rows, cols) → (cols / 16, rows up to 16s, 16)."""

    def build() -> Instr:
        rows, cols = src.shape
        tile = slot.region((cols // 16, up(rows, 16), 16), src.dtype)
        pieces = rows if k.chip.core.fixp is not None else rows * cols // 16
        blocks = src.split(1, 16).permute(1, 0, 2)
        return k.load_pairs([(tile[:, :rows], blocks)], tile if rows % 16 else None, pieces)

    return k.memo(("nz", *key, src.shape), build)
