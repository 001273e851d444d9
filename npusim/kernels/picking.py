"""Indexed operators as picks of table rows: what GatherND and ScatterND share."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from npusim.ir import DType, Layout
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


def as_rows(args: KernelArgs, operand: int, rows: int, width: int) -> Region:
    """A GM operand as a matrix."""
    spec: OperandSpec = args.operands[operand]
    return Region.dense(GM, operand, 0, (rows, width), spec.dtype.np)
