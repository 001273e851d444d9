"""Gradients of convolutions, and the fused forms of them, under CANN's names."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from npusim.ir import DType, TensorType
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
    widen,
)
from npusim.ops.training_batchnorm import BNTrainingReduceGrad
from npusim.ops.window import WINDOW_ATTRS, Window

#: Attributes of the gradients: the window, and the size that the convolution's input had.
_SIZED = {**WINDOW_ATTRS, "input_size": ...}


@operator("FusionOp_Conv2D_BNTrainingReduce")
class ConvBNTrainingReduce(Operator):
    """Conv2D; sum and square sum of each output channel, (1, C, 1, 1) fp32."""

    attrs = schema(**WINDOW_ATTRS)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        (y,) = Conv.infer(x, {**attrs, "group": 1}, 1)
        sums = TensorType((1, y.shape[1], 1, 1), DType.FLOAT32)
        return [y, sums, sums]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        (y,) = Conv.compute(x, {**attrs, "group": 1}, out)
        axes = (0, 2, 3)
        return [y, y.sum(axes, keepdims=True), (y * y).sum(axes, keepdims=True)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(macs=out[0].size * prod(x[1].shape[1:]), vector_ops=3 * out[0].size)


@operator("Conv2DBackpropInput")
class Conv2DBackpropInput(Operator):
    """Gradient of a convolution by its input: dY, W [Co, C, kh, kw] → dX of `input_size`."""

    attrs = schema(**_SIZED)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        dy, w = x.type(0), x.type(1)
        _check_gradient(dy, w.shape[0], attrs, w.shape[2:])
        return [TensorType((dy.shape[0], w.shape[1], *attrs["input_size"]), dy.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        dy, w = x[0], x[1]
        window = Window.of(tuple(attrs["input_size"]), w.shape[2:], attrs)
        start: tuple[Any, ...] = tuple(
            slice(b, b + n) for b, n in zip(window.begin, window.size, strict=True)
        )
        padded = window.padded(np.zeros((len(dy), w.shape[1], *window.size), dy.dtype)).copy()
        for position in window.positions():
            tap = w[(slice(None), slice(None), *position)]
            window.view(padded, position)[...] += np.einsum("oc,nohw->nchw", tap, dy)
        return [padded[(slice(None), slice(None), *start)]]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(macs=x[0].size * prod(x[1].shape[1:]))


@operator("FusionOp_Conv2DBackpropInput_ReluGradV2")
class Conv2DBackpropInputReluGrad(Conv2DBackpropInput):
    """… where ReLU's bit mask (N, C1, H, W, 2) uint8, the last input, is set; else zero.

    Inputs between the weights and the mask are added to the gradient before.
    """

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        (dx,) = Conv2DBackpropInput.compute(x[:2], attrs, out)
        for other in x[2:-1]:
            dx = dx + other
        bits = np.unpackbits(x[-1], axis=-1, bitorder="little")  # (N, C1, H, W, 16)
        n, c1, h, w, c0 = bits.shape
        mask = bits.transpose(0, 1, 4, 2, 3).reshape(n, c1 * c0, h, w)
        return [np.where(mask[:, : dx.shape[1]] != 0, dx, np.zeros((), dx.dtype))]


@operator("FusionOp_Conv2DBackpropInput_AddN_ReluGradV2")
class Conv2DBackpropInputAddNReluGrad(Conv2DBackpropInputReluGrad):
    """The same with tensors to add: CANN names it apart."""


@operator("Conv2DBackpropFilter")
class Conv2DBackpropFilter(Operator):
    """Gradient of a convolution by its weights: dY, X → dW [Co, C, kh, kw], fp32.

    `kernel_shape` is required: the window's size.
    """

    attrs = schema(**{**WINDOW_ATTRS, "kernel_shape": ...})

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        dy, image = x.type(0), x.type(1)
        sized = {**attrs, "input_size": image.shape[2:]}
        _check_gradient(dy, dy.shape[1], sized, tuple(attrs["kernel_shape"]))
        shape = (dy.shape[1], image.shape[1], *attrs["kernel_shape"])
        return [TensorType(shape, DType.FLOAT32)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        dy, image = x[0], x[1]
        window = Window.of(image.shape[2:], tuple(attrs["kernel_shape"]), attrs)
        padded = window.padded(image)
        dw = np.zeros((dy.shape[1], image.shape[1], *window.kernel), np.float32)
        for position in window.positions():
            at: tuple[Any, ...] = (slice(None), slice(None), *position)
            dw[at] = np.einsum("nohw,nchw->oc", dy, window.view(padded, position))
        return [dw]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(macs=x[0].size * prod(out[0].shape[1:]))


@operator("FusedDbnDw")
class FusedDbnDw(Operator):
    """BNTrainingReduceGrad, then Conv2DBackpropFilter of its result.

    Inputs: the convolution's X, then those of BNTrainingReduceGrad (the gradient first).
    Outputs: the gradient of BN's input, dW.
    """

    attrs = schema(**{**WINDOW_ATTRS, "kernel_shape": ...}, epsilon=1e-4)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        bn = Inputs(x.types[1:], x.values[1:])
        dy = BNTrainingReduceGrad.infer(bn, attrs, 1)[0]
        pair = Inputs((dy, x.type(0)), (None, None))
        return [dy, *Conv2DBackpropFilter.infer(pair, attrs, 1)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        bn = BNTrainingReduceGrad.compute(x[1:], attrs, out[:1])[0]
        dy = round_to(bn, out[0])
        return [dy, *Conv2DBackpropFilter.compute([widen(dy), x[0]], attrs, out[1:])]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(macs=out[0].size * prod(out[1].shape[1:]), vector_ops=7 * out[0].size)


def _check_gradient(dy: TensorType, co: int, attrs: Attrs, kernel: tuple[int, ...]) -> None:
    window = Window.of(tuple(attrs["input_size"]), kernel, attrs)
    check(
        dy.shape[1:] == (co, *window.out),
        f"gradient {dy.shape} of a convolution with {co} channels out of size {window.out}",
        "the shape of the convolution's output",
    )
