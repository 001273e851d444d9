"""Transpose, DepthToSpace and SpaceToDepth are numpy's, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, random_array

import npusim.kernels.transpose  # noqa: F401
from npusim.ir import DType, Layout
from npusim.program.kernel import KernelArgs, OperandSpec, get_kernel

CHIP_NAMES = st.sampled_from(["toy", "ascend910a", "ascend910b2"])
DTYPES = st.sampled_from(["float16", "float32", "int64", "bool", "int8", "bfloat16"])


@settings(max_examples=50, deadline=None)
@given(CHIP_NAMES, st.lists(st.integers(1, 24), min_size=1, max_size=4), DTYPES, st.data())
def test_permutations(chip: str, shape: list[int], dtype: str, data: st.DataObject) -> None:
    perm = tuple(data.draw(st.permutations(range(len(shape)))))
    x = random_array(np.random.default_rng(0), shape, dtype)
    check_operator(CHIPS[chip], "Transpose", "Transpose", [x], {"perm": perm})


@pytest.mark.parametrize(
    ("shape", "perm"),
    [((300, 210), (1, 0)), ((5, 9, 12, 64), (0, 2, 1, 3)), ((2, 40, 33, 3), (0, 3, 1, 2))],
)
@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
def test_large(chip: str, shape: tuple[int, ...], perm: tuple[int, ...]) -> None:
    x = random_array(np.random.default_rng(1), shape, "float16")
    check_operator(CHIPS[chip], "Transpose", "Transpose", [x], {"perm": perm})


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space(mode: str) -> None:
    rng = np.random.default_rng(2)
    for op, shape in (("DepthToSpace", (2, 18, 5, 7)), ("SpaceToDepth", (2, 5, 6, 9))):
        x = random_array(rng, shape, "float16")
        attrs = {"blocksize": 3, "mode": mode}
        check_operator(CHIPS["ascend910a"], "Transpose", op, [x], attrs)


def test_refuses_blocked_layouts() -> None:
    x = OperandSpec((1, 16, 4, 4), DType.FLOAT16, Layout.NC1HWC0)
    args = KernelArgs("Transpose", (x,), (x,), (("perm", (0, 2, 3, 1)),))
    assert get_kernel("Transpose").refuse(args, CHIPS["toy"])
