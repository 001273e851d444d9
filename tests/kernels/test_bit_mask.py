"""BitMask at tile level: data kept where a bit is set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, random_array

import npusim.kernels  # noqa: F401  (registers the kernels)
from npusim.errors import UnsupportedError
from npusim.ir import DType, Layout
from npusim.machine.launch import run_tile_level, time_launch
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


def _image(n: int, c1: int, h: int, w: int) -> KernelArgs:
    """ReluGradV2 of an NC1HWC0 image."""
    x = OperandSpec((n, 16 * c1, h, w), DType.FLOAT16, Layout.NC1HWC0)
    return KernelArgs("ReluGradV2", (x, OperandSpec((n, c1, h, w, 2), DType.UINT8)), (x,))


@pytest.mark.parametrize(
    ("shape", "tiling"),
    [  # (images, rows, slices) of a block and its tiles, on 32 cores
        ((64, 4, 14, 14), (2, 14, 4)),
        ((33, 3, 71, 71), (2, 1, 1)),  # a prime number of rows: one by one
        ((2, 40, 7, 7), (2, 7, 2)),  # by channel blocks, two to a block
    ],
)
def test_an_image_is_cut_evenly(
    shape: tuple[int, int, int, int], tiling: tuple[int, int, int]
) -> None:
    plan = choose_plan("BitMask", _image(*shape), CHIPS["ascend910a"])
    assert tuple(plan.tiling[k] for k in ("per_n", "rows", "group")) == tiling


def test_uneven_channel_blocks_are_one_flat_axis() -> None:
    plan = choose_plan("BitMask", _image(2, 41, 7, 7), CHIPS["ascend910a"])
    assert "rows" not in plan.tiling


@pytest.mark.parametrize("shape", [(40, 2, 3, 5), (33, 1, 71, 71), (3, 2, 4, 4)])
def test_relu_grad_of_an_image(shape: tuple[int, int, int, int]) -> None:
    """Bits stand in the order of storage."""
    rng, (n, c1, h, w) = np.random.default_rng(1), shape
    x = random_array(rng, (n, c1, h, w, 16), "float16")
    mask = rng.integers(0, 256, (n, c1, h, w, 2)).astype(np.uint8)
    args, chip, got = _image(*shape), CHIPS["ascend910a"], np.ones_like(x)
    plan = choose_plan("BitMask", args, chip)
    run_tile_level(chip, "BitMask", args, plan, [x, mask, got])
    bits = np.unpackbits(mask.reshape(-1), bitorder="little").reshape(x.shape)
    np.testing.assert_array_equal(got, np.where(bits, x, np.float16(0)))
    cycles = time_launch(chip, "BitMask", args, plan).cycles
    assert cycles == time_launch(chip, "BitMask", args, plan, engine="simpy").cycles


def test_a_short_mask_is_refused() -> None:
    x = OperandSpec((4096,), DType.FLOAT16)
    args = KernelArgs("ReluGradV2", (x, OperandSpec((511,), DType.UINT8)), (x,))
    with pytest.raises(UnsupportedError, match="a bit for each element"):
        choose_plan("BitMask", args, CHIPS["toy"])
