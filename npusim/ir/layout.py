"""Memory layouts of the chip: how a logical (ONNX-shaped) tensor lies in device memory.

* ``ND``: as in numpy, row-major.
* ``NC1HWC0``: (N, ceil(C/16), H, W, 16); channels padded with zeros.
* ``NDC1HWC0``: (N, D, ceil(C/16), H, W, 16) of a volume (N, C, D, H, W).
* ``FRACTAL_Z``: convolution weights (Co, Ci/groups, Kh, Kw) as
  (Ci1·Kh·Kw, Co1, 16, C0): rows of a fractal are output channels, columns input channels.
* ``FRACTAL_NZ``: (…, M, N) as (…, N1, M1, 16, N0), both padded with zeros.

C0 = N0 = 16 for every type wider than one byte (the chips use 16 for fp16 and fp32), 32 for int8.
* ``NC1HWC0_8``, ``FRACTAL_Z_8``: the same with C0 = 8, 32 B of fp32, which convolutions in fp32 use
  on chips whose cube takes it.
* ``NC1HWC0_C04``: an image of at most 4 channels as (N, 1, H, W, 4).
* ``FRACTAL_Z_C04``: the weights of its convolution (Co, Ci ≤ 4, Kh, Kw) as (K1, Co1, 16, C0): a row
  of K is 4 channels of a tap after the other, Kh·Kw·4 of them, padded to whole fractals.

Source: CANN's data format guide (NC1HWC0, NDC1HWC0, FRACTAL_Z, FRACTAL_NZ); the C04 shapes as
MindSpore (Nc1hwc04DeviceShape, FracZc04DeviceShape) and GE (GetFzC04ShapeByAxisValue) have them.
"""

from __future__ import annotations

from enum import StrEnum
from math import prod

import numpy as np

from npusim.errors import GraphError
from npusim.ir.dtype import DType

BLOCK = 16  #: rows of a fractal, and columns for types wider than one byte
C04 = 4  #: channels in the C04 layouts


class Layout(StrEnum):
    """A memory layout, by CANN's name."""

    ND = "ND"
    NC1HWC0 = "NC1HWC0"
    NDC1HWC0 = "NDC1HWC0"
    FRACTAL_Z = "FRACTAL_Z"
    FRACTAL_NZ = "FRACTAL_NZ"
    NC1HWC0_8 = "NC1HWC0_8"
    FRACTAL_Z_8 = "FRACTAL_Z_8"
    NC1HWC0_C04 = "NC1HWC0_C04"
    FRACTAL_Z_C04 = "FRACTAL_Z_C04"


#: Layouts with a smaller C0, and what they are otherwise.
_NARROW = {
    Layout.NC1HWC0_8: Layout.NC1HWC0,
    Layout.FRACTAL_Z_8: Layout.FRACTAL_Z,
    Layout.NC1HWC0_C04: Layout.NC1HWC0,
}


def c0_of(dtype: DType, layout: Layout = Layout.NC1HWC0) -> int:
    """Elements of the innermost block: 32 of one byte, 8 or 4 where the layout says so, else 16."""
    if layout in _NARROW:
        return C04 if layout is Layout.NC1HWC0_C04 else 8
    return 32 if dtype.size == 1 else BLOCK


