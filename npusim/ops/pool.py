"""Pooling. Maxima and sums are separable: one pass of strided views per spatial dimension."""

from __future__ import annotations

from math import prod

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.common import check
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema
from npusim.ops.window import WINDOW_ATTRS, Window


def pool_window(x: TensorType, attrs: Attrs) -> Window:
    """The window of a pool over `x` [N, C, *size]."""
    check(
        len(x.shape) == len(attrs["kernel_shape"]) + 2,
        f"input {x.shape} with kernel_shape {attrs['kernel_shape']}",
        "[N, C, spatial …] with one kernel extent per spatial dimension",
    )
    return Window.of(x.shape[2:], tuple(attrs["kernel_shape"]), attrs)


def _fold(x: np.ndarray, window: Window, ufunc: np.ufunc, fill: float) -> np.ndarray:
    """Fold every window of `x` by `ufunc`, padding counting as `fill`."""
    y = window.padded(x, fill)
    for axis, taps in enumerate(window.kernel):
        before = (slice(None),) * (axis + 2)
        total = y[(*before, window.along(axis, 0))].copy()
        for tap in range(1, taps):
            ufunc(total, y[(*before, window.along(axis, tap))], out=total)
        y = total
    return y


class _Pool(Operator):
    """Base of the windowed pools."""

    attrs = schema(**{**WINDOW_ATTRS, "kernel_shape": ...}, ceil_mode=0)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t = x.type(0)
        shape = (*t.shape[:2], *pool_window(t, attrs).out)
        return [TensorType(shape, t.dtype), TensorType(shape, DType.INT64)][:n_outputs]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=out[0].size * prod(attrs["kernel_shape"]))


@operator("MaxPool")
class MaxPool(_Pool):
    """Largest element of each window; optionally its place in the flattened input too."""

    attrs = schema(**_Pool.attrs, storage_order=0)

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        window = Window.of(x[0].shape[2:], tuple(attrs["kernel_shape"]), attrs)
        kind = x[0].dtype
        lowest = -np.inf if kind.kind == "f" else np.iinfo(kind).min
        y = _fold(x[0], window, np.maximum, lowest)
        if len(out) == 1:
            return [y]
        return [y, _places(x[0], window, y, bool(attrs["storage_order"]))]


def _places(x: np.ndarray, window: Window, y: np.ndarray, columns_first: bool) -> np.ndarray:
    """Where in the flattened input the first of each window's maxima `y` lies."""
    n, flat = prod(window.size), np.arange(prod(window.size))
    spatial = flat.reshape(window.size[::-1]).T if columns_first else flat.reshape(window.size)
    first_of = n * np.arange(prod(x.shape[:2]))
    planes = first_of.reshape(*x.shape[:2], *(1,) * len(window.size))
    values, index = window.padded(x), window.padded(planes + spatial, -1)
    found = np.full(y.shape, -1, np.int64)
    for position in window.positions():
        at = window.view(index, position)
        first = (found < 0) & (at >= 0) & (window.view(values, position) == y)
        found[first] = at[first]
    return found


@operator("AveragePool")
class AveragePool(_Pool):
    """Mean of each window, over the input alone or (count_include_pad) the padded input."""

    attrs = schema(**_Pool.attrs, count_include_pad=0)

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        window = Window.of(x[0].shape[2:], tuple(attrs["kernel_shape"]), attrs)
        y = _fold(x[0], window, np.add, 0)
        for axis in range(len(window.kernel)):
            count = _counts(window, axis, bool(attrs["count_include_pad"])).astype(y.dtype)
            y /= count.reshape(-1, *(1,) * (len(window.kernel) - axis - 1))
        return [y]


@operator("LpPool")
class LpPool(_Pool):
    """p-norm of each window."""

    attrs = schema(**_Pool.attrs, p=2)

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        window = Window.of(x[0].shape[2:], tuple(attrs["kernel_shape"]), attrs)
        powers = np.abs(x[0]) ** attrs["p"]
        return [_fold(powers, window, np.add, 0) ** (1 / attrs["p"])]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=2 * x[0].size + _Pool.work(x, out, attrs).vector_ops + out[0].size)


def _counts(window: Window, axis: int, include_pad: bool) -> np.ndarray:
    """Per output index, how many taps of dimension `axis` count."""
    starts = np.arange(window.out[axis]) * window.strides[axis] - window.begin[axis]
    taps = starts[:, None] + np.arange(window.kernel[axis]) * window.dilations[axis]
    low = -window.begin[axis] if include_pad else 0
    high = window.size[axis] + (window.end[axis] if include_pad else 0)
    return ((taps >= low) & (taps < high)).sum(1)


class _GlobalPool(Operator):
    """Base of the pools over all spatial dimensions."""

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t = x.type(0)
        check(len(t.shape) >= 2, f"a global pool of {t.shape}", "[N, C, spatial …]")
        return [TensorType(t.shape[:2] + (1,) * (len(t.shape) - 2), t.dtype)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=x[0].size)


@operator("GlobalAveragePool")
class GlobalAveragePool(_GlobalPool):
    """Mean over all spatial dimensions."""

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [x[0].mean(tuple(range(2, x[0].ndim)), keepdims=True)]


@operator("GlobalMaxPool")
class GlobalMaxPool(_GlobalPool):
    """Maximum over all spatial dimensions."""

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [x[0].max(tuple(range(2, x[0].ndim)), keepdims=True)]
