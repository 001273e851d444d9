"""Resize: interpolation is separable, so each dimension is one small matrix product."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npusim.ir import TensorType
from npusim.ops.common import axis_of, check, ints, static, static_ints, supported
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema

_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
_ROUNDING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
_REACH = {"linear": 1, "cubic": 2}  # how far, in samples, a kernel reaches to either side


@operator("Resize")
class Resize(Operator):
    """Inputs: data, roi, scales, sizes (one of the last two); modes nearest, linear and cubic."""

    attrs = schema(
        antialias=0,
        axes=None,
        coordinate_transformation_mode="half_pixel",
        cubic_coeff_a=-0.75,
        exclude_outside=0,
        extrapolation_value=0.0,
        keep_aspect_ratio_policy="stretch",
        mode="nearest",
        nearest_mode="round_prefer_floor",
    )

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        for key, allowed in (
            ("mode", ("nearest", *_REACH)),
            ("coordinate_transformation_mode", _COORDINATES),
            ("nearest_mode", tuple(_ROUNDING)),
        ):
            supported(attrs[key] in allowed, f"{key}={attrs[key]!r}", ", ".join(allowed))
        t = x.type(0)
        has_scales = x.has(2) and x.type(2).size > 0
        check(has_scales or x.has(3), "neither scales nor sizes", "one of the two")
        scales = static(x, 2, "scales").astype(np.float64) if has_scales else None
        sizes = None if has_scales else static_ints(x, 3, "sizes")
        return [TensorType(_targets(t.shape, scales, sizes, attrs)[1], t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        y, rank = x[0], x[0].ndim
        roi, scale_values, size_values = (*x[1:], None, None, None)[:3]
        has_scales = scale_values is not None and scale_values.size > 0
        scales = scale_values.astype(np.float64) if has_scales else None
        sizes = None if has_scales else ints(size_values)
        factors, shape = _targets(y.shape, scales, sizes, attrs)
        axes = _axes(rank, attrs)
        for axis in range(rank):
            region = (0.0, 1.0)
            if attrs["coordinate_transformation_mode"] == "tf_crop_and_resize" and axis in axes:
                i = axes.index(axis)
                region = (float(roi[i]), float(roi[i + len(axes)]))
            elif factors[axis] == 1 and shape[axis] == y.shape[axis]:
                continue
            y = _along(y, axis, shape[axis], factors[axis], region, attrs)
        return [y]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        if attrs["mode"] == "nearest":
            return Work()
        resized = sum(a != b for a, b in zip(x[0].shape, out[0].shape, strict=True))
        return Work(vector_ops=out[0].size * (2 * _REACH[attrs["mode"]]) ** max(resized, 1))


def repeats(
    shape: tuple[int, ...], scales: np.ndarray | None, sizes: tuple[int, ...] | None, attrs: Attrs
) -> tuple[int, ...] | None:
    """How often each dimension's elements stand in the result, where that is all that happens."""
    if attrs["mode"] != "nearest":
        return None
    factors, extents = _targets(shape, scales, sizes, attrs)
    counts = []
    for n, extent, factor in zip(shape, extents, factors, strict=True):
        if extent % n:
            return None
        if extent != n:
            mode = attrs["coordinate_transformation_mode"]
            if mode == "tf_crop_and_resize":
                return None
            at = _coordinates(n, extent, factor, (0.0, 1.0), mode)
            if not np.array_equal(_picked(at, n, attrs), np.arange(extent) // (extent // n)):
                return None
        counts.append(extent // n)
    return tuple(counts)


def steps(
    shape: tuple[int, ...], scales: np.ndarray | None, sizes: tuple[int, ...] | None, attrs: Attrs
) -> list[tuple[int, np.ndarray]]:
    """What happens along each axis that changes: (axis, indices or a matrix [outputs, inputs]).

    Not for tf_crop_and_resize, whose region is an operand of its own.
    """
    found = []
    factors, extents = _targets(shape, scales, sizes, attrs)
    for axis, (n, extent, factor) in enumerate(zip(shape, extents, factors, strict=True)):
        if factor == 1 and extent == n:
            continue
        mode = attrs["coordinate_transformation_mode"]
        at = _coordinates(n, extent, factor, (0.0, 1.0), mode)
        nearest = attrs["mode"] == "nearest"
        found.append((axis, _picked(at, n, attrs) if nearest else _weights(at, n, factor, attrs)))
    return found


def _picked(at: np.ndarray, n: int, attrs: Attrs) -> np.ndarray:
    """The input that each output is nearest to."""
    index = _ROUNDING[attrs["nearest_mode"]](at).astype(np.int64)
    return np.clip(index, 0, n - 1)


def _axes(rank: int, attrs: Attrs) -> list[int]:
    return [axis_of(a, rank) for a in (attrs["axes"] or range(rank))]


def _targets(
    shape: tuple[int, ...], scales: np.ndarray | None, sizes: tuple[int, ...] | None, attrs: Attrs
) -> tuple[list[float], tuple[int, ...]]:
    """Scale factor and output extent of every dimension."""
    axes = _axes(len(shape), attrs)
    factors, extents = [1.0] * len(shape), list(shape)
    given = sizes if scales is None else scales
    assert given is not None
    check(len(given) == len(axes), f"{len(given)} factors for {len(axes)} axes", "one per axis")
    if scales is not None:
        for axis, scale in zip(axes, scales, strict=True):
            factors[axis] = float(scale)
            extents[axis] = int(np.floor(shape[axis] * scale))
        return factors, tuple(extents)
    assert sizes is not None
    ratios = [size / shape[axis] for axis, size in zip(axes, sizes, strict=True)]
    policy = attrs["keep_aspect_ratio_policy"]
    for axis, size, ratio in zip(axes, sizes, ratios, strict=True):
        if policy == "stretch":
            factors[axis], extents[axis] = ratio, size
        else:
            common = min(ratios) if policy == "not_larger" else max(ratios)
            factors[axis], extents[axis] = common, int(np.floor(common * shape[axis] + 0.5))
    return factors, tuple(extents)


def _coordinates(
    n: int, extent: int, scale: float, region: tuple[float, float], mode: str
) -> np.ndarray:
    """Where each of `extent` outputs lies on an input of extent `n`."""
    x = np.arange(extent, dtype=np.float64)
    length = scale * n
    if mode == "asymmetric":
        return x / scale
    if mode == "align_corners":
        return x * 0 if length == 1 else x * (n - 1) / (length - 1)
    if mode == "tf_crop_and_resize":
        start, end = region
        if extent == 1:
            return x + (start + end) * (n - 1) / 2
        return start * (n - 1) + x * (end - start) * (n - 1) / (extent - 1)
    if mode == "pytorch_half_pixel" and extent == 1:
        return x * 0 - 0.5
    offset = n / 2 * (1 - extent / length) if mode == "half_pixel_symmetric" else 0.0
    return offset + (x + 0.5) / scale - 0.5


def _along(
    x: np.ndarray, axis: int, extent: int, scale: float, region: tuple[float, float], attrs: Attrs
) -> np.ndarray:
    """`x` resized along one dimension."""
    n, mode = x.shape[axis], attrs["coordinate_transformation_mode"]
    at = _coordinates(n, extent, scale, region, mode)
    if attrs["mode"] == "nearest":
        y = np.take(x, _picked(at, n, attrs), axis)
    else:
        weights = _weights(at, n, scale, attrs).astype(x.dtype if x.dtype.kind == "f" else float)
        y = np.moveaxis(np.moveaxis(x, axis, -1) @ weights.T, -1, axis)
    outside = (at < 0) | (at > n - 1)
    if mode == "tf_crop_and_resize" and outside.any():
        y = y.copy()
        np.moveaxis(y, axis, -1)[..., outside] = attrs["extrapolation_value"]
    return y


def _weights(at: np.ndarray, n: int, scale: float, attrs: Attrs) -> np.ndarray:
    """Interpolation matrix [outputs, n]: the kernel around each coordinate, edges repeated."""
    reach = _REACH[attrs["mode"]]
    stretch = max(1.0, 1 / scale) if attrs["antialias"] else 1.0
    taps = np.arange(-int(np.ceil(reach * stretch)), int(np.ceil(reach * stretch)) + 1)
    index = np.floor(at).astype(np.int64)[:, None] + taps
    distance = np.abs(index - at[:, None]) / stretch
    if attrs["mode"] == "linear":
        values = np.clip(1 - distance, 0, None)
    else:
        values = _cubic(distance, attrs["cubic_coeff_a"])
    if attrs["exclude_outside"]:
        values = np.where((index < 0) | (index >= n), 0, values)
    values = values / values.sum(1, keepdims=True)
    matrix = np.zeros((len(at), n))
    np.add.at(matrix, (np.arange(len(at))[:, None], np.clip(index, 0, n - 1)), values)
    return matrix


def _cubic(d: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic convolution kernel."""
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = a * (((d - 5) * d + 8) * d - 4)
    return np.where(d <= 1, near, np.where(d < 2, far, 0))
