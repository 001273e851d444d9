"""FloatStatus: eight zeros, after fills whose blocks meet in bank groups."""

from __future__ import annotations

import numpy as np
import pytest
from launching import CHIPS

import npusim.kernels  # noqa: F401  (registers the kernels)
from npusim.ir import DType, Node, TensorType
from npusim.kernels.float_status import FILL, FILLS
from npusim.machine.launch import run_tile_level, time_launch
from npusim.ops import compute_node, infer_node
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan

STATUS = OperandSpec((8,), DType.FLOAT32)


@pytest.mark.parametrize(
    ("op", "inputs"),
    [("NPUAllocFloatStatus", 0), ("NPUGetFloatStatus", 1), ("NPUClearFloatStatus", 1)],
)
def test_status(op: str, inputs: int) -> None:
    chip = CHIPS["ascend910a"]
    values = [np.ones(8, np.float32)] * inputs
    node = Node("n", op, ("x",) * inputs, ("y",), {})
    types = infer_node(node, [TensorType((8,), DType.FLOAT32)] * inputs, values)
    args = KernelArgs(op, (STATUS,) * inputs, (STATUS,))
    plan = choose_plan("FloatStatus", args, chip)
    assert plan.block_dim == (chip.cores.count if inputs else 1)
    got = np.ones(8, np.float32)
    run_tile_level(chip, "FloatStatus", args, plan, [*values, got])
    np.testing.assert_array_equal(got, compute_node(node, values, types)[0])
    cycles = time_launch(chip, "FloatStatus", args, plan).cycles
    assert cycles == time_launch(chip, "FloatStatus", args, plan, engine="simpy").cycles
    fills = FILLS * FILL // 128 * 4 if inputs else 0  # 8 blocks in 2 of 16 bank groups
    assert fills < cycles < fills + 700
