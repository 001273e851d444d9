"""Gather at tile level, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, random_array

import npusim.kernels.gather  # noqa: F401
from npusim.errors import KernelError
from npusim.ir import DType
from npusim.machine.launch import run_tile_level
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan, get_kernel


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["toy", "ascend910a", "ascend910b2"]),
    st.lists(st.integers(1, 12), min_size=1, max_size=3),
    st.lists(st.integers(1, 12), max_size=2),
    st.sampled_from(["float16", "float32", "int64", "bool"]),
    st.sampled_from(["int32", "int64"]),
    st.data(),
)
def test_any_axis(
    chip: str, shape: list[int], picks: list[int], dtype: str, index: str, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    rng = np.random.default_rng(0)
    table = random_array(rng, shape, dtype)
    n = shape[axis]
    indices = rng.integers(-n, n, picks).astype(index)
    check_operator(CHIPS[chip], "Gather", "Gather", [table, indices], {"axis": axis})


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
@pytest.mark.parametrize(
    ("table", "n", "axis"), [((300, 768), 500, 0), ((3, 2, 5000), 1, 1), ((4, 700), 90, 1)]
)
def test_large(chip: str, table: tuple[int, ...], n: int, axis: int) -> None:
    rng = np.random.default_rng(1)
    x = random_array(rng, table, "float16")
    indices = rng.integers(0, table[axis], n).astype(np.int64)
    check_operator(CHIPS[chip], "Gather", "Gather", [x, indices], {"axis": axis})


def test_float_indices_are_refused() -> None:
    table, picks = OperandSpec((4, 8), DType.FLOAT16), OperandSpec((2,), DType.FLOAT32)
    args = KernelArgs("Gather", (table, picks), (table,))
    assert "float32" in get_kernel("Gather").refuse(args, CHIPS["toy"])


def test_wrong_index_is_an_error() -> None:
    table = OperandSpec((4, 8), DType.FLOAT16)
    picks, out = OperandSpec((2,), DType.INT32), OperandSpec((2, 8), DType.FLOAT16)
    args = KernelArgs("Gather", (table, picks), (out,))
    operands = [np.zeros((4, 8), np.float16), np.array([1, 4], np.int32), np.zeros((2, 8), "f2")]
    plan = choose_plan("Gather", args, CHIPS["toy"])
    with pytest.raises(KernelError, match="of 4 rows"):
        run_tile_level(CHIPS["toy"], "Gather", args, plan, operands)
