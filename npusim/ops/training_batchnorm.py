"""Batch normalisation in training, split as CANN splits it; channel operands are (1, C, 1, 1).

Statistics are fp32 sums; the fused forms also write ReLU's mask, one bit per element, packed over
16 channels into two bytes: (N, C1, H, W, 2).
"""

from __future__ import annotations

from math import prod

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.common import check
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema

AXES = (0, 2, 3)


def _channel(x: Inputs) -> TensorType:
    """The type of a per-channel fp32 operand of image 0."""
    shape = x.type(0).shape
    check(len(shape) == 4, f"input of shape {shape}", "[N, C, H, W]")
    return TensorType((1, shape[1], 1, 1), DType.FLOAT32)


def _check_channels(x: Inputs, operands: range) -> None:
    want = _channel(x).shape
    for i in operands:
        check(x.type(i).shape == want, f"operand {i} of shape {x.type(i).shape}", f"{want}")


class _PerElement(Operator):
    """Base: `passes` vector operations per element of the image."""

    passes = 4

    @classmethod
    def work(cls, x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=cls.passes * x[0].size)


@operator("BNTrainingReduce")
class BNTrainingReduce(_PerElement):
    """Sum and sum of squares of every channel."""

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        return [_channel(x)] * 2

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [x[0].sum(AXES, keepdims=True), np.square(x[0]).sum(AXES, keepdims=True)]


def _moments(x: Arrays) -> tuple[np.ndarray, np.ndarray, int]:
    """Mean and variance from the sums, and how many elements they cover."""
    count = x[0].size // x[0].shape[1]
    mean = x[1] / np.float32(count)
    return mean, x[2] / np.float32(count) - mean * mean, count


def _statistics(x: Arrays, attrs: Attrs) -> list[np.ndarray]:
    """Running mean, running variance, batch mean, batch variance."""
    mean, variance, count = _moments(x)
    factor = np.float32(attrs["factor"])
    unbiased = variance * np.float32(count / max(1, count - 1))
    running = [(1 - factor) * x[5] + factor * mean, (1 - factor) * x[6] + factor * unbiased]
    return [*running, mean, variance]


def _normalised(x: Arrays, attrs: Attrs) -> np.ndarray:
    mean, variance, _ = _moments(x)
    factor = x[3] / np.sqrt(variance + np.float32(attrs["epsilon"]))
    return x[0] * factor + (x[4] - mean * factor)


@operator("BNTrainingUpdate")
class BNTrainingUpdate(_PerElement):
    """x, sum, square sum, scale, offset, running mean, running variance → y and four statistics."""

    attrs = schema(factor=0.1, epsilon=1e-5)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        _check_channels(x, range(1, 7))
        return [x.type(0), *[_channel(x)] * 4]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [_normalised(x, attrs), *_statistics(x, attrs)]


def _mask(y: np.ndarray) -> np.ndarray:
    """One bit per element > 0, over blocks of 16 channels: (N, C1, H, W, 2)."""
    n, c, h, w = y.shape
    blocks = (y > 0).reshape(n, c // 16, 16, h, w).transpose(0, 1, 3, 4, 2)
    return np.packbits(blocks, axis=-1, bitorder="little")


@operator("FusionOp_BNTrainingUpdate_ReLUV2")
class BNTrainingUpdateReLU(_PerElement):
    """BNTrainingUpdate with ReLU: four statistics, y, mask."""

    attrs = schema(factor=0.1, epsilon=1e-5)
    passes = 6

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        _check_channels(x, range(1, 7))
        n, c, h, w = x.type(0).shape
        check(c % 16 == 0, f"{c} channels", "a multiple of 16, for the mask")
        mask = TensorType((n, c // 16, h, w, 2), DType.UINT8)
        return [*[_channel(x)] * 4, x.type(0), mask]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        y = _normalised(x, attrs)
        return [*_statistics(x, attrs), np.maximum(y, 0), _mask(y)]


@operator("FusionOp_BNTrainingUpdate_Add_ReLUV2")
class BNTrainingUpdateAddReLU(BNTrainingUpdateReLU):
    """As above, a residual (input 7) added before ReLU."""

    passes = 7

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        y = _normalised(x, attrs) + x[7]
        return [*_statistics(x, attrs), np.maximum(y, 0), _mask(y)]


@operator("BNTrainingUpdateGrad")
class BNTrainingUpdateGrad(_PerElement):
    """Gradient, x, batch mean, batch variance → gradients of scale and offset."""

    attrs = schema(epsilon=1e-4)
    passes = 7

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        _check_channels(x, range(2, 4))
        return [_channel(x)] * 2

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        gradient, data, mean, variance = x
        standard = (data - mean) / np.sqrt(variance + np.float32(attrs["epsilon"]))
        return [(gradient * standard).sum(AXES, keepdims=True), gradient.sum(AXES, keepdims=True)]


@operator("BNTrainingReduceGrad")
class BNTrainingReduceGrad(_PerElement):
    """Gradient, x, gradients of scale and offset, scale, batch mean, batch variance → of x."""

    attrs = schema(epsilon=1e-4)
    passes = 7

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        _check_channels(x, range(2, 7))
        return [x.type(0)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        gradient, data, d_scale, d_offset, scale, mean, variance = x
        shape = data.shape
        count = np.float32(prod(shape) // shape[1])
        inverse = 1 / np.sqrt(variance + np.float32(attrs["epsilon"]))
        standard = (data - mean) * inverse
        return [(gradient - d_offset / count - standard * d_scale / count) * scale * inverse]
