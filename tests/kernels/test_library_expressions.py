"""Sine, cosine and the fast GELU at tile level against numpy."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import npusim.kernels  # noqa: F401  (registers the kernels)
from tests.kernels.launching import CHIPS, check_operator, random_array

RTOL = {"float16": 4e-3, "float32": 2e-5}


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["toy", "ascend910a", "ascend910b2"]),
    st.sampled_from(["float16", "float32"]),
    st.sampled_from(["Sin", "Cos", "FastGelu", "FastGeluGrad"]),
    st.integers(1, 700),
    st.sampled_from([1.0, 30.0, 900.0]),
)
def test_programs(chip: str, dtype: str, op: str, n: int, scale: float) -> None:
    rng = np.random.default_rng(n)
    scale = min(scale, 30.0) if "Gelu" in op else scale
    count = 2 if op.endswith("Grad") else 1
    inputs = [random_array(rng, (n,), dtype) * np.dtype(dtype).type(scale) for _ in range(count)]
    atol = 2e-3 if dtype == "float16" or "Gelu" in op else 2e-5
    check_operator(CHIPS[chip], "Elementwise", op, inputs, {}, rtol=RTOL[dtype], atol=atol)
