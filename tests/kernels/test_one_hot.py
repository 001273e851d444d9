"""OneHot at tile level, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from launching import CHIPS

import npusim.kernels.one_hot  # noqa: F401
from npusim.ir import DType
from npusim.machine.launch import run_tile_level
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan, get_kernel


@pytest.mark.parametrize("chip", ["toy", "ascend910a", "ascend910b2"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
@pytest.mark.parametrize(
    ("shape", "depth", "index"), [((1,), 3, "int32"), ((7, 9), 40, "int64"), ((3,), 9000, "int32")]
)
def test_rows(chip: str, dtype: str, shape: tuple[int, ...], depth: int, index: str) -> None:
    picks = np.random.default_rng(0).integers(-depth, depth, shape).astype(index)
    kinds = (OperandSpec(shape, DType(index)), OperandSpec((*shape, depth), DType(dtype)))
    value = OperandSpec((), DType(dtype))
    want = np.where((picks % depth)[..., None] == np.arange(depth), 5, 2).astype(dtype)
    on_off = [np.array(v, dtype) for v in (5, 2)]
    for args, given in (
        (KernelArgs("OneHot", kinds[:1], kinds[1:], (("off", 2), ("on", 5))), []),
        (KernelArgs("OneHot", (kinds[0], value, value), kinds[1:]), on_off),
    ):
        plan = choose_plan("OneHot", args, CHIPS[chip])
        out = np.full((*shape, depth), 77, dtype)
        run_tile_level(CHIPS[chip], "OneHot", args, plan, [picks, *given, out])
        np.testing.assert_array_equal(out, want)


def test_an_inner_axis_is_refused() -> None:
    picks, out = OperandSpec((4,), DType.INT32), OperandSpec((3, 4), DType.FLOAT32)
    assert "axis" in get_kernel("OneHot").refuse(
        KernelArgs("OneHot", (picks,), (out,)), CHIPS["toy"]
    )
