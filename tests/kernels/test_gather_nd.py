"""GatherND and GatherElements at tile level, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, random_array, timed

import npusim.kernels.gather
import npusim.kernels.gather_nd  # noqa: F401
from npusim.errors import KernelError
from npusim.ir import DType
from npusim.machine.launch import run_tile_level
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan, get_kernel

EXTENTS = st.sampled_from([1, 2, 3, 7, 16, 33])


def tuples(shape: Sequence[int], extents: Sequence[int], dtype: str) -> np.ndarray:
    rng = np.random.default_rng(2)
    return np.stack([rng.integers(-n, n, shape) for n in extents], -1).astype(dtype)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(list(CHIPS)),
    st.lists(EXTENTS, min_size=1, max_size=4),
    st.lists(EXTENTS, max_size=2),
    st.sampled_from(["float16", "float32", "int64", "bool"]),
    st.sampled_from(["int32", "int64"]),
    st.data(),
)
def test_tuples(
    chip: str, shape: list[int], chosen: list[int], dtype: str, index: str, data: st.DataObject
) -> None:
    batch = data.draw(st.integers(0, len(shape) - 1))
    k = data.draw(st.integers(1, len(shape) - batch))
    x = random_array(np.random.default_rng(0), shape, dtype)
    picks = tuples((*shape[:batch], *chosen), shape[batch : batch + k], index)
    check_operator(CHIPS[chip], "GatherND", "GatherND", [x, picks], {"batch_dims": batch})


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(list(CHIPS)),
    st.lists(EXTENTS, min_size=1, max_size=3),
    st.integers(1, 40),
    st.sampled_from(["float16", "int64", "bool"]),
    st.data(),
)
def test_elements(chip: str, shape: list[int], n: int, dtype: str, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = random_array(np.random.default_rng(0), shape, dtype)
    picks = tuples((*shape[:axis], n, *shape[axis + 1 :]), shape[axis : axis + 1], "int64")[..., 0]
    check_operator(CHIPS[chip], "GatherND", "GatherElements", [x, picks], {"axis": axis})


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
def test_long_rows_are_cut(chip: str) -> None:
    x = random_array(np.random.default_rng(1), (30, 20000), "float16")
    plan = check_operator(
        CHIPS[chip], "GatherND", "GatherND", [x, tuples((40,), (30,), "int64")], {}
    )
    assert (plan.tiling["part"] < 20000) == (chip == "toy")


def test_what_is_refused() -> None:
    x, picks = OperandSpec((4, 8), DType.FLOAT16), OperandSpec((4, 1), DType.FLOAT32)
    refuse = get_kernel("GatherND").refuse
    assert "float32" in refuse(KernelArgs("GatherND", (x, picks), (x,)), CHIPS["toy"])
    picks = OperandSpec((3, 2), DType.INT64)
    few = KernelArgs("GatherElements", (x, picks), (OperandSpec((3, 2), x.dtype),), (("axis", 1),))
    assert "beside the axis" in refuse(few, CHIPS["toy"])


def test_a_wrong_index_is_an_error() -> None:
    x, out = OperandSpec((4, 8), DType.FLOAT16), OperandSpec((2, 8), DType.FLOAT16)
    args = KernelArgs("GatherND", (x, OperandSpec((2, 1), DType.INT32)), (out,))
    operands = [np.zeros((4, 8), "f2"), np.array([[1], [-5]], np.int32), np.zeros((2, 8), "f2")]
    plan = choose_plan("GatherND", args, CHIPS["toy"])
    with pytest.raises(KernelError, match="dimension of 4"):
        run_tile_level(CHIPS["toy"], "GatherND", args, plan, operands)


def test_tuples_of_one_take_as_long_as_gather() -> None:
    chip = CHIPS["ascend910a"]
    x, out = OperandSpec((30000, 768), DType.FLOAT16), OperandSpec((4096, 768), DType.FLOAT16)
    nd = KernelArgs("GatherND", (x, OperandSpec((4096, 1), DType.INT64)), (out,))
    plain = KernelArgs("Gather", (x, OperandSpec((4096,), DType.INT64)), (out,))
    ours, theirs = (
        timed(chip, name, a)[0].cycles for name, a in (("GatherND", nd), ("Gather", plain))
    )
    assert 0.9 < ours / theirs < 1.2
