"""Element types, by their ONNX / numpy names."""

from __future__ import annotations

from enum import StrEnum

import ml_dtypes
import numpy as np

from npusim.errors import UnsupportedError


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

    @property
    def np(self) -> np.dtype:
        """The numpy dtype that holds it."""
        return _NUMPY[self]

    @property
    def size(self) -> int:
        """Bytes per element."""
        return self.np.itemsize

    @property
    def is_float(self) -> bool:
        """True for fp16, bf16, fp32 and fp64."""
        return self in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64)

    @staticmethod
    def of(dtype: object) -> DType:
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
    d: np.dtype(ml_dtypes.bfloat16) if d is DType.BFLOAT16 else np.dtype(d.value) for d in DType
}


#: Types in which overflow saturates, and their largest finite values.
_LARGEST = {d: float(ml_dtypes.finfo(_NUMPY[d]).max) for d in (DType.FLOAT16, DType.BFLOAT16)}


def convert(value: np.ndarray, dtype: DType) -> np.ndarray:
    """`value` in another type; in fp16 and bf16, finite values saturate and infinities stay.

    This is the saturation mode of the chips (the only mode of the first generation).
    """
    if value.dtype == dtype.np:
        return value
    with np.errstate(over="ignore", invalid="ignore"):
        out = value.astype(dtype.np)
        if dtype in _LARGEST and np.isinf(out).any():
            limit = np.copysign(_LARGEST[dtype], value).astype(dtype.np)
            out = np.where(np.isinf(out) & np.isfinite(value), limit, out)
    return out
