"""Move: operators that only copy elements: Concat, Split, Slice, Pad, Expand, Tile, MemSet, …

What ONNX passes as constant inputs, a launch carries as attributes: Slice `starts`, `ends`,
`axes`, `steps`; Pad `pads`, `axes`, `value`; Resize `scales` or `sizes`. Expand, Tile and Split
follow from the shapes. Of Resize, what repeats pixels is done here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import Layout
from npusim.kernels.strided import Job, bits_of, job
from npusim.kernels.strided_kernel import StridedKernel
from npusim.ops import get_operator
from npusim.ops.resize import repeats
from npusim.program.kernel import KernelArgs, kernel
from npusim.program.region import GM, Region

_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "BitCast")
_OPS = ("Concat", "Split", "Slice", "Pad", "Expand", "Tile", "Resize", "MemSet", *_RESHAPES)


def _operand(args: KernelArgs, index: int) -> Region:
    spec = args.operands[index]
    return Region.dense(GM, index, 0, spec.storage_shape, spec.dtype.np)


def _axis(args: KernelArgs) -> tuple[int, int]:
    """The axis of a Concat or Split in storage, and logical elements per storage element."""
    spec = args.outputs[0]
    default = 0 if args.op_type == "Split" else None
    value = args.get("axis", default)
    if value is None:
        value = args.attr("axis")
    axis = int(value) % max(1, len(spec.shape))
    if spec.layout is Layout.NC1HWC0 and axis == 1:
        return axis, spec.storage_shape[-1]
    return axis, 1


def _pieces(args: KernelArgs, whole: int, parts: Sequence[int], join: bool) -> list[Job]:
    """Concat (join) or Split: `parts` lie one after the other along an axis of `whole`."""
    axis, unit = _axis(args)
    region = _operand(args, whole)
    at, jobs = 0, []
    for index in parts:
        part = _operand(args, index)
        n = args.operands[index].shape[axis] // unit
        piece = region[(*(slice(None),) * axis, slice(at, at + n))]
        jobs += job(piece, part) if join else job(part, piece)
        at += n
    return jobs


def _concat(args: KernelArgs) -> list[Job]:
    n = len(args.inputs)
    return _pieces(args, n, [i for i in range(n) if args.operands[i] is not None], True)


def _split(args: KernelArgs) -> list[Job]:
    n = len(args.inputs)
    return _pieces(args, 0, range(n, n + len(args.outputs)), False)


def _slice(args: KernelArgs) -> list[Job]:
    x = _operand(args, 0)
    starts, ends = args.attr("starts"), args.attr("ends")
    given = dict(args.attrs)
    axes = given.get("axes") or range(len(starts))
    steps = given.get("steps") or (1,) * len(starts)
    shape, strides, offset = list(x.shape), list(x.strides), x.offset
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        a = int(axis) % len(shape)
        first, stop, by = slice(int(start), int(end), int(step)).indices(x.shape[a])
        shape[a] = len(range(first, stop, by))
        offset += first * x.strides[a]
        strides[a] = by * x.strides[a]
    src = Region(GM, 0, offset, tuple(shape), tuple(strides), x.dtype)
    return [replace(j, pick=True) for j in job(_operand(args, len(args.inputs)), src)]


def _pad(args: KernelArgs) -> list[Job]:
    x, y = _operand(args, 0), _operand(args, len(args.inputs))
    given, rank = dict(args.attrs), len(x.shape)
    pads = [int(p) for p in args.attr("pads")]
    axes = [int(a) % rank for a in given.get("axes") or range(rank)]
    before, after = [0] * rank, [0] * rank
    for i, a in enumerate(axes):
        before[a], after[a] = pads[i], pads[len(axes) + i]
    if given.get("mode") == "edge":
        return _pad_edge(x, y, before, after)
    return _pad_constant(x, y, before, after, bits_of(given.get("value") or 0, x.dtype))


def _pad_edge(x: Region, y: Region, before: Sequence[int], after: Sequence[int]) -> list[Job]:
    """Repeats of the outermost elements: each axis is the part before, the tensor, and after."""
    parts = [
        (
            (slice(0, b), slice(0, 1)),
            (slice(b, b + n), slice(0, n)),
            (slice(b + n, end), slice(n - 1, n)),
        )
        for b, n, end in zip(before, x.shape, y.shape, strict=True)
    ]
    jobs = []
    for choice in product(*parts):
        target = y[tuple(to for to, _ in choice)]
        jobs += job(target, x[tuple(of for _, of in choice)].broadcast(target.shape))
    return jobs


def _pad_constant(
    x: Region, y: Region, before: Sequence[int], after: Sequence[int], fill: int
) -> list[Job]:
    jobs, inner = [], y
    rank = len(x.shape)
    for a in range(rank):
        head = (slice(None),) * a
        end = before[a] + x.shape[a] + min(0, after[a])
        if before[a] > 0:
            jobs += job(inner[(*head, slice(0, before[a]))], None, fill)
        if after[a] > 0:
            jobs += job(inner[(*head, slice(end, end + after[a]))], None, fill)
        inner = inner[(*head, slice(max(0, before[a]), max(0, end)))]
        x = x[(*head, slice(max(0, -before[a]), x.shape[a] + min(0, after[a])))]
    return jobs + job(inner, x)


def _expand(args: KernelArgs) -> list[Job]:
    y = _operand(args, len(args.inputs))
    return job(y, _operand(args, 0).broadcast(y.shape))


def _tile(args: KernelArgs) -> list[Job]:
    """Each axis of the output as (copies, n)."""
    x, y = _operand(args, 0), _operand(args, len(args.inputs))
    for axis in range(len(x.shape) - 1, -1, -1):
        y = y.split(axis, max(1, x.shape[axis]))
        x = x.expand(axis)
    return job(y, x.broadcast(y.shape))


@lru_cache(maxsize=256)
def resize_repeats(args: KernelArgs) -> tuple[int, ...] | None:
    """How often a Resize repeats the elements of each axis; None: it does something else."""
    if any(s is not None for s in args.inputs[1:]):
        return None
    attrs = {**get_operator("Resize").attrs, **dict(args.attrs)}
    scales, sizes = attrs.get("scales"), attrs.get("sizes")
    given = np.array(scales) if scales else None
    return repeats(args.operands[0].shape, given, sizes, attrs)


def _resize(args: KernelArgs) -> list[Job]:
    """Each axis of the output as (n, copies); blocked images keep their axes' numbers."""
    x, y = _operand(args, 0), _operand(args, len(args.inputs))
    counts = resize_repeats(args)
    assert counts is not None
    for axis in range(len(counts) - 1, -1, -1):
        if counts[axis] > 1:
            y, x = y.split(axis, counts[axis]), x.expand(axis + 1)
    return job(y, x.broadcast(y.shape))


