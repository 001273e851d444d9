"""TopKD: the k largest of every row, sorted, as CANN's static kernel has them."""

from __future__ import annotations

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.common import check
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema


@operator("TopKD")
class TopKD(Operator):
    """x [… n] fp16, assist [8192] → values [… k] downwards, their columns int32.

    The assist holds every column as a sum of two fp16 numbers, which `compute` does without: its
    first half the columns rounded to fp16, its second half what they lack.
    """

    attrs = schema(k=...)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, k = x.type(0), int(attrs["k"])
        check(0 < k <= t.shape[-1], f"k = {k} of {t.shape[-1]}", f"1 … {t.shape[-1]}")
        shape = (*t.shape[:-1], k)
        return [TensorType(shape, t.dtype), TensorType(shape, DType.INT32)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        order = np.argsort(-x[0], axis=-1, kind="stable")[..., : attrs["k"]]
        return [np.take_along_axis(x[0], order, -1), order.astype(np.int32)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=x[0].size * max(1, x[0].shape[-1].bit_length()))


def assist() -> np.ndarray:
    """The second input: columns 0 … 4095 in fp16, then what the rounding lost."""
    columns = np.arange(4096)
    rounded = columns.astype(np.float16)
    return np.concatenate([rounded, (columns - rounded.astype(np.int64)).astype(np.float16)])
