"""Quantised tensors: to and from integers, and integer products with their int32 sums.

Integer products subtract zero points first and sum in int32, as ONNX defines them. Sums are made
in fp64 by BLAS: exact below 2^53, and 2^31 is where int32 wraps.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from npusim.ir import DType, TensorType
from npusim.ir.narrow import INTEGERS, narrowed
from npusim.ops.common import axis_of, check, supported
from npusim.ops.conv import BYTES, Conv
from npusim.ops.matmul import matmul_shape, product
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema
from npusim.ops.window import WINDOW_ATTRS


def integer_range(dtype: DType) -> tuple[int, int]:
    """The least and the largest value of an integer type."""
    limits = ml_dtypes.iinfo(dtype.np) if dtype.value in INTEGERS else np.iinfo(dtype.np)
    return int(limits.min), int(limits.max)


def spread_scale(scale: np.ndarray, shape: Sequence[int], axis: int, block: int) -> np.ndarray:
    """A scale or zero point, in a shape that broadcasts to the tensor's.

    One value; one per index of `axis`; or, with `block`, one per `block` neighbours along it.

    Raises:
        GraphError: it has another shape.
    """
    if scale.size == 1 and not block:
        return scale.reshape(())
    axis = axis_of(axis, len(shape))
    if not block:
        check(scale.shape == (shape[axis],), f"scales {scale.shape}", f"({shape[axis]},)")
        return scale.reshape(-1, *(1,) * (len(shape) - axis - 1))
    fits = scale.ndim == len(shape) and -(-shape[axis] // block) == scale.shape[axis]
    check(fits, f"scales {scale.shape} of blocks of {block} in {tuple(shape)}", "one per block")
    return scale.repeat(block, axis).take(range(shape[axis]), axis)


def quantized(
    x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None, to: DType, saturate: bool = True
) -> np.ndarray:
    """x / scale + zero, rounded half to even and saturated; floats narrow as in a Cast."""
    return rounded(x / scale, zero, to, saturate)


def rounded(y: np.ndarray, zero: np.ndarray | None, to: DType, saturate: bool = True) -> np.ndarray:
    """y, rounded, + zero in a quantised type."""
    if to.is_narrow and to.value not in INTEGERS:
        return narrowed(y, to.np, saturate)
    low, high = integer_range(to)
    shift = 0 if zero is None else zero.astype(np.float64)
    return np.clip(np.rint(y) + shift, low, high).astype(np.int64).astype(to.np)


@operator("QuantizeLinear")
class QuantizeLinear(Operator):
    """saturate(round(x / scale) + zero point); scale per tensor, along an axis or in blocks.

    `output_dtype` is the type without a zero point (uint8 by default); `precision` is the type of
    the division, by default that of x.
    """

    attrs = schema(axis=1, block_size=0, output_dtype=None, precision=None, saturate=1)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        to = DType.of(attrs["output_dtype"] or DType.UINT8)
        to = x.type(2).dtype if x.has(2) else to
        supported(
            to.is_narrow or to.np.kind in "iu",
            f"QuantizeLinear to {to.value}",
            "integers of 16 bits at most, fp8 and fp4",
        )
        return [TensorType(x.type(0).shape, to)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        where = (x[0].shape, attrs["axis"], attrs["block_size"])
        scale = spread_scale(x[1], *where)
        zero = spread_scale(x[2], *where) if len(x) > 2 and x[2] is not None else None
        return [quantized(x[0], scale, zero, out[0].dtype, bool(attrs["saturate"]))]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=3 * out[0].size)


@operator("DequantizeLinear")
class DequantizeLinear(Operator):
    """(x - zero point) · scale, in the scale's type or `output_dtype`."""

    attrs = schema(axis=1, block_size=0, output_dtype=None)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        to = attrs["output_dtype"]
        return [TensorType(x.type(0).shape, DType.of(to) if to else x.type(1).dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        where = (x[0].shape, attrs["axis"], attrs["block_size"])
        wide = x[0].astype(np.float32)
        if len(x) > 2 and x[2] is not None:
            wide = wide - spread_scale(x[2], *where).astype(np.float32)
        return [wide * spread_scale(x[1], *where)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=2 * out[0].size)


def _check_bytes(x: Inputs, *operands: int) -> None:
    for i in operands:
        supported(x.type(i).dtype in BYTES, f"a product of {x.type(i).dtype.value}", "int8, uint8")


def shifted(x: np.ndarray, zero: np.ndarray | None, axis: int) -> np.ndarray:
    """x - zero point in fp64; several zero points lie along `axis`."""
    wide = x.astype(np.float64)
    if zero is None:
        return wide
    shape = [1] * max(x.ndim, 1)
    if zero.ndim == 1 and zero.size > 1:
        shape[axis] = zero.size
        zero = zero.reshape(shape)
    elif zero.size == 1:
        zero = zero.reshape(())
    return wide - zero


def _optional(x: Arrays, i: int) -> np.ndarray | None:
    return x[i] if len(x) > i else None


@operator("MatMulInteger")
class MatMulInteger(Operator):
    """(A - a_zero_point) · (B - b_zero_point) of int8 or uint8, in int32.

    Zero points: one, or one per row of A, per column of B.
    """

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        _check_bytes(x, 0, 1)
        return [TensorType(matmul_shape(x.type(0).shape, x.type(1).shape), DType.INT32)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        a = shifted(x[0], _optional(x, 2), -2)
        b = shifted(x[1], _optional(x, 3), -1)
        return [product(a, b).astype(np.int64).astype(np.int32)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(macs=out[0].size * x[0].shape[-1])


@operator("MatMulV2")
class MatMulV2(Operator):
    """CANN's product of int8 or uint8 matrices: A · B' (+ bias) in int32, where B' is B transposed
    (`transB`). MatMulInteger becomes one, its zero points corrected beside it."""

    attrs = schema(transB=0)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        _check_bytes(x, 0, 1)
        b = x.type(1).shape
        b = (*b[:-2], b[-1], b[-2]) if attrs["transB"] else b
        return [TensorType(matmul_shape(x.type(0).shape, b), DType.INT32)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        a, b = (v.astype(np.float64) for v in x[:2])
        y = product(a, b.swapaxes(-1, -2) if attrs["transB"] else b)
        bias = _optional(x, 2)
        y = y if bias is None else y + bias
        return [y.astype(np.int64).astype(np.int32)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(macs=out[0].size * x[0].shape[-1])


@operator("QLinearMatMul")
class QLinearMatMul(Operator):
    """A product of quantised matrices, quantised again.

    a, its scale and zero point; b, its scale and zero point; the result's scale and zero point.
    """

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        _check_bytes(x, 0, 3, 7)
        shape = matmul_shape(x.type(0).shape, x.type(3).shape)
        return [TensorType(shape, x.type(7).dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        sums = product(shifted(x[0], x[2], -2), shifted(x[3], x[5], -1))
        a, b = _along(x[1], -2), _along(x[4], -1)
        return [rounded(sums * (a * b / x[6]), x[7], out[0].dtype)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(out[0].size * x[0].shape[-1], 3 * out[0].size)


def _along(scale: np.ndarray, axis: int) -> np.ndarray:
    """A scale, or several of the rows (-2) or columns (-1)."""
    if scale.size == 1:
        return scale.reshape(())
    return scale[:, None] if scale.ndim == 1 and axis == -2 else scale


def _conv_sums(x: np.ndarray, w: np.ndarray, attrs: Attrs, out: Types) -> np.ndarray:
    (y,) = Conv.compute([np.ascontiguousarray(x), w], attrs, out)
    return y


@operator("ConvInteger")
class ConvInteger(Operator):
    """A convolution of int8 or uint8 in int32: x, w[, zero points of x, of w].

    A zero point of w per output channel; padding counts as x's zero point.
    """

    attrs = schema(**WINDOW_ATTRS, group=1)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        _check_bytes(x, 0, 1)
        two = Inputs(x.types[:2], (None, None))
        (t,) = Conv.infer(two, attrs, 1)
        return [TensorType(t.shape, DType.INT32)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        data, w = shifted(x[0], _optional(x, 2), 1), shifted(x[1], _optional(x, 3), 0)
        return [_conv_sums(data, w, attrs, out).astype(np.int64).astype(np.int32)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Conv.work(x[:2], out, attrs)


@operator("QLinearConv")
class QLinearConv(Operator):
    """A convolution of quantised tensors, quantised again.

    x, its scale and zero point; w, its scales and zero points (one, or one per output channel);
    the result's scale and zero point; an int32 bias.
    """

    attrs = schema(**WINDOW_ATTRS, group=1)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        _check_bytes(x, 0, 3, 7)
        two = Inputs((x.types[0], x.types[3]), (None, None))
        (t,) = Conv.infer(two, attrs, 1)
        return [TensorType(t.shape, x.type(7).dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        rank = x[0].ndim - 2
        y = _conv_sums(shifted(x[0], x[2], 1), shifted(x[3], x[5], 0), attrs, out)
        bias = _optional(x, 8)
        if bias is not None:
            y = y + bias.reshape(-1, *(1,) * rank)
        scale = x[1] * x[4] / x[6]
        if scale.size > 1:
            scale = scale.reshape(-1, *(1,) * rank)
        return [rounded(y * scale, x[7], out[0].dtype)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        macs = Conv.work([x[0], x[3]], out, attrs).macs
        return Work(macs, 3 * out[0].size)