def _reshape(args: KernelArgs) -> list[Job]:
    x, y = _operand(args, 0), _operand(args, len(args.inputs))
    flat = (prod(x.shape),)
    dst, src = (Region.dense(GM, r.operand, 0, flat, y.dtype) for r in (y, x))
    return job(dst, src)


def _mem_set(args: KernelArgs) -> list[Job]:
    y = _operand(args, 0)
    return job(y, None, bits_of(args.get("value") or 0, y.dtype))


_BUILDERS = {
    "MemSet": _mem_set,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
    "Expand": _expand,
    "Tile": _tile,
    "Resize": _resize,
    **dict.fromkeys(_RESHAPES, _reshape),
}


@lru_cache(maxsize=256)
def _jobs(args: KernelArgs) -> tuple[Job, ...]:
    return tuple(_BUILDERS[args.op_type](args))


@kernel("Move")
class Move(StridedKernel):
    """Copies of elements of any type, bit for bit."""

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """What needs more than strided copies."""
        if args.op_type not in _OPS:
            return f"operator {args.op_type}"
        if args.op_type in ("Concat", "Split"):
            return _refuse_blocked(args)
        if args.op_type == "MemSet":
            return ""
        if args.op_type == "Resize":
            return _refuse_resize(args)
        specs = [args.operands[0], args.outputs[0]]
        blocked = any(s.layout is not Layout.ND for s in specs)
        same = specs[0].shape == specs[1].shape and specs[0].layout is specs[1].layout
        if blocked and not (args.op_type in _RESHAPES and same):
            return f"{args.op_type} of a blocked layout"
        if args.op_type == "Pad" and (reason := _refuse_pad(args)):
            return reason
        needs = {"Slice": ("starts", "ends"), "Pad": ("pads",)}.get(args.op_type, ())
        missing = [n for n in needs if n not in dict(args.attrs)]
        return f"{', '.join(missing)} not known when compiling" if missing else ""

    @staticmethod
    def jobs(args: KernelArgs) -> Sequence[Job]:
        """The copies that the launch consists of."""
        return _jobs(args)


def _refuse_pad(args: KernelArgs) -> str:
    """Constants, and copies of the edges; those cannot cut."""
    mode = args.get("mode", "constant")
    if mode not in ("constant", "edge"):
        return f"Pad of mode {mode}"
    cuts = mode == "edge" and min(args.get("pads") or (0,)) < 0
    return "Pad of mode edge that also cuts" if cuts else ""


def _refuse_resize(args: KernelArgs) -> str:
    """Resize must repeat elements, in NC1HWC0 those of a pixel together."""
    x, y, counts = args.operands[0], args.outputs[0], resize_repeats(args)
    if counts is None:
        return "a Resize that does more than repeat elements a whole number of times"
    if x.layout is not y.layout or x.layout not in (Layout.ND, Layout.NC1HWC0):
        return f"Resize from {x.layout.value} to {y.layout.value}"
    if x.layout is Layout.NC1HWC0 and counts[:2] != (1, 1):
        return "Resize of blocked channels"
    return ""


def _refuse_blocked(args: KernelArgs) -> str:
    """Concat and Split of NC1HWC0: every part must be whole blocks of channels."""
    sources = args.inputs[:1] if args.op_type == "Split" else args.inputs
    parts = [s for s in (*sources, *args.outputs) if s is not None]
    layouts = {s.layout for s in parts}
    if layouts == {Layout.ND}:
        return ""
    if layouts != {Layout.NC1HWC0}:
        return f"{args.op_type} of layouts {', '.join(sorted(x.value for x in layouts))}"
    axis, unit = _axis(args)
    if any(s.shape[axis] % unit for s in parts):
        return f"channels of a part are not a multiple of {unit}"
    return ""
