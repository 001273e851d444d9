"""Vector programs of quantisation: entries of `LOWER`.

The vector unit converts bytes from and to fp16 only; integers of a byte are exact there. What is
known when compiling (scales above all) is computed then, in fp32 as the unit would.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from npusim.ir import DType
from npusim.kernels.expressions import INTEGER, LOWER, RAW, Lower
from npusim.kernels.vector_program import F16, F32, Arg, Builder, Value
from npusim.ops.quantization import integer_range


def _wide(b: Builder, x: Arg) -> Any:
    """x in fp32."""
    if not isinstance(x, Value):
        return float(np.float32(x))
    return b.conv(b.conv(x, F16) if x.dtype.itemsize == 1 else x, F32)


def _times(b: Builder, x: Arg, y: Arg) -> Any:
    if isinstance(x, Value) or isinstance(y, Value):
        return b.mul(x, y)
    return float(np.float32(x) * np.float32(y))


def _over(b: Builder, x: Arg, y: Arg) -> Any:
    if isinstance(x, Value) or isinstance(y, Value):
        return b.div(x, y)
    return float(np.float32(x) / np.float32(y))


def _narrow(b: Builder, y: Value, offset: Any, to: DType) -> Value:
    """Rounded, with the offset, saturated."""
    low, high = integer_range(to)
    y = b("round", y)
    y = y if offset is None else b.add(y, _wide(b, offset))
    return b.conv(b.conv(b.min(b.max(y, low), high), F16), to.np)


def _quant(b: Builder, attrs: Any, x: Value, scale: Arg, offset: Any = None) -> Value:
    return _narrow(b, b.div(_wide(b, x), _wide(b, scale)), offset, DType.of(attrs["to"]))


def _anti_quant(b: Builder, attrs: Any, x: Value, scale: Arg, offset: Any = None) -> Value:
    wide = _wide(b, x)
    wide = wide if offset is None else b.sub(wide, _wide(b, offset))
    return b.mul(wide, _wide(b, scale))


def _dequant(b: Builder, attrs: Any, x: Value, *scales: Arg) -> Value:
    factor = reduce(lambda p, q: _times(b, p, q), (_wide(b, s) for s in scales))
    return b.mul(_wide(b, x), factor)


def _requant(
    b: Builder, attrs: Any, x: Value, left: Arg, right: Arg, scale: Arg, offset: Any = None
) -> Value:
    product = _times(b, _wide(b, left), _wide(b, right))
    factor = _over(b, product, _wide(b, scale))
    return _narrow(b, b.mul(_wide(b, x), factor), offset, DType.of(attrs["to"]))


QUANTISATION: dict[str, Lower] = {
    "AscendQuant": _quant,
    "AscendAntiQuant": _anti_quant,
    "AscendDequant": _dequant,
    "AscendRequant": _requant,
}
LOWER.update(QUANTISATION)
RAW.update(QUANTISATION)
INTEGER.update(QUANTISATION)
