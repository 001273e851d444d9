"""Two convolutions in one kernel, the second of them 1×1: depth fusion."""

from __future__ import annotations

import numpy as np

from npusim.ir import TensorType
from npusim.ops.common import check
from npusim.ops.conv import Conv
from npusim.ops.registry import (
    Arrays,
    Attrs,
    Inputs,
    Operator,
    Types,
    Work,
    operator,
    round_to,
    schema,
)
from npusim.ops.window import WINDOW_ATTRS

POINTWISE = {**Conv.attrs, "kernel_shape": (1, 1)}  #: attributes of the second


def first_attrs(attrs: Attrs) -> Attrs:
    """Attributes of the first convolution."""
    return {**Conv.attrs, **{k: v for k, v in attrs.items() if k != "relu"}}


@operator("ConvConv")
class ConvConv(Operator):
    """x, w1, b1, w2, b2 → Conv(Relu(Conv(x, w1, b1)), w2, b2), the second 1×1 with stride 1.

    Biases may be absent. The image between is rounded to the result's type, as if it were stored.
    `relu`: False leaves the Relu out. The other attributes are the first convolution's.
    """

    attrs = schema(**WINDOW_ATTRS, spread=None, relu=False)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        (between,) = Conv.infer(Inputs(x.types[:3], (None,) * 3), first_attrs(attrs), 1)
        w = x.type(3).shape
        check(w[2:] == (1, 1), f"second weights {w}", "a 1×1 window")
        return Conv.infer(Inputs((between, *x.types[3:5]), (None,) * 3), POINTWISE, 1)

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        (y,) = Conv.compute(x[:3], first_attrs(attrs), out)
        if attrs["relu"]:
            y = np.maximum(y, 0)
        between = round_to(y, TensorType(y.shape, out[0].dtype)).astype(y.dtype)
        return Conv.compute([between, *x[3:5]], POINTWISE, out)

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        n, channels, *size = out[0].shape
        first, second = x[1].shape, x[3].shape
        positions = n * int(np.prod(size))
        macs = positions * (int(np.prod(first)) + channels * second[1])
        relu = positions * first[0] if attrs["relu"] else 0
        return Work(macs=macs, vector_ops=relu)
