"""PadV3 at tile level, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from launching import CHIPS, check_operator, random_array

import npusim.kernels.pad_v3  # noqa: F401
from npusim.ir import DType
from npusim.program.kernel import KernelArgs, OperandSpec, get_kernel


@pytest.mark.parametrize("chip", ["toy", "ascend910a", "ascend910b2"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
@pytest.mark.parametrize(
    ("shape", "pads"),
    [
        ((37,), (3, 5)),
        ((6, 70), (0, 1, 2, 9)),
        ((3, 7, 45), (1, 0, 2, 0, 3, 1)),
        ((2, 3, 50, 12), (0, 1, 1, 2, 1, 0, 3, 4)),
        ((5, 1100), (1, 3, 1, 2)),
        ((2, 4, 1024), (0, 0, 0, 0, 0, 64)),
    ],
)
def test_constant(chip: str, dtype: str, shape: tuple[int, ...], pads: tuple[int, ...]) -> None:
    x = random_array(np.random.default_rng(0), shape, dtype)
    constants = [np.asarray(pads, np.int64)]
    check_operator(
        CHIPS[chip], "PadV3", "Pad", [x], {"mode": "constant"}, constants, {"pads": pads}
    )


def test_what_is_refused() -> None:
    x, y = OperandSpec((4, 8), DType.FLOAT16), OperandSpec((4, 6), DType.FLOAT16)
    refuse = get_kernel("PadV3").refuse
    assert "negative" in refuse(
        KernelArgs("Pad", (x,), (y,), (("pads", (0, -1, 0, -1)),)), CHIPS["toy"]
    )
    assert "Slice" in refuse(KernelArgs("Slice", (x,), (y,)), CHIPS["toy"])
