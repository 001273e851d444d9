"""Data movement and reductions of a profile, over the operands as they lie in GM."""

from __future__ import annotations

from itertools import permutations
from math import prod

from npusim.explore.replay.launches import Launch, operand, replays
from npusim.frontends.recorded import RecordedOp, RecordedTensor
from npusim.ir import DType, Layout
from npusim.program.kernel import KernelArgs, OperandSpec


def _stored(t: RecordedTensor, shape: tuple[int, ...] | None = None) -> OperandSpec:
    """An operand's device array as a plain one, in another shape of as many elements if given."""
    kind = operand(RecordedTensor("ND", t.dtype, t.shape)).dtype
    return OperandSpec(t.shape if shape is None else shape, kind)


def _move(
    op_type: str,
    inputs: tuple[OperandSpec, ...],
    outputs: tuple[OperandSpec, ...],
    **attrs: object,
) -> Launch:
    return Launch("Move", KernelArgs(op_type, inputs, outputs, tuple(sorted(attrs.items()))))


@replays("TransData")
def trans_data(op: RecordedOp) -> Launch:
    """Between a plain and a blocked format; the plain side has the logical shape."""
    x, y = op.inputs[0], op.outputs[0]
    if x.format == y.format:  # tables that name the formats of inputs only
        x, y = (_filter_side(a, b) for a, b in ((x, y), (y, x)))
    if (x.format == "ND") == (y.format == "ND"):
        raise ValueError(f"{x.format} to {y.format}")
    plain, blocked = (x, y) if x.format == "ND" else (y, x)
    if blocked.format == "FRACTAL_Z":
        return _fractal_z(plain, blocked, plain is x)
    layout = operand(blocked).layout
    shape = plain.shape
    if layout is Layout.NC1HWC0 and len(shape) == 4 and shape[1:3] == blocked.shape[2:4]:
        shape = (shape[0], shape[3], *shape[1:3])  # NHWC
    nd = _stored(plain, shape)
    other = OperandSpec(shape, nd.dtype, layout)
    if other.storage_shape != blocked.shape and prod(other.storage_shape) != blocked.size:
        raise ValueError(f"{shape} in {blocked.format} is not {blocked.shape}")
    pair = (nd, other) if plain is x else (other, nd)
    # Blocked and narrow sources are results of the launch before; fp32 ones may be parameters.
    fresh = () if plain is x and nd.dtype is DType.FLOAT32 else (0,)
    return Launch("TransData", KernelArgs("TransData", pair[:1], pair[1:]), fresh=fresh)


def _filter_side(t: RecordedTensor, other: RecordedTensor) -> RecordedTensor:
    """A tensor with the format that its shape betrays: blocks of 16 filters are FRACTAL_Z."""
    co, blocked = other.shape[0], len(t.shape) == 4 == len(other.shape) and t.shape[2] == 16
    fits = blocked and t.shape[1] * 16 == co and t.shape[3] in (8, 16)
    return RecordedTensor("FRACTAL_Z" if fits else "ND", t.dtype, t.shape)


