"""BinaryCrossEntropy at tile level, with a logarithm of the unit's and by the series."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator

import npusim.kernels  # noqa: F401  (registers the kernels)
from npusim.chip import load_chip
from npusim.kernels.binary_cross_entropy import has_logarithm

ALL = {**CHIPS, "ascend310": load_chip("ascend310")}


@pytest.mark.parametrize("chip", ["toy", "ascend910a", "ascend310"])
@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(["float16", "float32"]),
    st.sampled_from(["none", "sum", "mean"]),
    st.booleans(),
    st.integers(1, 3000),
)
def test_losses(chip: str, dtype: str, reduction: str, weighted: bool, n: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.uniform(0, 1, n)
    x[:3] = (0.0, 1.0, 0.5)[: len(x[:3])]
    y = (rng.random(n) < 0.5).astype(float)
    inputs = [a.astype(dtype) for a in (x, y, rng.random(n))[: 2 + weighted]]
    tolerance = 4e-3 if dtype == "float16" else 5e-4  # nine terms at 1/2: 1e-4 too little
    check_operator(
        ALL[chip], "BinaryCrossEntropy", "BinaryCrossEntropy", inputs, {"reduction": reduction},
        rtol=tolerance, atol=tolerance,
    )  # fmt: skip


def test_the_310_alone_takes_the_series() -> None:
    assert [has_logarithm(c) for c in ALL.values()] == [True, True, True, False]
