"""TransData between ND and FRACTAL_NZ by the TIK program: bit for bit, and what tiles cost."""

from __future__ import annotations

import numpy as np
import pytest
from launching import CHIPS, execute, random_array

import npusim.kernels.transdata  # noqa: F401
from npusim.chip import load_chip
from npusim.ir import DType, Layout, Node, TensorType
from npusim.kernels import fractals
from npusim.machine.gm import hot
from npusim.machine.launch import time_launch
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan

CHIP = CHIPS["ascend910a"]
NODE = Node("t", "TransData", ("x",), ("y",))
SHAPES = [
    (32, 2), (2, 768), (100, 768), (640, 300), (33, 2048), (256, 128), (50, 9000),
    (7, 50, 64), (40, 50, 50), (3, 500, 64), (2, 300, 16), (70, 40, 768), (65, 1024),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("into", [True, False])
def test_both_ways(shape: tuple[int, ...], into: bool) -> None:
    x = random_array(np.random.default_rng(0), shape, "float16")
    layouts = [Layout.ND, Layout.FRACTAL_NZ] if into else [Layout.FRACTAL_NZ, Layout.ND]
    kind = [TensorType(shape, DType.FLOAT16)]
    (y,), _ = execute(CHIP, "TransData", NODE, [x], kind, layouts, {})
    np.testing.assert_array_equal(y, x)


def _launch(shape: tuple[int, ...], into: bool = True) -> KernelArgs:
    nd, nz = (OperandSpec(shape, DType.FLOAT16, y) for y in (Layout.ND, Layout.FRACTAL_NZ))
    return KernelArgs("TransData", (nd,), (nz,)) if into else KernelArgs("TransData", (nz,), (nd,))


def test_shares_of_the_public_kernel() -> None:
    """80 rows of 768 a tile: 768 rows keep 10 of 30 cores busy, 3200 keep 20, two tiles each."""
    chip = load_chip("ascend910-30c")
    for rows, blocks, turns in ((768, 10, 1), (3200, 20, 2), (32, 7, 1)):
        tiling = fractals.tiling_of(_launch((rows, 768)), chip)
        assert (tiling["blocks"], tiling["turns"]) == (blocks, turns)
    tiling = fractals.tiling_of(_launch((3200, 768), into=False), chip)
    assert (tiling["blocks"], tiling["turns"]) == (26, 2)  # 63 rows a tile


def test_a_line_costs_as_much_as_all_sixteen() -> None:
    """The transposes walk 16 lines whether they are used or not."""
    cycles = []
    for rows in (5, 64):
        args = _launch((rows, 768))
        plan = choose_plan("TransData", args, CHIP)
        cycles.append(time_launch(CHIP, "TransData", args, plan, hot(plan)).cycles)
    assert cycles[1] < 1.1 * cycles[0]


def test_what_it_leaves_to_others() -> None:
    assert not fractals.takes(_launch((64, 64)), CHIPS["ascend910b2"])
    assert not fractals.takes(_launch((64, 64)), CHIPS["toy"])
    assert not fractals.takes(_launch((64, 1001), into=False), CHIP)
