"""fp16 ↔ fp32 by integer arithmetic on blocks that stay in cache.

numpy converts fp16 element by element: half as fast towards fp32, and 25 times slower where results
are subnormal. Both functions give numpy's bits exactly (but for the payload of NaNs), except that
finite values beyond fp16 saturate, as on the chips.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npusim.ir import DType, convert

_BLOCK = 1 << 17
_FEW = 1 << 12  # below this many elements numpy's own conversion is faster

_INF32, _MAGNITUDE = np.uint32(0x7F800000), np.uint32(0x7FFFFFFF)
_LARGEST = np.uint32(0x477FE000)  # 65504, the largest finite fp16
_NORMAL = np.uint32(0x38800000)  # 2^-14, the smallest normal fp16
#: 2^15, as a step of the exponent: added to 4 · x, 2^15 times x's own power of two leaves ten bits.
_MAGIC = np.uint32(15 << 23)


def to_fp32(h: np.ndarray) -> np.ndarray:
    """An fp16 array in fp32, its axes in the same order of memory."""
    if h.size < _FEW:
        return h.astype(np.float32)
    return _in_memory_order(_to_fp32, h)


def to_fp16(x: np.ndarray) -> np.ndarray:
    """An fp32 array in fp16, rounded to nearest even; finite values saturate. Memory as `x`'s."""
    if x.size < _FEW:
        return convert(x, DType.FLOAT16)
    return _in_memory_order(_to_fp16, x)


def _in_memory_order(function: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """A function of contiguous arrays on one whose axes may be in another order."""
    if x.flags.c_contiguous:
        return function(x)
    order = sorted(range(x.ndim), key=lambda axis: -x.strides[axis])
    back = sorted(range(x.ndim), key=order.__getitem__)
    return function(np.ascontiguousarray(x.transpose(order))).transpose(back)


def _to_fp32(h: np.ndarray) -> np.ndarray:
    out = np.empty(h.shape, np.float32)
    source = h.reshape(-1).view(np.uint16)
    target = out.reshape(-1).view(np.uint32)
    for i in range(0, source.size, _BLOCK):
        bits = target[i : i + _BLOCK]
        bits[...] = source[i : i + _BLOCK]
        sign = (bits & 0x8000) << 16
        bits &= 0x7FFF
        special = bits >= 0x7C00 if bits.max() >= 0x7C00 else None
        bits <<= 13
        value = bits.view(np.float32)
        value *= np.float32(2.0**112)  # the difference of the biases; subnormals come out right
        if special is not None:
            bits[special] |= _INF32
        bits |= sign
    return out


def _to_fp16(x: np.ndarray) -> np.ndarray:
    out = np.empty(x.shape, np.float16)
    source = x.reshape(-1).view(np.uint32)
    target = out.reshape(-1).view(np.uint16)
    scratch = np.empty((3, min(_BLOCK, source.size)), np.uint32)
    for i in range(0, source.size, _BLOCK):
        bits = source[i : i + _BLOCK]
        magnitude, rounded, half = scratch[:, : bits.size]
        np.bitwise_and(bits, _MAGNITUDE, out=magnitude)
        np.minimum(magnitude, _LARGEST, out=rounded)
        np.bitwise_and(rounded, _INF32, out=half)
        np.maximum(half, _NORMAL, out=half)
        half += _MAGIC
        value = rounded.view(np.float32)
        value *= np.float32(4)
        value += half.view(np.float32)  # rounds to nearest even, subnormals too
        np.right_shift(rounded, 13, out=half)
        half &= 0x7C00  # the exponent, or one less where the bits to come have x's leading one
        rounded &= 0xFFF
        half += rounded
        if magnitude.max() >= _INF32:
            half[magnitude == _INF32] = 0x7C00
            half[magnitude > _INF32] = 0x7E00  # NaN
        np.bitwise_xor(bits, magnitude, out=magnitude)
        magnitude >>= 16
        half |= magnitude  # the sign
        target[i : i + _BLOCK] = half
    return out
