"""BitMask at tile level: data kept where a bit is set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, random_array, timed

import npusim.kernels  # noqa: F401  (registers the kernels)
from npusim.errors import UnsupportedError
from npusim.ir import DType
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["toy", "ascend910a"]),
    st.sampled_from(["float16", "float32"]),
    st.integers(1, 9000),
)
def test_relu_grad(chip: str, dtype: str, n: int) -> None:
    rng = np.random.default_rng(n)
    mask = rng.integers(0, 256, -(-n // 8)).astype(np.uint8)
    check_operator(CHIPS[chip], "BitMask", "ReluGradV2", [random_array(rng, (n,), dtype), mask], {})


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["toy", "ascend910a"]), st.sampled_from(["float16", "float32"]),
       st.integers(1, 6000))  # fmt: skip
def test_dropout(chip: str, dtype: str, n: int) -> None:
    rng = np.random.default_rng(n)
    mask = rng.integers(0, 256, -(-n // 8)).astype(np.uint8)
    keep = np.full((1,), 0.9, dtype)
    x = random_array(rng, (n,), dtype)
    check_operator(CHIPS[chip], "BitMask", "DropOutDoMask", [x, mask, keep], {},
                   rtol=2e-3, atol=1e-6)  # fmt: skip


def test_the_barrier_costs() -> None:
    """A generated select pays a barrier for every repeat, the hand-written dropout does not."""
    x = OperandSpec((1 << 22,), DType.FLOAT16)
    mask = OperandSpec((1 << 19,), DType.UINT8)
    keep = OperandSpec((1,), DType.FLOAT16)
    chip = CHIPS["ascend910a"]
    relu, _ = timed(chip, "BitMask", KernelArgs("ReluGradV2", (x, mask), (x,)))
    drop, _ = timed(chip, "BitMask", KernelArgs("DropOutDoMask", (x, mask, keep), (x,)))
    assert drop.cycles < 0.8 * relu.cycles


def test_a_short_mask_is_refused() -> None:
    x = OperandSpec((4096,), DType.FLOAT16)
    args = KernelArgs("ReluGradV2", (x, OperandSpec((511,), DType.UINT8)), (x,))
    with pytest.raises(UnsupportedError, match="a bit for each element"):
        choose_plan("BitMask", args, CHIPS["toy"])
