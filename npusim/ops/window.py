"""Sliding windows over spatial dimensions: the geometry that convolutions and pools share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from npusim.ops.common import check, supported
from npusim.ops.registry import Attrs

#: The attributes that describe a window, with ONNX's defaults (None: zeros or ones).
WINDOW_ATTRS: dict[str, Any] = {
    "auto_pad": "NOTSET",
    "dilations": None,
    "kernel_shape": None,
    "pads": None,
    "strides": None,
}


@dataclass(frozen=True)
class Window:
    """A window, one entry per spatial dimension; pads are resolved, whatever `auto_pad` said.

    Attributes:
        size: input extent.
        kernel: taps.
        strides: step between outputs.
        dilations: step between taps.
        begin: padding before.
        end: padding after.
        out: output extent.
    """

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    out: tuple[int, ...]

    @staticmethod
    def of(size: tuple[int, ...], kernel: tuple[int, ...], attrs: Attrs) -> Window:
        """The window that ONNX attributes describe on an input of spatial extent `size`.

        Raises:
            GraphError: attributes of the wrong length, or a window larger than the input.
        """
        rank = len(size)
        ones, zeros = (1,) * rank, (0,) * (2 * rank)
        strides = tuple(attrs["strides"] or ones)
        dilations = tuple(attrs["dilations"] or ones)
        pads = tuple(attrs["pads"] or zeros)
        lengths = (len(kernel), len(strides), len(dilations), len(pads))
        check(
            lengths == (rank, rank, rank, 2 * rank) and min(strides + dilations) > 0,
            f"kernel {kernel}, strides {strides}, dilations {dilations}, pads {pads}",
            f"{rank} positive values each, and {2 * rank} pads",
        )
        mode = attrs["auto_pad"]
        supported(
            mode in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"),
            f"auto_pad={mode!r}",
            "NOTSET, VALID, SAME_UPPER, SAME_LOWER",
        )
        reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
        if mode.startswith("SAME"):
            begin, end, out = _same(size, reach, strides, mode == "SAME_UPPER")
        else:
            if mode == "VALID":
                pads = zeros
            begin, end = pads[:rank], pads[rank:]
            ceil = bool(attrs.get("ceil_mode", 0))
            out = tuple(map(_extent, size, begin, end, reach, strides, (ceil,) * rank))
        check(
            min(out, default=1) > 0,
            f"a window of {reach} on an input of {size} with pads {begin} and {end}",
            "a window no larger than the padded input",
        )
        return Window(size, tuple(kernel), strides, dilations, begin, end, out)

    @property
    def taps(self) -> int:
        """Elements in the window."""
        return prod(self.kernel)

    @property
    def pointwise(self) -> bool:
        """True when the window holds one element."""
        return self.taps == 1

    def positions(self) -> Iterator[tuple[int, ...]]:
        """Index of each tap within the kernel, row by row."""
        return product(*map(range, self.kernel))

    def padded(self, x: np.ndarray, fill: float = 0) -> np.ndarray:
        """`x` [N, C, *size] padded as far as the taps reach; `x` itself when none is due."""
        ends = []
        for i, n in enumerate(self.size):
            need = (self.out[i] - 1) * self.strides[i] + (self.kernel[i] - 1) * self.dilations[i]
            ends.append(max(self.end[i], need + 1 - n - self.begin[i]))
        if not any(self.begin) and not any(ends):
            return x
        shape = tuple(b + n + e for b, n, e in zip(self.begin, self.size, ends, strict=True))
        y = np.full((*x.shape[:2], *shape), fill, x.dtype)
        inner: tuple[Any, ...] = tuple(
            slice(b, b + n) for b, n in zip(self.begin, self.size, strict=True)
        )
        y[(..., *inner)] = x
        return y

    def along(self, axis: int, tap: int) -> slice:
        """What tap `tap` of spatial dimension `axis` sees of the padded input."""
        start = tap * self.dilations[axis]
        stride = self.strides[axis]
        return slice(start, start + (self.out[axis] - 1) * stride + 1, stride)

    def view(self, padded: np.ndarray, position: tuple[int, ...]) -> np.ndarray:
        """What one tap sees of the padded input: a view [N, C, *out]."""
        at: tuple[Any, ...] = tuple(self.along(i, tap) for i, tap in enumerate(position))
        return padded[(..., *at)]


def _same(
    size: tuple[int, ...], reach: tuple[int, ...], strides: tuple[int, ...], upper: bool
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Pads and output extents such that out = ceil(size / stride)."""
    out = tuple(-(-n // s) for n, s in zip(size, strides, strict=True))
    total = [
        max((o - 1) * s + r - n, 0) for o, s, r, n in zip(out, strides, reach, size, strict=True)
    ]
    small = tuple(t // 2 for t in total)
    large = tuple(t - t // 2 for t in total)
    return (small, large, out) if upper else (large, small, out)


def _extent(size: int, begin: int, end: int, reach: int, stride: int, ceil: bool) -> int:
    """Output extent; with `ceil`, no window starts in the padding behind the input."""
    room = size + begin + end - reach
    if not ceil:
        return room // stride + 1
    out = -(-room // stride) + 1
    return out - 1 if (out - 1) * stride >= size + begin else out
