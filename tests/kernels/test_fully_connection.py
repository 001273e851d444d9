"""FullyConnection at tile level: rows in fractals and rows of an image, fp16 and int8."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator

import npusim.kernels  # noqa: F401  (registers the kernels)
from npusim.chip import load_chip
from npusim.errors import UnsupportedError
from npusim.ir import DType, Layout
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan

NZ, FZ, NC = Layout.FRACTAL_NZ, Layout.FRACTAL_Z, Layout.NC1HWC0
ALL = {**CHIPS, "ascend310": load_chip("ascend310")}


def operands(rng: np.random.Generator, shape: tuple[int, ...], n: int, dtype: str) -> list:
    """Rows, weights, bias: whole numbers, which sum exactly."""
    k = int(np.prod(shape[1:])) if len(shape) == 4 else shape[-1]
    wide = "int32" if dtype == "int8" else dtype
    shapes = (shape, (n, k, 1, 1), (1, n, 1, 1))
    kinds = (dtype, dtype, wide)
    return [rng.integers(-2, 3, s).astype(t) for s, t in zip(shapes, kinds, strict=True)]


@pytest.mark.parametrize("chip", ["ascend910a", "ascend310"])
@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["float16", "int8"]),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(1, 5),
)
def test_rows_in_fractals(chip: str, dtype: str, batch: int, m1: int, k1: int, n1: int) -> None:
    k = k1 * (32 if dtype == "int8" else 16)
    shape = (batch, 16 * m1, k) if batch > 1 else (16 * m1, k)
    inputs = operands(np.random.default_rng(k), shape, 16 * n1, dtype)
    check_operator(
        ALL[chip], "FullyConnection", "FullyConnection", inputs, {}, layouts=(NZ, FZ, NC, NZ)
    )


@pytest.mark.parametrize("chip", ["ascend910a", "ascend310"])
@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["float16", "int8"]),
    st.integers(1, 40),
    st.integers(1, 2),
    st.integers(1, 9),
    st.integers(1, 5),
)
def test_rows_of_an_image(chip: str, dtype: str, m: int, c1: int, h: int, n1: int) -> None:
    c = c1 * (32 if dtype == "int8" else 16)
    inputs = operands(np.random.default_rng(m), (m, c, h, 3), 16 * n1, dtype)
    check_operator(
        ALL[chip], "FullyConnection", "FullyConnection", inputs, {}, layouts=(NC, FZ, NC, NZ)
    )


def test_chips_without_the_way_through_the_vector_unit_are_refused() -> None:
    x, w = (
        OperandSpec((2, 16, 64), DType.FLOAT16, NZ),
        OperandSpec((16, 64, 1, 1), DType.FLOAT16, FZ),
    )
    bias, out = (
        OperandSpec((1, 16, 1, 1), DType.FLOAT16, NC),
        OperandSpec((2, 16, 16), DType.FLOAT16, NZ),
    )
    args = KernelArgs("FullyConnection", (x, w, bias), (out,))
    with pytest.raises(UnsupportedError, match="vector unit"):
        choose_plan("FullyConnection", args, CHIPS["ascend910b2"])