def blocks(n: int, size: int = BLOCK) -> int:
    """ceil(n / size)."""
    return -(-n // size)


def whole_groups(channels: int, filters: int, group: int, dtype: DType) -> bool:
    """Whether groups of a convolution are whole blocks of channels, of its image and result."""
    return group == 1 or not (channels // group % c0_of(dtype) or filters // group % 16)


def storage_shape(shape: tuple[int, ...], layout: Layout, dtype: DType) -> tuple[int, ...]:
    """Shape of the array that holds a logical `shape` in `layout`.

    Raises:
        GraphError: the rank does not fit the layout.
    """
    c0, name = c0_of(dtype, layout), layout.value
    few = len(shape) == 4 and shape[1] <= C04
    if layout is Layout.FRACTAL_Z_C04 and few:
        co, _, kh, kw = shape
        return (blocks(kh * kw * C04, c0), blocks(co), BLOCK, c0)
    if layout is not Layout.NC1HWC0_C04 or few:
        layout = _NARROW.get(layout, layout)
    if layout is Layout.ND:
        return shape
    if layout is Layout.NC1HWC0 and len(shape) == 4:
        n, c, h, w = shape
        return (n, blocks(c, c0), h, w, c0)
    if layout is Layout.NDC1HWC0 and len(shape) == 5:
        n, c, d, h, w = shape
        return (n, d, blocks(c, c0), h, w, c0)
    if layout is Layout.FRACTAL_Z and len(shape) == 4:
        co, ci, kh, kw = shape
        return (blocks(ci, c0) * kh * kw, blocks(co), BLOCK, c0)
    if layout is Layout.FRACTAL_NZ and len(shape) >= 2:
        *batch, m, n = shape
        return (*batch, blocks(n, c0), blocks(m), BLOCK, c0)
    raise GraphError(
        f"layout {name} for a tensor of shape {shape}",
        "NC1HWC0 and FRACTAL_Z take rank 4 (C04: and at most 4 channels), NDC1HWC0 rank 5, "
        "FRACTAL_NZ rank 2 and more",
        "keep the tensor in ND",
    )


def lies_as_nd(shape: tuple[int, ...], layout: Layout, dtype: DType) -> bool:
    """Whether a tensor's bytes are the same in `layout` as in ND: nothing is padded or moved."""
    if layout is Layout.ND:
        return True
    c0, layout = c0_of(dtype, layout), _NARROW.get(layout, layout)
    if layout is Layout.NC1HWC0 and len(shape) == 4:
        return shape[1] % c0 == 0 and shape[2] * shape[3] == 1
    if layout is Layout.NDC1HWC0 and len(shape) == 5:
        return shape[1] % c0 == 0 and shape[2] * shape[3] * shape[4] == 1
    if layout is Layout.FRACTAL_NZ and len(shape) >= 2:
        return shape[-1] == c0 and shape[-2] % BLOCK == 0
    return False


def storage_bytes(shape: tuple[int, ...], layout: Layout, dtype: DType) -> int:
    """Bytes that a tensor occupies in device memory, padding included."""
    return prod(storage_shape(shape, layout, dtype)) * dtype.size


def _padded(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if x.shape == shape:
        return x
    out = np.zeros(shape, x.dtype)
    out[tuple(slice(0, s) for s in x.shape)] = x
    return out


def _channel_blocks(x: np.ndarray, out: np.ndarray) -> None:
    """(N, C, H, W) as (N, C1, H, W, C0): whole blocks, then the channels of the last one."""
    n, _, h, w, c0 = out.shape
    whole, rest = divmod(x.shape[1], c0)
    blocked = x[:, : whole * c0].reshape(n, whole, c0, h, w)
    out[:, :whole] = blocked.transpose(0, 1, 3, 4, 2)
    if rest:
        out[:, whole] = 0
        for channel in range(rest):
            out[:, whole, ..., channel] = x[:, whole * c0 + channel]


def pack(x: np.ndarray, layout: Layout) -> np.ndarray:
    """A logical array as the device stores it (a new array unless ND)."""
    if layout is Layout.ND:
        return x
    dtype = DType.of(x.dtype)
    c0, target = c0_of(dtype, layout), storage_shape(x.shape, layout, dtype)
    layout = _NARROW.get(layout, layout)
    if layout is Layout.NC1HWC0:
        out = np.empty(target, x.dtype)
        _channel_blocks(x, out)
        return out
    if layout is Layout.NDC1HWC0:
        n, d, c1, h, w, _ = target
        p = _padded(x, (n, c1 * c0, d, h, w)).reshape(n, c1, c0, d, h, w)
        return np.ascontiguousarray(p.transpose(0, 3, 1, 4, 5, 2))
    if layout is Layout.FRACTAL_Z:
        _, ci, kh, kw = x.shape
        ci1, co1 = blocks(ci, c0), target[1]
        p = _padded(x, (co1 * BLOCK, ci1 * c0, kh, kw)).reshape(co1, BLOCK, ci1, c0, kh, kw)
        return np.ascontiguousarray(p.transpose(2, 4, 5, 0, 1, 3)).reshape(target)
    if layout is Layout.FRACTAL_Z_C04:
        co, _, kh, kw = x.shape
        k1, co1, _, _ = target
        rows = _padded(x, (co, C04, kh, kw)).transpose(0, 2, 3, 1).reshape(co, kh * kw * C04)
        p = _padded(rows, (co1 * BLOCK, k1 * c0)).reshape(co1, BLOCK, k1, c0)
        return np.ascontiguousarray(p.transpose(2, 0, 1, 3))
    *batch, n1, m1, m0, n0 = target
    p = _padded(x, (*batch, m1 * m0, n1 * n0)).reshape(*batch, m1, m0, n1, n0)
    b = tuple(range(len(batch)))
    k = len(batch)
    return np.ascontiguousarray(p.transpose(*b, k + 2, k, k + 1, k + 3))


def channels_last(x: np.ndarray) -> np.ndarray:
    """A view (N, H, W, C1, C0) of (N, C1, H, W, C0): all channels of a pixel side by side."""
    return x.transpose(0, 2, 3, 1, 4)


def channels_in_blocks(x: np.ndarray) -> np.ndarray:
    """The view back: (N, C1, H, W, C0) of (N, H, W, C1, C0)."""
    return x.transpose(0, 3, 1, 2, 4)


def pack_into(x: np.ndarray, layout: Layout, out: np.ndarray) -> None:
    """Store a logical array in the device's: `out` has its type and its shape in `layout`."""
    plain = _NARROW.get(layout, layout) is Layout.NC1HWC0
    if plain and not np.may_share_memory(x, out):
        _channel_blocks(x, out)
    else:
        out[...] = pack(x, layout).reshape(out.shape)


def unpack(x: np.ndarray, shape: tuple[int, ...], layout: Layout) -> np.ndarray:
    """The logical array of `shape` that storage array `x` holds (a view when ND)."""
    if layout is Layout.ND:
        return x.reshape(shape)
    dtype = DType.of(x.dtype)
    c0 = c0_of(dtype, layout)
    x = x.reshape(storage_shape(shape, layout, dtype))
    layout = _NARROW.get(layout, layout)
    if layout is Layout.NC1HWC0:
        n, c, h, w = shape
        return x.transpose(0, 1, 4, 2, 3).reshape(n, blocks(c, c0) * c0, h, w)[:, :c]
    if layout is Layout.NDC1HWC0:
        n, c, d, h, w = shape
        return x.transpose(0, 2, 5, 1, 3, 4).reshape(n, blocks(c, c0) * c0, d, h, w)[:, :c]
    if layout is Layout.FRACTAL_Z:
        co, ci, kh, kw = shape
        p = x.reshape(blocks(ci, c0), kh, kw, blocks(co), BLOCK, c0)
        full = p.transpose(3, 4, 0, 5, 1, 2).reshape(
            blocks(co) * BLOCK, blocks(ci, c0) * c0, kh, kw
        )
        return full[:co, :ci]
    if layout is Layout.FRACTAL_Z_C04:
        co, ci, kh, kw = shape
        rows = x.transpose(1, 2, 0, 3).reshape(blocks(co) * BLOCK, -1)[:co, : kh * kw * C04]
        return rows.reshape(co, kh, kw, C04).transpose(0, 3, 1, 2)[:, :ci]
    *batch, m, n = shape
    k = len(batch)
    full = x.transpose(*range(k), k + 1, k + 2, k, k + 3)
    full = full.reshape(*batch, blocks(m) * BLOCK, blocks(n, c0) * c0)
    return full[..., :m, :n]
