"""InstanceNorm at tile level: sweeps over whole slices and over single rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, random_array

import npusim.kernels  # noqa: F401  (registers the kernels)
from npusim.chip import load_chip
from npusim.errors import UnsupportedError
from npusim.ir import DType
from npusim.machine.launch import time_launch
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["float16", "float32"]),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 7),
    st.integers(1, 150),
)
def test_normalises(chip: str, dtype: str, n: int, c: int, h: int, w: int) -> None:
    rng = np.random.default_rng(w)
    inputs = [random_array(rng, s, dtype) for s in ((n, c, h, w), (c,), (c,))]
    tolerance = 4e-3 if dtype == "float16" else 1e-4
    check_operator(
        CHIPS[chip], "InstanceNorm", "InstanceNorm", inputs, {"epsilon": 1e-3}, n_outputs=3,
        rtol=tolerance, atol=10 * tolerance,
    )  # fmt: skip


def launch(shape: tuple[int, ...]) -> KernelArgs:
    x, v = OperandSpec(shape, DType.FLOAT32), OperandSpec(shape[1:2], DType.FLOAT32)
    kept = OperandSpec((*shape[:2], 1, 1), DType.FLOAT32)
    return KernelArgs("InstanceNorm", (x, v, v), (x, kept, kept), (("epsilon", 1e-6),))


def test_rows_that_end_within_a_block_are_taken_one_by_one() -> None:
    """45 and 61 values a row cost the same: one load and as many instructions."""
    chip = load_chip("ascend310")
    times = {}
    for shape in ((2, 3, 105, 45), (2, 3, 105, 61), (2, 3, 120, 40)):
        args = launch(shape)
        times[shape[-1]] = time_launch(chip, "InstanceNorm", args, choose_plan(
            "InstanceNorm", args, chip)).cycles  # fmt: skip
    assert abs(times[61] / times[45] - 1) < 0.01
    assert times[40] < times[45] / 4


def test_operands_of_several_types_are_refused() -> None:
    args = launch((2, 3, 4, 5))
    mixed = KernelArgs(
        args.op_type, (args.operands[0], OperandSpec((3,), DType.FLOAT16), args.operands[2]),
        args.outputs,
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match="several types"):
        choose_plan("InstanceNorm", mixed, CHIPS["toy"])
