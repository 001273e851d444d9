"""Element types of a byte and less: fp8, fp4, powers of two, int4 and int2.

numpy holds each element in a byte of its own (as `ml_dtypes` does), so that a tensor of int4 takes
twice the memory here that packed int4 takes on a chip.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

FLOATS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn")
POWERS = ("float8_e8m0fnu",)
INTEGERS = ("int4", "uint4", "int2", "uint2")
NARROW = {name: np.dtype(getattr(ml_dtypes, name)) for name in (*FLOATS, *POWERS, *INTEGERS)}


def is_narrow(dtype: np.dtype) -> bool:
    """Whether numpy itself has no such type, and its elements take a byte or less."""
    return dtype.itemsize == 1 and dtype.kind in "Vf"


def widened(value: np.ndarray) -> np.ndarray:
    """The same values in fp32, or int8 for the integers: exact."""
    return value.astype(np.int8 if value.dtype.name in INTEGERS[::2] else _wide(value.dtype))


def _wide(dtype: np.dtype) -> type[np.generic]:
    return np.uint8 if dtype.name in INTEGERS else np.float32


def narrowed(
    value: np.ndarray, dtype: np.dtype, saturate: bool = True, round_mode: str = "up"
) -> np.ndarray:
    """`value` in a narrow type, as ONNX's Cast defines it.

    Floats round to nearest, ties to even; integers keep their low bits. What floats become in an
    integer type that does not reach so far, ONNX leaves open: here what ml_dtypes makes of them.

    Args:
        saturate: floats out of range, infinities too, become the largest value; else NaN or
            infinity, what the type has. fp4 always saturates.
        round_mode: of powers of two: "up", "down" or "nearest".
    """
    if dtype.name in INTEGERS:
        return _integers(value, dtype)
    wide = value.astype(np.float32)
    if dtype.name in POWERS:
        return _power(wide, saturate, round_mode).view(dtype)
    if saturate:
        limits = ml_dtypes.finfo(dtype)
        wide = np.clip(wide, np.float32(limits.min), np.float32(limits.max))
    return wide.astype(dtype)


def _integers(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if value.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            return value.astype(dtype)
    limits = ml_dtypes.iinfo(dtype)
    low, span = int(limits.min), int(limits.max) - int(limits.min) + 1
    return ((value.astype(np.int64) - low) % span + low).astype(np.int8).astype(dtype)


def _power(value: np.ndarray, saturate: bool, round_mode: str) -> np.ndarray:
    """Exponents of fp32 numbers, biased as theirs, 255 for NaN and infinity; the sign is lost."""
    bits = np.ascontiguousarray(value).view(np.uint32)
    exponent = (bits >> 23 & 0xFF).astype(np.uint16)
    fraction = bits & 0x7FFFFF
    if round_mode == "up":
        up = fraction > 0
    elif round_mode == "nearest":
        half = np.uint32(0x400000)
        up = (fraction > half) | ((fraction == half) & (exponent > 0))
    else:
        up = np.zeros(value.shape, bool)
    last = exponent == (0xFE if saturate else 0xFF)
    return np.where(up & ~last & (exponent < 0xFF), exponent + 1, exponent).astype(np.uint8)
