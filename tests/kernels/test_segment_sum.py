"""UnsortedSegmentSum at tile level; short rows pay a full round trip each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npusim.kernels  # noqa: F401  (registers)
from npusim.ir import DType
from npusim.machine.launch import run_tile_level, time_launch
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan
from tests.kernels.launching import CHIPS


def _args(rows: int, width: int, segments: int) -> KernelArgs:
    return KernelArgs(
        "UnsortedSegmentSum",
        (OperandSpec((rows, width), DType.FLOAT32), OperandSpec((rows,), DType.INT32)),
        (OperandSpec((segments, width), DType.FLOAT32),),
        (("num_segments", segments),),
    )


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
@settings(max_examples=10, deadline=None)
@given(st.integers(1, 90), st.sampled_from([1, 5, 8, 24, 33]), st.integers(1, 9))
def test_rows_are_summed(chip: str, rows: int, width: int, segments: int) -> None:
    rng = np.random.default_rng(3)
    data = rng.integers(-4, 5, (rows, width)).astype(np.float32)
    indices = rng.integers(0, segments, rows).astype(np.int32)
    want = np.zeros((segments, width), np.float32)
    np.add.at(want, indices, data)
    args = _args(rows, width, segments)
    plan = choose_plan("SegmentSum", args, CHIPS[chip])
    got = np.zeros_like(want)
    run_tile_level(CHIPS[chip], "SegmentSum", args, plan, [data, indices, got])
    np.testing.assert_array_equal(got, want)
    fast = time_launch(CHIPS[chip], "SegmentSum", args, plan, fold=False)
    assert fast.cycles == time_launch(CHIPS[chip], "SegmentSum", args, plan, engine="simpy").cycles


def test_a_short_row_costs_more_than_a_long_one() -> None:
    chip = CHIPS["ascend910a"]
    cycles = {}
    for width in (8, 80):
        args = _args(32 * 400, width, 5000)
        plan = choose_plan("SegmentSum", args, chip)
        cycles[width] = time_launch(chip, "SegmentSum", args, plan).cycles
    assert cycles[8] > 1.5 * cycles[80]
