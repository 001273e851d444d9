"""Normalisations. Statistics are taken in fp32 (fp64 inputs stay fp64)."""

from __future__ import annotations

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.common import axis_of, check, supported
from npusim.ops.registry import (
    Arrays,
    Attrs,
    Inputs,
    Operator,
    Types,
    Work,
    broadcast,
    operator,
    schema,
)


def _channelwise(v: np.ndarray, rank: int) -> np.ndarray:
    """A vector over dimension 1 of a rank-`rank` tensor."""
    return v.reshape(-1, *(1,) * (rank - 2))


def _standardised(
    x: np.ndarray, axes: tuple[int, ...], epsilon: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x - mean) / sqrt(var + epsilon) over `axes`, the mean, and the inverse deviation."""
    if not x.size:
        nothing = x.sum(axes, keepdims=True) * x.dtype.type(np.nan)
        return x.copy(), nothing, nothing
    mean = x.mean(axes, keepdims=True)
    y = x - mean
    variance = np.square(y).mean(axes, keepdims=True)
    inverse = np.reciprocal(np.sqrt(variance + x.dtype.type(epsilon)))
    y *= inverse
    return y, mean, inverse


class _Normalization(Operator):
    """Base: one output like the input; eight vector passes."""

    passes = 8

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        return [x.type(0)]

    @classmethod
    def work(cls, x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=cls.passes * out[0].size)


def _check_channels(x: Inputs, count: int) -> None:
    shape = x.type(0).shape
    check(len(shape) >= 2, f"input of shape {shape}", "[N, C, …]")
    for i in range(1, count + 1):
        given = x.type(i).shape
        check(given == shape[1:2], f"operand {i} of shape {given}", f"({shape[1]},)")


@operator("BatchNormalization")
class BatchNormalization(_Normalization):
    """Inference form: a scale and a shift per channel, from the running statistics.

    A model in training mode has means of its own input in their place, as nodes before this one.
    """

    attrs = schema(epsilon=1e-5, momentum=0.9, training_mode=0)
    passes = 2

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        supported(
            not attrs["training_mode"] and n_outputs == 1,
            "BatchNormalization in training mode",
            "training_mode=0 with one output",
            "export the model for inference",
        )
        shape = x.type(0).shape
        if len(shape) > 1:
            _check_channels(x, 4)
        return [x.type(0)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        data, scale, bias, mean, variance = x
        factor = scale / np.sqrt(variance + variance.dtype.type(attrs["epsilon"]))
        shift = bias - mean * factor
        y = data * _channelwise(factor, data.ndim)
        y += _channelwise(shift, data.ndim)
        return [y]


@operator("InstanceNormalization")
class InstanceNormalization(_Normalization):
    """Over the spatial dimensions of each channel."""

    attrs = schema(epsilon=1e-5)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        _check_channels(x, 2)
        return [x.type(0)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        data, scale, bias = x
        y, _, _ = _standardised(data, tuple(range(2, data.ndim)), attrs["epsilon"])
        return [y * _channelwise(scale, data.ndim) + _channelwise(bias, data.ndim)]


@operator("GroupNormalization")
class GroupNormalization(_Normalization):
    """Over groups of channels; scale and bias per channel (opset 21)."""

    attrs = schema(epsilon=1e-5, num_groups=..., stash_type=1)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        _check_channels(x, 2)
        channels, groups = x.type(0).shape[1], attrs["num_groups"]
        check(
            groups > 0 and channels % groups == 0,
            f"{channels} channels in {groups} groups",
            "a divisor of the channels",
        )
        return [x.type(0)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        data, scale, bias = x
        grouped = data.reshape(len(data), attrs["num_groups"], -1)
        y, _, _ = _standardised(grouped, (2,), attrs["epsilon"])
        y = y.reshape(data.shape)
        return [y * _channelwise(scale, data.ndim) + _channelwise(bias, data.ndim)]


def _check_broadcast(x: Inputs, operands: int) -> None:
    shape = x.type(0).shape
    x.type(1)
    for i in range(1, 1 + operands):
        if x.has(i):
            given = x.type(i).shape
            fits = broadcast(given, shape) == shape
            check(fits, f"operand {i} of shape {given} for {shape}", "one that broadcasts to it")


@operator("LayerNormalization")
class LayerNormalization(_Normalization):
    """Over the dimensions from `axis` on; optional outputs: mean, inverse deviation."""

    attrs = schema(axis=-1, epsilon=1e-5, stash_type=1)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t = x.type(0)
        axis = axis_of(attrs["axis"], len(t.shape))
        _check_broadcast(x, 2)
        kept = t.shape[:axis] + (1,) * (len(t.shape) - axis)
        dtype = t.dtype if t.dtype is DType.FLOAT64 else DType.FLOAT32
        return [t, *[TensorType(kept, dtype)] * 2][:n_outputs]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        data = x[0]
        axes = tuple(range(axis_of(attrs["axis"], data.ndim), data.ndim))
        y, mean, inverse = _standardised(data, axes, attrs["epsilon"])
        y *= x[1]
        if len(x) > 2 and x[2] is not None:
            y += x[2]
        return [y, mean, inverse][: len(out)]


@operator("RMSNormalization")
class RMSNormalization(_Normalization):
    """x / sqrt(mean(x²) + epsilon) · scale, over the dimensions from `axis` on."""

    attrs = schema(axis=-1, epsilon=1e-5, stash_type=1)
    passes = 5

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        axis_of(attrs["axis"], len(x.type(0).shape))
        _check_broadcast(x, 1)
        return [x.type(0)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        data, scale = x
        axes = tuple(range(axis_of(attrs["axis"], data.ndim), data.ndim))
        square = np.square(data).mean(axes, keepdims=True)
        y = data / np.sqrt(square + data.dtype.type(attrs["epsilon"]))
        y *= scale
        return [y]


@operator("LpNormalization")
class LpNormalization(_Normalization):
    """x divided by its L1 or L2 norm along one axis; zeros stay zero."""

    attrs = schema(axis=-1, p=2)
    passes = 4

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        data, axis = x[0], attrs["axis"]
        supported(attrs["p"] in (1, 2), f"LpNormalization with p={attrs['p']}", "p = 1 or 2")
        if attrs["p"] == 1:
            norm = np.abs(data).sum(axis, keepdims=True)
        else:
            norm = np.sqrt(np.square(data).sum(axis, keepdims=True))
        return [np.where(norm == 0, 0, data / norm).astype(data.dtype)]


@operator("MeanVarianceNormalization")
class MeanVarianceNormalization(_Normalization):
    """Over `axes`, without scale or bias."""

    attrs = schema(axes=(0, 2, 3))

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [_standardised(x[0], tuple(attrs["axes"]), 1e-9)[0]]


@operator("LRN")
class LRN(_Normalization):
    """Local response normalisation across neighbouring channels."""

    attrs = schema(alpha=0.0001, beta=0.75, bias=1.0, size=...)

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        data, size = x[0], attrs["size"]
        before, channels = (size - 1) // 2, data.shape[1]
        square = np.square(data)
        total = np.zeros_like(data)
        for tap in range(size):
            shift = tap - before
            low, high = max(0, -shift), min(channels, channels - shift)
            if low < high:
                total[:, low:high] += square[:, low + shift : high + shift]
        total *= attrs["alpha"] / size
        total += attrs["bias"]
        return [data * total ** -data.dtype.type(attrs["beta"])]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=out[0].size * (attrs["size"] + 5))


class _SoftmaxLike(_Normalization):
    """Base of the operators that normalise along one axis."""

    attrs = schema(axis=-1)
    passes = 5

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        axis_of(attrs["axis"], len(x.type(0).shape))
        return [x.type(0)]


@operator("Softmax")
class Softmax(_SoftmaxLike):
    """e^x over its sum along `axis`, shifted by the maximum."""

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        y = x[0] - x[0].max(attrs["axis"], keepdims=True, initial=-np.inf)
        np.exp(y, out=y)
        y /= y.sum(attrs["axis"], keepdims=True)
        return [y]


@operator("LogSoftmax")
class LogSoftmax(_SoftmaxLike):
    """Logarithm of the softmax."""

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        y = x[0] - x[0].max(attrs["axis"], keepdims=True, initial=-np.inf)
        y -= np.log(np.exp(y).sum(attrs["axis"], keepdims=True))
        return [y]


@operator("Hardmax")
class Hardmax(_SoftmaxLike):
    """1 at the first maximum along `axis`, else 0."""

    passes = 2

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        y = np.zeros_like(x[0])
        index = np.expand_dims(x[0].argmax(attrs["axis"]), attrs["axis"])
        np.put_along_axis(y, index, 1, attrs["axis"])
        return [y]
