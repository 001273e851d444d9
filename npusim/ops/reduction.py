"""Reductions, arg-reductions and cumulative sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.common import axes_of, axis_of, check, ints, static_ints
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema

Axes = tuple[int, ...]


def _reduced(shape: tuple[int, ...], axes: Axes, keep: bool) -> tuple[int, ...]:
    if keep:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _chosen(axes: tuple[int, ...], rank: int, attrs: Attrs) -> Axes:
    """The axes to reduce: all when none are given, unless noop_with_empty_axes."""
    if not axes:
        return () if attrs["noop_with_empty_axes"] else tuple(range(rank))
    return axes_of(axes, rank)


def _lowest(x: np.ndarray) -> Any:
    if x.dtype.kind == "b":
        return False
    return -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min


def _highest(x: np.ndarray) -> Any:
    if x.dtype.kind == "b":
        return True
    return np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).max


def _mean(x: np.ndarray, axes: Axes) -> np.ndarray:
    if not x.size:  # NaN, without numpy's warning
        return np.asarray(np.divide(x.sum(axes, keepdims=True), 0))
    return np.asarray(x.mean(axes, keepdims=True))


def _log_sum_exp(x: np.ndarray, axes: Axes) -> np.ndarray:
    top = x.max(axes, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0).astype(x.dtype)
    return np.log(np.exp(x - top).sum(axes, keepdims=True)) + top


def _reduction(
    op_type: str, fn: Callable[[np.ndarray, Axes], np.ndarray], passes: int = 1, final: int = 0
) -> None:
    """Declare a reduction: `fn(x, axes)` keeps the reduced dimensions as 1.

    Args:
        op_type: the operator's name.
        fn: numpy semantics.
        passes: vector operations per input element.
        final: vector operations per output element.
    """

    class Reduction(Operator):
        attrs = schema(keepdims=1, noop_with_empty_axes=0)

        @staticmethod
        def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
            t = x.type(0)
            given = static_ints(x, 1, "axes") if x.has(1) else ()
            axes = _chosen(given, len(t.shape), attrs)
            return [TensorType(_reduced(t.shape, axes, bool(attrs["keepdims"])), t.dtype)]

        @staticmethod
        def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
            given = ints(x[1]) if len(x) > 1 and x[1] is not None else ()
            axes = _chosen(given, x[0].ndim, attrs)
            shape = _reduced(x[0].shape, axes, bool(attrs["keepdims"]))
            return [np.asarray(fn(x[0], axes)).reshape(shape)]

        @staticmethod
        def work(x: Types, out: Types, attrs: Attrs) -> Work:
            return Work(vector_ops=passes * x[0].size + final * out[0].size)

    Reduction.__name__ = Reduction.__qualname__ = op_type
    Reduction.__doc__ = f"{op_type}: axes are the second input; absent means all."
    operator(op_type)(Reduction)


_reduction("ReduceSum", lambda x, a: x.sum(a, keepdims=True, dtype=x.dtype))
_reduction("ReduceMean", _mean, final=1)
_reduction("ReduceMax", lambda x, a: x.max(a, keepdims=True, initial=_lowest(x)))
_reduction("ReduceMin", lambda x, a: x.min(a, keepdims=True, initial=_highest(x)))
_reduction("ReduceProd", lambda x, a: x.prod(a, keepdims=True, dtype=x.dtype))
_reduction("ReduceL1", lambda x, a: np.abs(x).sum(a, keepdims=True, dtype=x.dtype), 2)
_reduction("ReduceL2", lambda x, a: np.sqrt(np.square(x).sum(a, keepdims=True)), 2, 1)
_reduction("ReduceSumSquare", lambda x, a: np.square(x).sum(a, keepdims=True, dtype=x.dtype), 2)
_reduction("ReduceLogSum", lambda x, a: np.log(x.sum(a, keepdims=True)), 1, 1)
_reduction("ReduceLogSumExp", _log_sum_exp, 4, 2)


class _ArgReduction(Operator):
    """Base of ArgMax and ArgMin: the index of the extreme element along `axis`."""

    attrs = schema(axis=0, keepdims=1, select_last_index=0)
    pick: Any

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        shape = x.type(0).shape
        axes = (axis_of(attrs["axis"], len(shape)),)
        return [TensorType(_reduced(shape, axes, bool(attrs["keepdims"])), DType.INT64)]

    @classmethod
    def compute(cls, x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        data, axis = x[0], attrs["axis"]
        if attrs["select_last_index"]:
            index = data.shape[axis] - 1 - cls.pick(np.flip(data, axis), axis)
        else:
            index = cls.pick(data, axis)
        return [np.expand_dims(index, axis) if attrs["keepdims"] else np.asarray(index)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=2 * x[0].size)


@operator("ArgMax")
class ArgMax(_ArgReduction):
    """Index of the largest element."""

    pick = staticmethod(np.argmax)


@operator("ArgMin")
class ArgMin(_ArgReduction):
    """Index of the smallest element."""

    pick = staticmethod(np.argmin)


class _Cumulative(Operator):
    """Base of CumSum and CumProd: a running fold along the axis that the second input names."""

    attrs = schema(exclusive=0, reverse=0)
    fold: np.ufunc
    start: int

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        check(x.type(1).size == 1, f"axis of shape {x.type(1).shape}", "one number")
        return [x.type(0)]

    @classmethod
    def compute(cls, x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        axis = axis_of(ints(x[1])[0], x[0].ndim)
        data = np.flip(x[0], axis) if attrs["reverse"] else x[0]
        if attrs["exclusive"]:
            first = np.full_like(np.take(data, [0] if data.shape[axis] else [], axis), cls.start)
            kept = np.take(data, np.arange(max(data.shape[axis] - 1, 0)), axis)
            data = np.concatenate([first, kept], axis)
        total = cls.fold.accumulate(data, axis, dtype=data.dtype)
        return [np.flip(total, axis) if attrs["reverse"] else total]


@operator("CumSum")
class CumSum(_Cumulative):
    """Running sum."""

    fold, start = np.add, 0


@operator("CumProd")
class CumProd(_Cumulative):
    """Running product."""

    fold, start = np.multiply, 1
