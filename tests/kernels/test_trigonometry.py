"""Trigonometric programs at tile level against numpy, in their whole domains."""

from __future__ import annotations

import numpy as np
import pytest
from launching import CHIPS, check_operator

DOMAINS = {
    "Acos": (-1, 1),
    "Asin": (-1, 1),
    "Atanh": (-0.999, 0.999),
    "Acosh": (1, 40),
    "Asinh": (-40, 40),
    "Atan": (-40, 40),
    "Tan": (-1.5, 1.5),
    "Sinh": (-80, 80),
    "Cosh": (-80, 80),
}


@pytest.mark.parametrize("op", DOMAINS)
@pytest.mark.parametrize(
    ("chip", "dtype", "rtol"), [("toy", "float16", 2e-3), ("ascend910b2", "float32", 3e-5)]
)
def test_domain(chip: str, dtype: str, rtol: float, op: str) -> None:
    low, high = DOMAINS[op]
    if dtype == "float16" and op in ("Sinh", "Cosh"):
        low, high = -11, 11
    x = np.linspace(low, high, 1003).astype(dtype)
    check_operator(CHIPS[chip], "Elementwise", op, [x], {}, rtol=rtol, atol=1e-6)


def test_ends() -> None:
    x = np.array([0, 1e30, -1e30, np.inf, -np.inf, 1, -1], np.float32)
    check_operator(CHIPS["toy"], "Elementwise", "Atan", [x], {}, rtol=1e-6, atol=1e-6)
    x = np.array([-1, 1, 0, 2, -2], np.float32)
    for op in ("Asin", "Acos", "Acosh"):
        check_operator(CHIPS["toy"], "Elementwise", op, [x], {}, rtol=1e-6, atol=1e-6)


def test_shrink() -> None:
    x = np.linspace(-3, 3, 301).astype(np.float32)
    for attrs in ({"lambd": 1.5}, {"lambd": 0.5, "bias": 0.25}):
        launch = {"lambd": 0.5, "bias": 0.0, **attrs}
        for kind in (np.float16, np.float32):
            check_operator(CHIPS["toy"], "Elementwise", "Shrink", [x.astype(kind)], launch,
                           rtol=1e-3 if kind == np.float16 else 0.0, atol=0.0)  # fmt: skip
