"""Indexed operators as picks of table rows: what gathers and scatters share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.elementwise import unsupported_type
from npusim.kernels.lang import ALIGN
from npusim.program.kernel import KernelArgs, OperandSpec
from npusim.program.picks import Picks
from npusim.program.region import GM, Region, row_major

BY_ELEMENT = ("GatherElements", "ScatterElements")  #: an index for every element


def index_operand(args: KernelArgs) -> int:
    """Which operand names rows."""
    return 2 if args.op_type == "TensorScatter" else 1


def refuse_picks(args: KernelArgs) -> str:
    """Why a launch is not rows of a table ('' when it is): layouts, index types and shapes."""
    if args.epilogue or any(o is None or o.layout is not Layout.ND for o in args.operands):
        return "a blocked layout, or something fused"
    data, index = args.operands[0], args.operands[index_operand(args)]
    if index.dtype not in (DType.INT32, DType.INT64):
        return f"indices of type {index.dtype.value}"
    if args.op_type not in BY_ELEMENT:
        return "" if index.shape and index.shape[-1] else "index tuples of no elements"
    axis = _axis(args)
    if any(
        n != m for a, (n, m) in enumerate(zip(data.shape, index.shape, strict=True)) if a != axis
    ):
        return f"indices {index.shape} that do not reach all of {data.shape} beside the axis"
    return ""


def _axis(args: KernelArgs) -> int:
    return int(args.get("axis", 0)) % len(args.operands[0].shape)


@lru_cache(maxsize=256)
def picks_of(args: KernelArgs) -> Picks:
    """How the launch's indices name rows of its first operand."""
    data, index = args.operands[0], args.operands[index_operand(args)]
    if args.op_type == "TensorScatter":
        return _runs(args)
    if args.op_type in BY_ELEMENT:
        axis = _axis(args)
        extent, inner = data.shape[axis], prod(data.shape[axis + 1 :])
        span, per = extent * inner, index.shape[axis] * inner
        size = prod(index.shape)
        return Picks(size, 1, prod(data.shape), (extent,), (inner,), per, span, inner)
    batch, k = int(args.get("batch_dims", 0)), index.shape[-1]
    extents = data.shape[batch : batch + k]
    span, width = prod(extents), prod(data.shape[batch + k :])
    count, parts = prod(index.shape[:-1]), prod(data.shape[:batch])
    return Picks(
        count, width, parts * span, extents, row_major(extents, 1), count // max(1, parts), span
    )


def _runs(args: KernelArgs) -> Picks:
    """A run of updates for each batch and what lies between it and the axis."""
    cache, update = args.operands[:2]
    axis = int(args.get("axis", -2)) % len(cache.shape)
    lines, extent, run = prod(cache.shape[:axis]), cache.shape[axis], update.shape[axis]
    width, group = prod(cache.shape[axis + 1 :]), prod(cache.shape[1:axis]) * run
    circular = args.get("mode", "linear") == "circular"
    return Picks(
        lines * run, width, lines * extent, (extent,), (1,), run, extent, 1, run, group, circular
    )


#: Scalar instructions to load an index, bring it into range and compare it with a block's part.
SCAN_INSTRUCTIONS = 8
SCATTERS = ("ScatterND", "ScatterElements", "TensorScatter")
REDUCTIONS = ("add", "mul", "max", "min")


def refuse_scatter(args: KernelArgs, chip: ChipSpec) -> str:
    """Why a launch is no scatter of rows or elements ('' when it is)."""
    if args.op_type not in SCATTERS:
        return f"operator {args.op_type}"
    if len(args.inputs) != 3:
        return "no indices"
    reason, reduction = refuse_picks(args), args.get("reduction", "none")
    if reason or reduction == "none":
        return reason
    dtype = args.operands[0].dtype
    if reduction not in REDUCTIONS or dtype in (DType.BOOL, DType.BFLOAT16):
        return f"reduction {reduction} of {dtype.value}"
    return unsupported_type(dtype, chip)


@dataclass(frozen=True)
class Part:
    """Rows low … high - 1 of the table, the picks that may name them, the share that does."""

    low: int
    high: int
    first: int
    end: int
    share: float


class Scattering:
    """Geometry of a scatter: data, updates and indices as a table, rows and picks.

    Attributes:
        index, updates: operands; size: bytes of an element; reduction: "none" or its name.
    """

    def __init__(self, args: KernelArgs) -> None:
        self.args, self.picks = args, picks_of(args)
        self.index = index_operand(args)
        self.updates = 3 - self.index
        self.size = args.operands[0].dtype.size
        self.reduction = str(args.get("reduction", "none"))

    @property
    def row_bytes(self) -> int:
        """Of a row of the table."""
        return self.picks.width * self.size

    def rows(self, operand: int, rows: int) -> Region:
        """A GM operand as rows."""
        return as_rows(self.args, operand, rows, self.picks.width)

    def index_rows(self) -> Region:
        """The indices, a tuple a row."""
        entries = self.picks.count // self.picks.group
        return as_rows(self.args, self.index, entries, len(self.picks.extents))

    def index_bytes(self, picks: int) -> int:
        """UB bytes of a tile's indices."""
        entry = len(self.picks.extents) * self.args.operands[self.index].dtype.size
        a, b = self.picks.entries(0, picks)
        return -(-(b - a) * entry // ALIGN) * ALIGN

    def part(self, low: int, high: int) -> Part:
        """Rows low … high - 1 of the table."""
        first, end = self.picks.reaching(low, high)
        spanned = (end - first) // max(1, self.picks.per) * self.picks.span
        return Part(low, high, first, end, (high - low) / max(1, spanned))

    def own(self, part: Part, first: int, end: int) -> int:
        """Of the picks first … end - 1, those that fall to the part."""
        a, b = (int((at - part.first) * part.share) for at in (first, end))
        return b - a

    def moved(self, part: Part, first: int, end: int) -> int:
        """Bytes of the part's own updates among the picks."""
        return self.own(part, first, end) * self.row_bytes

    def seen(self, part: Part, picks: int) -> int:
        """Bytes of indices that tiles of so many picks bring for a part."""
        entry = len(self.picks.extents) * self.args.operands[self.index].dtype.size
        count = part.end - part.first
        if not self.picks.run:
            return count * entry
        a, b = self.picks.entries(0, picks)
        return -(-count // picks) * (b - a) * entry


@lru_cache(maxsize=64)
def scattering(args: KernelArgs) -> Scattering:
    """The geometry of a launch."""
    return Scattering(args)


def as_rows(args: KernelArgs, operand: int, rows: int, width: int) -> Region:
    """A GM operand as a matrix."""
    spec: OperandSpec = args.operands[operand]
    return Region.dense(GM, operand, 0, (rows, width), spec.dtype.np)
