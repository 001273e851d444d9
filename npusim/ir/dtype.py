"""Element types, by their ONNX / numpy names."""

from __future__ import annotations

from collections.abc import Hashable
from enum import StrEnum
from functools import cache

import ml_dtypes
import numpy as np

from npusim.errors import UnsupportedError
from npusim.ir.narrow import NARROW, is_narrow, narrowed, widened


class DType(StrEnum):
    """An element type; the value is its numpy name."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT64 = "float64"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    BOOL = "bool"
    FLOAT8E4M3FN = "float8_e4m3fn"
    FLOAT8E4M3FNUZ = "float8_e4m3fnuz"
    FLOAT8E5M2 = "float8_e5m2"
    FLOAT8E5M2FNUZ = "float8_e5m2fnuz"
    FLOAT8E8M0 = "float8_e8m0fnu"
    FLOAT4E2M1 = "float4_e2m1fn"
    INT4 = "int4"
    UINT4 = "uint4"
    INT2 = "int2"
    UINT2 = "uint2"

    @property
    def np(self) -> np.dtype:
        """The numpy dtype that holds it."""
        return _NUMPY[self]

    @property
    def size(self) -> int:
        """Bytes per element as stored here (a whole one for int4 and its like)."""
        return self.np.itemsize

    @property
    def is_float(self) -> bool:
        """True for fp16, bf16, fp32 and fp64."""
        return self in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64)

    @property
    def is_narrow(self) -> bool:
        """True for fp8, fp4, int4 and int2: types that are stored, and converted to compute."""
        return self.value in NARROW

    @staticmethod
    @cache  # numpy makes a dtype's name anew each time
    def of(dtype: Hashable) -> DType:
        """The DType of a numpy dtype or a name.

        Raises:
            UnsupportedError: npusim has no such element type.
        """
        name = dtype.value if isinstance(dtype, DType) else np.dtype(dtype).name  # type: ignore[call-overload]
        try:
            return DType(name)
        except ValueError:
            raise UnsupportedError(
                f"element type {name!r}",
                ", ".join(d.value for d in DType),
                "convert the model to one of these types",
            ) from None


_NUMPY: dict[DType, np.dtype] = {
    d: NARROW[d.value] if d.value in NARROW else np.dtype(d.value)
    for d in DType
    if d is not DType.BFLOAT16
} | {DType.BFLOAT16: np.dtype(ml_dtypes.bfloat16)}


#: Types in which overflow saturates, and their largest finite values.
_LARGEST = {d: float(ml_dtypes.finfo(_NUMPY[d]).max) for d in (DType.FLOAT16, DType.BFLOAT16)}


def convert(value: np.ndarray, dtype: DType) -> np.ndarray:
    """`value` in another type; in fp16 and bf16, finite values saturate and infinities stay.

    This is the saturation mode of the chips (the only mode of the first generation). Narrower types
    are made as `narrowed` says.
    """
    if value.dtype == dtype.np:
        return value
    if is_narrow(value.dtype):
        value = widened(value)
    if dtype.is_narrow:
        return narrowed(value, dtype.np)
    with np.errstate(over="ignore", invalid="ignore"):
        out = value.astype(dtype.np)
        if dtype in _LARGEST and np.isinf(out).any():
            limit = np.copysign(_LARGEST[dtype], value).astype(dtype.np)
            out = np.where(np.isinf(out) & np.isfinite(value), limit, out)
    return out
