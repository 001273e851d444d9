"""Operators that rearrange elements: transpose, join, cut, repeat, pad."""

from __future__ import annotations

import numpy as np

from npusim.errors import UnsupportedError
from npusim.ir import TensorType
from npusim.ops.common import Movement, axis_of, check, ints, static_ints, supported
from npusim.ops.registry import Arrays, Attrs, Inputs, Types, operator, schema


@operator("Transpose")
class Transpose(Movement):
    """Permute dimensions; reverse them by default."""

    attrs = schema(perm=None)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t = x.type(0)
        rank = len(t.shape)
        perm = attrs["perm"] or tuple(range(rank))[::-1]
        check(sorted(perm) == list(range(rank)), f"perm {perm} for {t.shape}", "a permutation")
        return [TensorType(tuple(t.shape[i] for i in perm), t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [x[0].transpose(attrs["perm"])]


@operator("Concat")
class Concat(Movement):
    """Join tensors along `axis`."""

    attrs = schema(axis=...)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        shapes = [x.type(i).shape for i in range(len(x.types))]
        axis = axis_of(attrs["axis"], len(shapes[0]))
        rests = {s[:axis] + s[axis + 1 :] for s in shapes}
        check(
            len(rests) == 1 and len({len(s) for s in shapes}) == 1,
            f"Concat of {shapes} along axis {axis}",
            "shapes that differ along the axis only",
        )
        total = sum(s[axis] for s in shapes)
        return [TensorType((*shapes[0][:axis], total, *shapes[0][axis + 1 :]), x.type(0).dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [np.concatenate(x, attrs["axis"])]


@operator("Split")
class Split(Movement):
    """Cut along `axis`: into the sizes of the second input, else evenly (the last one smaller)."""

    attrs = schema(axis=0, num_outputs=None)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t = x.type(0)
        axis = axis_of(attrs["axis"], len(t.shape))
        extent = t.shape[axis]
        if x.has(1):
            sizes = static_ints(x, 1, "split")
        else:
            chunk = -(-extent // n_outputs)
            sizes = tuple(max(min(chunk, extent - i * chunk), 0) for i in range(n_outputs))
        check(
            sum(sizes) == extent and len(sizes) == n_outputs,
            f"Split of extent {extent} into {sizes} for {n_outputs} outputs",
            "one size per output, which sum to the extent",
        )
        return [TensorType((*t.shape[:axis], s, *t.shape[axis + 1 :]), t.dtype) for s in sizes]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        axis = axis_of(attrs["axis"], x[0].ndim)
        edges = np.cumsum([t.shape[axis] for t in out])[:-1]
        return np.split(x[0], edges, axis)


def _slices(
    rank: int,
    starts: tuple[int, ...],
    ends: tuple[int, ...],
    axes: tuple[int, ...] | None,
    steps: tuple[int, ...] | None,
) -> tuple[slice, ...]:
    """ONNX's starts and ends clamp exactly as Python's slices do."""
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    check(
        len(starts) == len(ends) == len(axes) == len(steps) and 0 not in steps,
        f"starts {starts}, ends {ends}, axes {axes}, steps {steps}",
        "as many of each, and steps other than 0",
    )
    cut = [slice(None)] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        cut[axis_of(axis, rank)] = slice(start, end, step)
    return tuple(cut)


@operator("Slice")
class Slice(Movement):
    """Inputs: data, starts, ends, and optionally axes and steps."""

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t = x.type(0)
        cut = _slices(
            len(t.shape),
            static_ints(x, 1, "starts"),
            static_ints(x, 2, "ends"),
            static_ints(x, 3, "axes") if x.has(3) else None,
            static_ints(x, 4, "steps") if x.has(4) else None,
        )
        dims = (len(range(*s.indices(d))) for s, d in zip(cut, t.shape, strict=True))
        return [TensorType(tuple(dims), t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        starts, ends, axes, steps = (
            ints(x[i]) if i < len(x) and x[i] is not None else None for i in range(1, 5)
        )
        return [x[0][_slices(x[0].ndim, starts or (), ends or (), axes, steps)]]


@operator("Tile")
class Tile(Movement):
    """Repeat the tensor as often as the second input says, per dimension."""

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, repeats = x.type(0), static_ints(x, 1, "repeats")
        check(len(repeats) == len(t.shape), f"repeats {repeats} for {t.shape}", "one per dimension")
        return [TensorType(tuple(d * r for d, r in zip(t.shape, repeats, strict=True)), t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [np.tile(x[0], ints(x[1]))]


def _all_pads(
    pads: tuple[int, ...], axes: tuple[int, ...] | None, rank: int
) -> list[tuple[int, int]]:
    """(before, after) per dimension, from ONNX's list of begins followed by ends."""
    chosen = range(rank) if axes is None else [axis_of(a, rank) for a in axes]
    check(len(pads) == 2 * len(chosen), f"{len(pads)} pads for {len(chosen)} axes", "two per axis")
    full = [(0, 0)] * rank
    for i, axis in enumerate(chosen):
        full[axis] = (pads[i], pads[len(chosen) + i])
    return full


@operator("Pad")
class Pad(Movement):
    """Inputs: data, pads, and optionally the constant and axes; negative pads crop."""

    attrs = schema(mode="constant")

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t = x.type(0)
        supported(
            attrs["mode"] in ("constant", "reflect", "edge", "wrap"),
            f"Pad with mode {attrs['mode']!r}",
            "constant, reflect, edge, wrap",
        )
        axes = static_ints(x, 3, "axes") if x.has(3) else None
        pads = _all_pads(static_ints(x, 1, "pads"), axes, len(t.shape))
        dims = tuple(b + d + e for d, (b, e) in zip(t.shape, pads, strict=True))
        check(min(dims, default=0) >= 0, f"pads {pads} of {t.shape}", "a result that is not empty")
        return [TensorType(dims, t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        axes = ints(x[3]) if len(x) > 3 and x[3] is not None else None
        pads = _all_pads(ints(x[1]), axes, x[0].ndim)
        kept = tuple(
            slice(max(-b, 0), d - max(-e, 0)) for d, (b, e) in zip(x[0].shape, pads, strict=True)
        )
        widths = [(max(b, 0), max(e, 0)) for b, e in pads]
        if attrs["mode"] != "constant":
            return [np.pad(x[0][kept], widths, mode=attrs["mode"])]
        given = len(x) > 2 and x[2] is not None and x[2].size
        y = np.full(out[0].shape, x[2].reshape(-1)[0] if given else 0, x[0].dtype)
        inner = tuple(slice(b, d - e) for d, (b, e) in zip(y.shape, widths, strict=True))
        y[inner] = x[0][kept]
        return [y]


@operator("Trilu")
class Trilu(Movement):
    """The upper or lower triangle of matrices, from diagonal k (second input) on."""

    attrs = schema(upper=1)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        check(len(x.type(0).shape) >= 2, f"Trilu of {x.type(0).shape}", "rank 2 and more")
        return [x.type(0)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        k = int(x[1].item()) if len(x) > 1 and x[1] is not None else 0
        return [np.triu(x[0], k) if attrs["upper"] else np.tril(x[0], k)]


def _check_blocks(t: TensorType) -> None:
    if len(t.shape) != 4:
        raise UnsupportedError(f"block rearrangement of {t.shape}", "rank 4 (NCHW)", "reshape it")


@operator("DepthToSpace")
class DepthToSpace(Movement):
    """Blocks of channels become pixels."""

    attrs = schema(blocksize=..., mode="DCR")

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, b = x.type(0), attrs["blocksize"]
        _check_blocks(t)
        n, c, h, w = t.shape
        check(c % (b * b) == 0, f"{c} channels in blocks of {b}×{b}", "a multiple of blocksize²")
        return [TensorType((n, c // (b * b), h * b, w * b), t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        b = attrs["blocksize"]
        n, c, h, w = x[0].shape
        if attrs["mode"] == "DCR":
            y = x[0].reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
        else:
            y = x[0].reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
        return [y.reshape(out[0].shape)]


@operator("SpaceToDepth")
class SpaceToDepth(Movement):
    """Blocks of pixels become channels."""

    attrs = schema(blocksize=..., mode="DCR")

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, b = x.type(0), attrs["blocksize"]
        _check_blocks(t)
        n, c, h, w = t.shape
        check(h % b == 0 == w % b, f"{h}×{w} pixels in blocks of {b}", "multiples of blocksize")
        return [TensorType((n, c * b * b, h // b, w // b), t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        b = attrs["blocksize"]
        n, c, h, w = x[0].shape
        blocks = x[0].reshape(n, c, h // b, b, w // b, b)
        order = (0, 3, 5, 1, 2, 4) if attrs["mode"] == "DCR" else (0, 1, 3, 5, 2, 4)
        return [blocks.transpose(order).reshape(out[0].shape)]
