"""Elementary functions of one tensor: signs, roots, exponentials, rounding, trigonometry."""

from __future__ import annotations

import math

import numpy as np

from npusim.ir import DType
from npusim.ops.common import Movement, elementwise
from npusim.ops.registry import Arrays, Attrs, Types, operator

# erf(x) ≈ x · P(x²) / Q(x²) on [-4, 4] (coefficients as in Eigen and TensorFlow).
ERF_P = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
ERF_Q = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)
_math_erf = np.frompyfunc(math.erf, 1, 1)


def _horner(coefficients: tuple[float, ...], x: np.ndarray) -> np.ndarray:
    y = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        y *= x
        y += x.dtype.type(c)
    return y


def erf(x: np.ndarray) -> np.ndarray:
    """The error function: a rational approximation for fp32, the C library's for fp64."""
    x = np.asarray(x)
    if x.dtype == np.float64:
        return np.asarray(_math_erf(x)).astype(np.float64)
    x = np.clip(x, -4, 4)
    square = x * x
    y = _horner(ERF_P, square)
    y *= x
    y /= _horner(ERF_Q, square)
    return np.clip(y, -1, 1, out=y) if y.ndim else np.clip(y, -1, 1)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x)."""
    y = np.exp(-x)
    y += 1
    return np.reciprocal(y)


def _is_inf(x: np.ndarray, detect_negative: int, detect_positive: int) -> np.ndarray:
    return np.isinf(x) & (((x < 0) & bool(detect_negative)) | ((x > 0) & bool(detect_positive)))


@operator("Identity")
class Identity(Movement):
    """The input itself."""

    elementwise = True

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [x[0]]


elementwise("Neg", np.negative)
elementwise("Abs", np.abs)
elementwise("Sign", np.sign, passes=2)
elementwise("Exp", np.exp)
elementwise("Log", np.log)
elementwise("Sqrt", np.sqrt)
elementwise("Reciprocal", np.reciprocal)
elementwise("Erf", erf, passes=14)
elementwise("Floor", np.floor)
elementwise("Ceil", np.ceil)
elementwise("Round", np.rint)
elementwise("IsNaN", np.isnan, dtype=DType.BOOL)
elementwise("IsInf", _is_inf, attrs={"detect_negative": 1, "detect_positive": 1}, dtype=DType.BOOL)
for _name, _fn in {
    "Sin": np.sin,
    "Cos": np.cos,
    "Tan": np.tan,
    "Asin": np.arcsin,
    "Acos": np.arccos,
    "Atan": np.arctan,
    "Sinh": np.sinh,
    "Cosh": np.cosh,
    "Asinh": np.arcsinh,
    "Acosh": np.arccosh,
    "Atanh": np.arctanh,
}.items():
    elementwise(_name, _fn, passes=8)
