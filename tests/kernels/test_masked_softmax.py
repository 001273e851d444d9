"""ScaledMaskedSoftmax and its gradient at tile level against the operators."""

from __future__ import annotations

import numpy as np
import pytest
from launching import CHIPS, check_operator, random_array

import npusim.kernels.masked_softmax as module
from npusim.ir import DType
from npusim.machine.gm import hot
from npusim.machine.launch import time_launch
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan

RTOL = {"float16": 6e-3, "bfloat16": 2e-2, "float32": 1e-4}


@pytest.mark.parametrize(
    ("chip", "dtype", "shape", "mask"),
    [
        ("ascend910b2", "float16", (2, 3, 32, 64), (1, 1, 32, 64)),
        ("ascend910b2", "float16", (2, 1, 32, 1024), (2, 1, 32, 1024)),
        ("ascend910a", "float16", (1, 3, 64, 96), (1, 3, 64, 96)),
        ("ascend910b2", "float32", (2, 2, 32, 224), (2, 1, 32, 224)),
        ("ascend910b2", "bfloat16", (2, 1, 64, 2080), (1, 1, 64, 2080)),
        ("ascend910b2", "float32", (1, 1, 32, 32), (1, 1, 32, 32)),
    ],
)
def test_rows(chip: str, dtype: str, shape: tuple[int, ...], mask: tuple[int, ...]) -> None:
    rng = np.random.default_rng(shape[-1])
    x, hidden = random_array(rng, shape, dtype), rng.random(mask) < 0.4
    hidden[..., 0] = False
    check_operator(
        CHIPS[chip], "ScaledMaskedSoftmax", "ScaledMaskedSoftmax", [x, hidden], {"scale": 0.5},
        rtol=RTOL[dtype], atol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("chip", "dtype", "shape", "mask"),
    [
        ("ascend910b2", "float16", (2, 3, 32, 64), (1, 1, 32, 64)),
        ("ascend910b2", "float16", (2, 1, 32, 1024), (2, 1, 32, 1024)),
        ("ascend910a", "float16", (1, 3, 64, 96), (1, 3, 64, 96)),
        ("ascend910b2", "bfloat16", (2, 1, 64, 2080), (1, 1, 64, 2080)),
        ("ascend910b2", "bfloat16", (1, 1, 32, 32), (1, 1, 32, 32)),
    ],
)
def test_grad(chip: str, dtype: str, shape: tuple[int, ...], mask: tuple[int, ...]) -> None:
    rng = np.random.default_rng(shape[-1])
    dy, hidden = random_array(rng, shape, dtype), rng.random(mask) < 0.4
    y = np.exp(random_array(rng, shape, "float32"))
    y = (y / y.sum(-1, keepdims=True)).astype(dy.dtype)
    check_operator(
        CHIPS[chip], "ScaledMaskedSoftmaxGrad", "ScaledMaskedSoftmaxGrad", [dy, y, hidden],
        {"scale": 0.5}, rtol=RTOL[dtype], atol=1e-4,
    )  # fmt: skip


def _args(shape: tuple[int, ...], dtype: DType = DType.FLOAT16) -> KernelArgs:
    x = OperandSpec(shape, dtype)
    return KernelArgs("ScaledMaskedSoftmax", (x, OperandSpec(shape, DType.BOOL)), (x,))


def test_row_by_row_folds_make_its_time() -> None:
    """About 37 cycles per 64 scores of rows of 1024 in L2, most of them waits for the fold."""
    chip = CHIPS["ascend910b2"]
    args = _args((1, 48, 160, 1024))
    plan = choose_plan("ScaledMaskedSoftmax", args, chip)
    cycles = time_launch(chip, "ScaledMaskedSoftmax", args, plan, hot(plan)).cycles
    assert plan.block_dim == 48
    assert 33 < cycles / (10 * 16 * 1024 / 64) < 41


@pytest.mark.parametrize(
    ("shape", "dtype", "chip", "reason"),
    [
        ((1, 1, 32, 50), DType.FLOAT16, "ascend910b2", "rows of 50"),
        ((1, 1, 40, 64), DType.FLOAT16, "ascend910b2", "planes of 40"),
        ((1, 1, 32, 64), DType.FLOAT32, "ascend910a", "vcgmax"),
    ],
)
def test_what_the_kernel_refuses(
    shape: tuple[int, ...], dtype: DType, chip: str, reason: str
) -> None:
    assert reason in module.MaskedSoftmax.refuse(_args(shape, dtype), CHIPS[chip])
