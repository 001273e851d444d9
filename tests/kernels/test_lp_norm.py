"""LpNorm and L2Loss at tile level: reduced axes last, in the middle, on both sides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, random_array

import npusim.kernels  # noqa: F401  (registers the kernels)
from npusim.errors import GraphError
from npusim.ir import DType, Node, TensorType
from npusim.ops import infer_node

AXES = ((), (0,), (1,), (2,), (0, 2), (1, 2), (0, 1), (0, 1, 2))


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
@settings(max_examples=24, deadline=None)
@given(
    st.sampled_from(["float16", "float32"]),
    st.sampled_from(AXES),
    st.sampled_from([0, 1, 2, 3, 5, "inf", "-inf"]),
    st.booleans(),
    st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 150)),
)
def test_norms(
    chip: str, dtype: str, axes: tuple[int, ...], p: object, keep: bool, shape: tuple[int, ...]
) -> None:
    x = random_array(np.random.default_rng(shape[-1]), shape, dtype)
    x[..., ::3] = 0
    attrs = {"axes": axes, "p": p, "keepdims": int(keep), "epsilon": 1e-6}
    check_operator(
        CHIPS[chip], "LpNorm", "LpNorm", [x], attrs, rtol=2e-3 if dtype == "float16" else 1e-5
    )


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
@settings(max_examples=12, deadline=None)
@given(st.sampled_from(["float16", "float32"]), st.integers(1, 5000))
def test_half_the_sum_of_squares(chip: str, dtype: str, n: int) -> None:
    x = random_array(np.random.default_rng(n), (n,), dtype)
    rtol = 5e-3 if dtype == "float16" else 1e-5
    check_operator(CHIPS[chip], "LpNorm", "L2Loss", [x], {}, rtol=rtol)


def test_other_powers_are_refused() -> None:
    x = np.ones((4, 5), np.float32)
    node = Node("n", "LpNorm", ("x",), ("y",), {"p": 2.5})
    with pytest.raises(GraphError, match="p = 2"):
        infer_node(node, [TensorType(x.shape, DType.FLOAT32)], [x])
