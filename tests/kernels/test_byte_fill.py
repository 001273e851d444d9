"""Constants of one-byte types at tile level."""

from __future__ import annotations

import numpy as np
import pytest
from launching import CHIPS

import npusim.kernels.byte_fill  # noqa: F401
from npusim.ir import DType
from npusim.machine.launch import run_tile_level, time_launch
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan, get_kernel


@pytest.mark.parametrize("chip", ["toy", "ascend910a", "ascend910b2"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool"])
@pytest.mark.parametrize("n", [1, 33, 5000, 400_001])
def test_values(chip: str, dtype: str, n: int) -> None:
    spec = OperandSpec((n,), DType(dtype))
    args = KernelArgs("MemSet", (), (spec,), (("value", 1),))
    plan = choose_plan("FillBytes", args, CHIPS[chip])
    out = np.zeros(n, dtype)
    run_tile_level(CHIPS[chip], "FillBytes", args, plan, [out])
    assert (out == 1).all()
    assert time_launch(CHIPS[chip], "FillBytes", args, plan).cycles > 0


def test_wider_types_are_refused() -> None:
    args = KernelArgs("MemSet", (), (OperandSpec((4,), DType.FLOAT16),))
    assert "float16" in get_kernel("FillBytes").refuse(args, CHIPS["toy"])