def _fractal_z(plain: RecordedTensor, blocked: RecordedTensor, into: bool) -> Launch:
    """(Co, C, kh, kw) against (C1·kh·kw, Co1, 16, 16), for whole blocks of channels."""
    co1, c0 = blocked.shape[1], blocked.shape[3]
    co, c, *window = plain.shape
    if co != co1 * 16 or c % c0:
        raise ValueError(f"filter {plain.shape} with ragged blocks")
    split = (co, c // c0, c0, prod(window))
    order = (1, 3, 0, 2)
    if into:
        return _permuted(_stored(plain, split), order, filter=1)
    moved = tuple(split[a] for a in order)
    return _permuted(_stored(blocked, moved), (2, 0, 3, 1), filter=1)


def _permuted(x: OperandSpec, order: tuple[int, ...], **how: int) -> Launch:
    out = OperandSpec(tuple(x.shape[a] for a in order), x.dtype)
    attrs = tuple(sorted({"bursts": 1, **how, "perm": order}.items()))
    return Launch("Transpose", KernelArgs("Transpose", (x,), (out,), attrs))


@replays("Transpose", "TransposeD")
def transpose(op: RecordedOp) -> Launch:
    """A permutation that fits the shapes: the one that moves fewest axes."""
    x, y = op.inputs[0], op.outputs[0]
    rank = len(x.shape)
    fits = [p for p in permutations(range(rank)) if tuple(x.shape[a] for a in p) == y.shape]
    moving = [p for p in fits if p != tuple(range(rank))] or fits
    if not moving:
        raise ValueError(f"no permutation of {x.shape} gives {y.shape}")
    best = min(moving, key=lambda p: sum(a != i for i, a in enumerate(p)))
    dynamic = int(op.op_type == "Transpose" and len(op.inputs) > 1)  # the order is an input
    return _permuted(_stored(x), best, bursts=0, tables=dynamic)


@replays("ConfusionTransposeD", "ConfusionTranspose")
def confusion_transpose(op: RecordedOp) -> Launch:
    """Heads split from or merged into the hidden axis in FRACTAL_NZ, or patches of an image."""
    x, y = op.inputs[0], op.outputs[0]
    if len(x.shape) == 4 and len(y.shape) == 6 and x.format == "FRACTAL_NZ":
        b, h, n1, m1, *block = y.shape
        return _permuted(_stored(x, (h, n1, b, m1, prod(block))), (2, 0, 1, 3, 4))
    if len(x.shape) == 6 and len(y.shape) == 4 and x.format == "FRACTAL_NZ":
        b, h, n1, m1, *block = x.shape
        return _permuted(_stored(x, (b, h, n1, m1, prod(block))), (1, 2, 0, 3, 4))
    if len(x.shape) == 4 and len(y.shape) == 6:
        n, rows, columns, c, ph, pw = y.shape
        if x.shape == (n, c, rows * ph, columns * pw):
            return _permuted(_stored(x, (n, c, rows, ph, columns, pw)), (0, 2, 4, 1, 3, 5))
    raise ValueError(f"{x.shape} to {y.shape}")


def _axis(whole: RecordedTensor, parts: tuple[RecordedTensor, ...]) -> int:
    """The axis along which the parts lie in the whole."""
    for axis, n in enumerate(whole.shape):
        if sum(p.shape[axis] for p in parts) == n and (len(parts) == 1 or parts[0].shape[axis] < n):
            return axis
    raise ValueError(f"{whole.shape} of {[p.shape for p in parts]}")


@replays("Concat", "ConcatD", "ConcatV2", "ConcatV2D")
def concat(op: RecordedOp) -> Launch:
    """Parts one after the other along the axis that the shapes say."""
    axis = _axis(op.outputs[0], op.inputs)
    out = (_stored(op.outputs[0]),)
    return _move("Concat", tuple(_stored(t) for t in op.inputs), out, axis=axis)


@replays("Split", "SplitD", "SplitV", "SplitVD")
def split(op: RecordedOp) -> Launch:
    """The reverse."""
    axis = _axis(op.inputs[0], op.outputs)
    outs = tuple(_stored(t) for t in op.outputs)
    return _move("Split", (_stored(op.inputs[0]),), outs, axis=axis)


@replays("Slice", "SliceD", "StridedSlice", "StridedSliceD")
def slice_(op: RecordedOp) -> Launch:
    """A box of the input (taken at its origin: where it starts does not change the work)."""
    x, y = op.inputs[0], op.outputs[0]
    shape = _padded_rank(y.shape, x.shape)
    starts = (0,) * len(shape)
    buffers = 2 if op.op_type.startswith("Strided") else 1
    out = (_stored(y, shape),)
    return _move("Slice", (_stored(x),), out, starts=starts, ends=shape, buffers=buffers)


@replays("AsStrided")
def as_strided(op: RecordedOp) -> Launch:
    """Rows of the output's last axis, as far apart as the input is larger (strides are not known).

    Raises:
        ValueError: the output is larger than the input, so that it repeats elements.
    """
    x, y = op.inputs[0], op.outputs[0]
    apart = x.size // y.size
    if not apart or not y.shape:
        raise ValueError(f"{x.shape} as {y.shape}")
    rows = (y.size // y.shape[-1], y.shape[-1])
    source = OperandSpec((rows[0], apart, rows[1]), _stored(y).dtype)
    ends = (rows[0], 1, rows[1])
    return _move("Slice", (source,), (_stored(y, ends),), starts=(0, 0, 0), ends=ends)


@replays("StridedSliceGrad", "StridedSliceGradD", "PadD", "Pad")
def pad(op: RecordedOp) -> Launch:
    """The box put back among zeros."""
    return Launch("Move", _padded(op))


@replays("PadV3")
def pad_v3(op: RecordedOp) -> Launch:
    """The same by a kernel that fills everything first."""
    return Launch("PadV3", _padded(op))


def _padded(op: RecordedOp) -> KernelArgs:
    x, y = op.inputs[0], op.outputs[0]
    shape = _padded_rank(x.shape, y.shape)
    after = tuple(n - m for n, m in zip(y.shape, shape, strict=True))
    pads = ((0,) * len(shape)) + after
    return KernelArgs("Pad", (_stored(x, shape),), (_stored(y),), (("pads", pads),))


def _padded_rank(small: tuple[int, ...], large: tuple[int, ...]) -> tuple[int, ...]:
    """`small` with axes of extent 1 put in where a slice dropped them."""
    shape, rest = [], list(small)
    for i, n in enumerate(large):
        spare = len(large) - i - len(rest)
        if rest and (rest[0] == n or not spare) and rest[0] <= n:
            shape.append(rest.pop(0))
        else:
            shape.append(1)
    if rest:
        raise ValueError(f"{small} is no box of {large}")
    return tuple(shape)


@replays("Tile", "TileD", "BroadcastTo", "BroadcastToD", "Expand")
def tile(op: RecordedOp) -> Launch:
    """Repetition along the axes that grow."""
    x, y = op.inputs[0], op.outputs[0]
    shape = (1,) * (len(y.shape) - len(x.shape)) + x.shape
    return _move("Tile", (_stored(x, shape),), (_stored(y),))


@replays("BiasAddGrad")
def bias_add_grad(op: RecordedOp) -> Launch:
    """The sum over everything but the channels."""
    x, y = op.inputs[0], op.outputs[0]
    if x.format == "FRACTAL_NZ" and len(x.shape) == 4:
        n1, m1, m0, n0 = x.shape
        return _bias_grad(_stored(x, (n1, m1 * m0, n0)), _stored(y, (n1, n0)))
    if x.format == "NC1HWC0":
        n, c1, h, w, c0 = x.shape
        return _reduced("ReduceSum", _stored(x, (n, c1, h * w, c0)), _stored(y, (c1, c0)), (0, 2))
    columns = x.shape[-1]
    if x.format == "ND" and columns > 1:
        return _bias_grad(_stored(x, (x.size // columns, columns)), _stored(y, (columns,)))
    return _reduced("ReduceSum", _stored(x), _stored(y), tuple(range(len(x.shape) - 1)))


def _bias_grad(x: OperandSpec, y: OperandSpec) -> Launch:
    attrs = (("axes", (len(x.shape) - 2,)), ("keepdims", 0))
    return Launch("BiasGrad", KernelArgs("ReduceSum", (x,), (y,), attrs))


def _reduced(
    kind: str, x: OperandSpec, y: OperandSpec, axes: tuple[int, ...], dynamic: bool = False
) -> Launch:
    attrs: tuple[tuple[str, object], ...] = (("axes", axes), ("keepdims", 0))
    if dynamic:
        attrs = (("axes", axes), ("dynamic", 1), ("keepdims", 0))
    return Launch("LibraryReduce", KernelArgs(kind, (x,), (y,), attrs))


@replays("ReduceSum", "ReduceSumD", "ReduceMean", "ReduceMeanD", "ReduceMax", "ReduceMaxD")
def reduce(op: RecordedOp) -> Launch:
    """Over the axes that the output lacks; a sum of everything on many blocks adds atomically."""
    x, y = op.inputs[0], op.outputs[0]
    kind = op.op_type.removesuffix("D")
    if y.size == 1 and op.block_dim != 1 and kind != "ReduceMax":
        return Launch("SumAll", KernelArgs(kind, (_stored(x, (x.size,)),), (_stored(y, (1,)),)))
    if len(y.shape) == len(x.shape):
        axes = tuple(i for i, n in enumerate(y.shape) if n == 1 and x.shape[i] != 1)
    else:
        axes = _lost_axes(x.shape, y.shape)
    kept = tuple(n for i, n in enumerate(x.shape) if i not in axes)
    dynamic = len(op.inputs) > 1 and op.block_dim > 1
    return _reduced(kind, _stored(x), _stored(y, kept), axes, dynamic)


@replays("ArgMaxWithValue", "ArgMinWithValue")
def arg_with_value(op: RecordedOp) -> Launch:
    """Along the last axis → indices (int32), values."""
    x = _stored(op.inputs[0])
    index, value = (t.shape for t in op.outputs[:2])
    outs = (OperandSpec(index, DType.INT32), OperandSpec(value, x.dtype))
    return Launch("ArgValue", KernelArgs(op.op_type, (x,), outs))


def _lost_axes(large: tuple[int, ...], small: tuple[int, ...]) -> tuple[int, ...]:
    """Axes of `large` that `small` lacks, the first that fit."""
    lost, rest = [], list(small)
    for i, n in enumerate(large):
        if len(large) - i > len(rest):
            lost.append(i) if not rest or rest[0] != n else rest.pop(0)
        elif rest.pop(0) != n:
            raise ValueError(f"{large} reduced to {small}")
    return tuple(lost)


@replays("SquareSumV1", "SquareSumV2", kernels=("SumAll", "LibraryReduce"))
def square_sum(op: RecordedOp) -> Launch:
    """Σx², every block adding its part atomically; V2, of parameters, also passes x on.

    A result of more than one element is V1 over one axis.
    """
    if op.outputs[0].size > 1:
        source, y = op.inputs[0], op.outputs[0]
        axes = _lost_axes(source.shape, y.shape)
        return _reduced("ReduceSumSquare", _stored(source), _stored(y), axes)
    x = _stored(op.inputs[0])
    total = _stored(op.outputs[0], (1,))
    if op.op_type == "SquareSumV1":
        return Launch("SumAll", KernelArgs(op.op_type, (x,), (total,)))
    return Launch("SumAll", KernelArgs(op.op_type, (x,), (total, x)), state=(0,))


@replays("LpNormV2", "LpNormReduceV2")
def lp_norm(op: RecordedOp) -> Launch:
    """Σx² (p = 2, as gradient clipping has it); the root of the one number is left out."""
    x, y = op.inputs[0], op.outputs[0]
    if y.size != 1:
        raise ValueError(f"norms {y.shape} of {x.shape}: norms along axes")
    total = OperandSpec((1,), _stored(x).dtype)
    return Launch("SumAll", KernelArgs("SquareSumV1", (_stored(x, (x.size,)),), (total,)))


@replays("ReluGradV2", "DropoutDoMask", "DropOutDoMask", "DropOutDoMaskV3", kernels=("BitMask",))
def bit_mask(op: RecordedOp) -> Launch:
    """Elements kept where a bit is set."""
    x, mask = op.inputs[0], op.inputs[1]
    image = op.op_type == "ReluGradV2" and x.format == "NC1HWC0"  # cut by images
    kept = operand(x) if image else _stored(x, (x.size,))
    specs: tuple[OperandSpec, ...] = (kept, _stored(mask, (mask.size,)))
    kind = "ReluGradV2" if op.op_type == "ReluGradV2" else "DropOutDoMask"
    if kind == "DropOutDoMask":
        specs = (*specs, _stored(op.inputs[2], ()))
    return Launch("BitMask", KernelArgs(kind, specs, (kept,)))
