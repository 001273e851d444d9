"""Operators with a bit mask (one bit an element, lowest bit first), and sums of squares."""

from __future__ import annotations

from math import prod

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.common import check
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema


def kept(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """x where its bit of `mask` (uint8) is set, else 0."""
    bits = np.unpackbits(mask.reshape(-1), count=x.size, bitorder="little")
    return np.asarray(np.where(bits.reshape(x.shape), x, np.zeros((), x.dtype)))


class _Masked(Operator):
    """Base: the output is like the first input; the second is its mask."""

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        data, mask = x.type(0), x.type(1)
        check(mask.size * 8 >= data.size, f"{mask.size} bytes of mask", f"{data.size} bits")
        return [data]


@operator("ReluGradV2")
class ReluGradV2(_Masked):
    """dy where the forward ReLU's mask says so."""

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [kept(x[0], x[1])]


@operator("DropOutGenMask")
class DropOutGenMask(Operator):
    """Bits for `shape` that are set with a probability, the input; 128 elements fill 16 bytes.

    The bits follow from `seed`, by numpy's generator. A second output has them as booleans.
    """

    attrs = schema(shape=..., seed=0)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        check(x.type(0).size == 1, f"a probability of shape {x.type(0).shape}", "one number")
        shape = tuple(attrs["shape"])
        packed = TensorType((-(-prod(shape) // 128) * 16,), DType.UINT8)
        return [packed, TensorType(shape, DType.BOOL)][:n_outputs]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        random = np.random.RandomState(attrs["seed"]).uniform(0, 1, tuple(attrs["shape"]))
        keeps = np.asarray(random >= 1 - x[0].reshape(()))
        packed = np.zeros(out[0].shape, np.uint8)
        bits = np.packbits(keeps.reshape(-1), bitorder="little")
        packed[: len(bits)] = bits
        return [packed, keeps][: len(out)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=prod(attrs["shape"]))


@operator("DropOutDoMask")
class DropOutDoMask(_Masked):
    """x / keep where the mask says so; inputs x, mask, keep probability."""

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [kept(x[0] * (1 / x[2].reshape(())), x[1])]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=2 * out[0].size)


@operator("SquareSumV1")
class SquareSumV1(Operator):
    """Σx² as one element."""

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        return [TensorType((1,), x.type(0).dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [np.sum(x[0] * x[0], keepdims=True).reshape(1)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=2 * x[0].size)


@operator("SquareSumV2")
class SquareSumV2(SquareSumV1):
    """Σx² as one element, and x."""

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        return [TensorType((1,), x.type(0).dtype), x.type(0)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [*SquareSumV1.compute(x, attrs, out), x[0]]
