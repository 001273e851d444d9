"""Vector programs of CANN's library for sine, cosine and the fast GELU: entries of `LOWER`.

Steps and constants are those of the TBE operators (sin_compute_v3, cos_compute_v3, fast_gelu,
fast_gelu_grad).
"""

from __future__ import annotations

from typing import Any

from npusim.kernels.expressions import LOWER, Lower
from npusim.kernels.vector_program import Builder, Value

_INVERSE_PI = 0.3183098733425140380859375
_PARTS = (3.14160156, -8.9071691e-06, -1.74122761e-09, 1.24467439e-13)  #: their sum is pi
_HALF_PI = (1.57079637050628662109375, -0.00000004371139000189375)  #: pi / 2 and its rest
_SERIES = (2.604926501e-6, -0.0001980894471, 0.008333049340, -0.1666665792, 1.0)
_SPLIT = 2048.0  #: multiples of pi are counted as 2048·high + low: the products stay exact
_FAST = 1.702


def _turns(b: Builder, x: Value, shift: float) -> tuple[Value, list[Value]]:
    """Multiples of pi in x (+ shift of one), whole and as [high, low]."""
    turns = b.mul(x, _INVERSE_PI)
    whole = b("round", b.add(turns, shift) if shift else turns)
    high = b.mul(b("round", b.mul(turns, 1.0 / _SPLIT)), _SPLIT)
    return whole, [high, b.sub(whole, high)]


def _series(b: Builder, x: Value, turns: Value) -> Value:
    """sin x within ±pi/2, its sign that of an even or odd number of turns."""
    square = b.mul(x, x)
    sign = b.add(b.mul(b("floor", b.mul(turns, 0.5)), 4.0), b.mul(turns, -2.0))
    sign = b.add(sign, 1.0)
    y = b.add(b.mul(square, _SERIES[0]), _SERIES[1])
    for c in _SERIES[2:]:
        y = b.add(b.mul(y, square), c)
    return b.max(b.min(b.mul(b.mul(y, x), sign), 1.0), -1.0)


def _sin(b: Builder, attrs: Any, x: Value) -> Value:
    """x less its multiples of pi, part by part of pi."""
    turns, counts = _turns(b, x, 0.0)
    for part in _PARTS:
        for count in counts:
            x = b.sub(x, b.mul(count, part))
    return _series(b, x, turns)


def _cos(b: Builder, attrs: Any, x: Value) -> Value:
    """sin(x + pi/2): the shift is added when the large parts are gone, its rest at the end."""
    turns, counts = _turns(b, x, 0.5)
    products = [(count, part) for part in _PARTS for count in counts]
    for i, (count, part) in enumerate(products):
        if i == 3:
            x = b.add(x, _HALF_PI[0])
        x = b.sub(x, b.mul(count, part))
    return _series(b, b.add(x, _HALF_PI[1]), turns)


def _fast_gelu(b: Builder, attrs: Any, x: Value) -> Value:
    """x·e^(0.851(x - |x|)) / (1 + e^(-1.702|x|)): no exponential overflows."""
    size = b("abs", x)
    low = b.add(b("exp", b.mul(size, -_FAST)), 1.0)
    return b.div(b.mul(x, b("exp", b.mul(b.sub(x, size), _FAST / 2))), low)


def _fast_gelu_grad(b: Builder, attrs: Any, dy: Value, x: Value) -> Value:
    """dy·(e + 1.702x·e + e^(1.702(x - |x|))) / (e + 1)², e = e^(-1.702|x|)."""
    size = b("abs", x)
    e = b("exp", b.mul(size, -_FAST))
    top = b.add(e, b.mul(b.mul(x, e), _FAST))
    top = b.add(top, b("exp", b.mul(b.sub(x, size), _FAST)))
    low = b.add(e, 1.0)
    return b.mul(b.div(top, b.mul(low, low)), dy)


LIBRARY: dict[str, Lower] = {
    "Sin": _sin,
    "Cos": _cos,
    "FastGelu": _fast_gelu,
    "FastGeluGrad": _fast_gelu_grad,
}
LOWER.update(LIBRARY)
