"""Iou at tile level, with a division and with Newton steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator

import npusim.kernels  # noqa: F401  (registers the kernels)
from npusim.chip import load_chip
from npusim.errors import UnsupportedError
from npusim.ir import DType
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan

ALL = {**CHIPS, "ascend310": load_chip("ascend310")}


def boxes(rng: np.random.Generator, n: int, dtype: str) -> np.ndarray:
    """n boxes whose corners are in order."""
    low = rng.uniform(0, 8, (n, 2))
    return np.concatenate([low, low + rng.uniform(1, 8, (n, 2))], axis=1).astype(dtype)


@pytest.mark.parametrize("chip", ["toy", "ascend910a", "ascend310"])
@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(["float16", "float32"]),
    st.sampled_from(["iou", "iof"]),
    st.sampled_from([0.125, 1.0]),
    st.integers(1, 60),
    st.integers(1, 20),
)
def test_overlaps(chip: str, dtype: str, mode: str, eps: float, n: int, m: int) -> None:
    rng = np.random.default_rng(n)
    inputs = [boxes(rng, n, dtype), boxes(rng, m, dtype)]
    tolerance = 2e-2 if dtype == "float16" else 1e-5
    check_operator(
        ALL[chip], "Iou", "Iou", inputs, {"mode": mode, "eps": eps},
        rtol=tolerance, atol=tolerance,
    )  # fmt: skip


def test_more_boxes_are_refused() -> None:
    many, one = OperandSpec((2049, 4), DType.FLOAT16), OperandSpec((1, 4), DType.FLOAT16)
    args = KernelArgs("Iou", (many, one), (OperandSpec((1, 2049), DType.FLOAT16),))
    with pytest.raises(UnsupportedError, match="2049 boxes"):
        choose_plan("Iou", args, CHIPS["ascend910a"])
