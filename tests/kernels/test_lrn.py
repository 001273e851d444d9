"""LRN at tile level against the operator."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, random_array

import npusim.kernels.lrn  # noqa: F401
from npusim.ir import DType, Layout
from npusim.program.kernel import KernelArgs, OperandSpec, get_kernel

TOLERANCE = {"float16": 1e-3, "float32": 1e-5}


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["toy", "ascend910a", "ascend910b2"]),
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 9), st.integers(1, 9)),
    st.integers(1, 6),
    st.sampled_from(["float16", "float32"]),
)
def test_any_shape(chip: str, shape: tuple[int, ...], size: int, dtype: str) -> None:
    x = random_array(np.random.default_rng(0), shape, dtype)
    attrs = {"size": size, "alpha": 0.3, "beta": 0.75, "bias": 1.5}
    tolerance = TOLERANCE[dtype]
    check_operator(CHIPS[chip], "LRN", "LRN", [x], attrs, rtol=tolerance, atol=tolerance)


def test_more_channels_than_ub_holds() -> None:
    x = random_array(np.random.default_rng(1), (1, 300, 9, 9), "float16")
    attrs = {"size": 5, "alpha": 0.3, "beta": 0.75, "bias": 1.0}
    for chip in ("toy", "ascend910a"):
        check_operator(CHIPS[chip], "LRN", "LRN", [x], attrs, rtol=1e-3, atol=1e-3)


def test_refuses_blocked_images() -> None:
    x = OperandSpec((1, 16, 4, 4), DType.FLOAT16, Layout.NC1HWC0)
    args = KernelArgs("LRN", (x,), (x,), (("size", 3),))
    assert "ND only" in get_kernel("LRN").refuse(args, CHIPS["toy"])
