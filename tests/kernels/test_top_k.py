"""TopKD at tile level: sorted values and their columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator

import npusim.kernels  # noqa: F401  (registers the kernels)
from npusim.errors import UnsupportedError
from npusim.ir import DType
from npusim.ops.cann_top_k import assist
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
@settings(max_examples=10, deadline=None)
@given(st.integers(1, 40), st.integers(1, 100), st.data())
def test_largest_first(chip: str, rows: int, columns: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, columns))
    x = np.random.default_rng(columns).permuted(
        np.arange(rows * columns).reshape(rows, columns) % 2000, axis=1
    )
    inputs = [(x - 700).astype(np.float16), assist()]
    check_operator(CHIPS[chip], "TopKD", "TopKD", inputs, {"k": k}, n_outputs=2)


def test_columns_beyond_the_whole_numbers_of_fp16() -> None:
    rng = np.random.default_rng(3)
    x = rng.permutation(np.linspace(-2, 2, 3000)).astype(np.float16).reshape(1, -1)
    check_operator(CHIPS["ascend910a"], "TopKD", "TopKD", [x, assist()], {"k": 100}, n_outputs=2)


def test_longer_rows_are_refused() -> None:
    x, table = OperandSpec((4, 4097), DType.FLOAT16), OperandSpec((8192,), DType.FLOAT16)
    outs = (OperandSpec((4, 9), DType.FLOAT16), OperandSpec((4, 9), DType.INT32))
    with pytest.raises(UnsupportedError, match="rows of 4097"):
        choose_plan("TopKD", KernelArgs("TopKD", (x, table), outs, (("k", 9),)), CHIPS["toy"])
