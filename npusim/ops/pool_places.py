"""What undoes a window: MaxUnpool, by the places of the maxima, and Col2Im, by adding up."""

from __future__ import annotations

from math import prod

import numpy as np

from npusim.ir import TensorType
from npusim.ops.common import Movement, check, static_ints
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema
from npusim.ops.window import Window


@operator("MaxUnpool")
class MaxUnpool(Movement):
    """Elements at the places that MaxPool's Indices name, zeros elsewhere."""

    attrs = schema(kernel_shape=..., pads=None, strides=None)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, places = x.type(0), x.type(1).shape
        check(places == t.shape, f"indices {places} for {t.shape}", "one shape")
        shape = _unpooled(t.shape, attrs)
        if x.has(2):
            wanted = static_ints(x, 2, "output_shape")
            check(
                len(wanted) == len(shape)
                and all(w >= s for w, s in zip(wanted, shape, strict=True)),
                f"output_shape {wanted}",
                f"at least {shape}",
            )
            shape = wanted
        return [TensorType(shape, t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        inner = _unpooled(x[0].shape, attrs)
        flat = np.zeros(prod(inner), x[0].dtype)
        flat[x[1].reshape(-1)] = x[0].reshape(-1)
        y = np.zeros(out[0].shape, x[0].dtype)
        y[tuple(slice(n) for n in inner)] = flat.reshape(inner)
        return [y]


def _unpooled(shape: tuple[int, ...], attrs: Attrs) -> tuple[int, ...]:
    """The shape whose windows are `shape`."""
    kernel = tuple(attrs["kernel_shape"])
    rank = len(kernel)
    check(len(shape) == rank + 2, f"{shape} with kernel {kernel}", "[N, C, spatial …]")
    strides, pads = attrs["strides"] or (1,) * rank, attrs["pads"] or (0,) * (2 * rank)
    extents = (
        (n - 1) * strides[i] - pads[i] - pads[i + rank] + kernel[i] for i, n in enumerate(shape[2:])
    )
    return (*shape[:2], *extents)


@operator("Col2Im")
class Col2Im(Operator):
    """Columns [N, C · taps, windows] added up at the places that an im2col took them from."""

    attrs = schema(dilations=None, pads=None, strides=None)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, size = x.type(0), static_ints(x, 1, "image_shape")
        window = _window(size, static_ints(x, 2, "block_shape"), attrs)
        check(
            len(t.shape) == 3 and t.shape[1] % window.taps == 0 and t.shape[2] == prod(window.out),
            f"columns {t.shape} of an image {size}",
            f"[N, a multiple of {window.taps}, {prod(window.out)}]",
        )
        return [TensorType((t.shape[0], t.shape[1] // window.taps, *size), t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        window = _window(out[0].shape[2:], tuple(map(int, x[2])), attrs)
        y = window.padded(np.zeros(out[0].shape, x[0].dtype)).copy()
        columns = x[0].reshape(*out[0].shape[:2], window.taps, *window.out)
        for i, position in enumerate(window.positions()):
            view = window.view(y, position)
            view += columns[:, :, i]
        inner = (slice(b, b + n) for b, n in zip(window.begin, window.size, strict=True))
        return [y[(slice(None), slice(None), *inner)]]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=x[0].size)


def _window(size: tuple[int, ...], block: tuple[int, ...], attrs: Attrs) -> Window:
    return Window.of(size, block, {**attrs, "auto_pad": "NOTSET"})
