"""Vector programs of the inverse, hyperbolic and remaining trigonometric functions.

CANN's library has each as a polynomial or by exponentials and logarithms; so they are here, in
fp32.
"""

from __future__ import annotations

import math
from typing import Any

from npusim.kernels.expressions import LOWER, Lower, horner, sign
from npusim.kernels.library_expressions import LIBRARY
from npusim.kernels.vector_program import BOOL, Builder, Value

#: atan(t) / t in t² on [0, 1], highest power first: within 2e-8 (Abramowitz and Stegun, 4.4.49).
_ATAN = (
    0.0028662257, -0.0161657367, 0.0429096138, -0.0752896400, 0.1065626393, -0.1420889944,
    0.1999355085, -0.3333314528, 1.0,
)  # fmt: skip
_LN2 = math.log(2)


def _atan_of_positive(b: Builder, y: Value) -> Value:
    """Beyond 1 it is pi/2 less that of the reciprocal."""
    t = b.min(y, b.div(1.0, y))
    near = b.mul(horner(b, _ATAN, b.mul(t, t)), t)
    far = b.sub(math.pi / 2, near)
    above = b("gt", y, b.const(1.0, y), dtype=BOOL, is_mask=True)
    return b("sel", above, far, near, dtype=near.dtype)


def _atan(b: Builder, x: Value) -> Value:
    return b.mul(_atan_of_positive(b, b("abs", x)), sign(b, x))


def _asin(b: Builder, x: Value) -> Value:
    """atan(x / √((1 - x)(1 + x)))."""
    other = b("sqrt", b.mul(b.sub(1.0, x), b.add(x, 1.0)))
    return _atan(b, b.div(x, other))


def _acos(b: Builder, x: Value) -> Value:
    """2·atan(√((1 - x) / (1 + x)))."""
    half = b("sqrt", b.div(b.sub(1.0, x), b.add(x, 1.0)))
    return b.mul(_atan_of_positive(b, half), 2.0)


def _halved_exponentials(b: Builder, x: Value) -> tuple[Value, Value]:
    """e^x / 2 and e^-x / 2: they do not overflow before the results do."""
    return b("exp", b.add(x, -_LN2)), b("exp", b.sub(-_LN2, x))


def _asinh(b: Builder, x: Value) -> Value:
    """ln(|x| + √(x² + 1)), with the sign of x."""
    size = b("abs", x)
    root = b("sqrt", b.add(b.mul(x, x), 1.0))
    return b.mul(b("ln", b.add(size, root)), sign(b, x))


def _acosh(b: Builder, x: Value) -> Value:
    """ln(x + √((x - 1)(x + 1)))."""
    return b("ln", b.add(x, b("sqrt", b.mul(b.add(x, -1.0), b.add(x, 1.0)))))


def _atanh(b: Builder, x: Value) -> Value:
    """ln((1 + x) / (1 - x)) / 2."""
    return b.mul(b("ln", b.div(b.add(x, 1.0), b.sub(1.0, x))), 0.5)


def _tan(b: Builder, attrs: Any, x: Value) -> Value:
    return b.div(LIBRARY["Sin"](b, attrs, x), LIBRARY["Cos"](b, attrs, x))


TRIGONOMETRY: dict[str, Lower] = {
    "Tan": _tan,
    "Atan": lambda b, attrs, x: _atan(b, x),
    "Asin": lambda b, attrs, x: _asin(b, x),
    "Acos": lambda b, attrs, x: _acos(b, x),
    "Sinh": lambda b, attrs, x: b.sub(*_halved_exponentials(b, x)),
    "Cosh": lambda b, attrs, x: b.add(*_halved_exponentials(b, x)),
    "Asinh": lambda b, attrs, x: _asinh(b, x),
    "Acosh": lambda b, attrs, x: _acosh(b, x),
    "Atanh": lambda b, attrs, x: _atanh(b, x),
}
LOWER.update(TRIGONOMETRY)
