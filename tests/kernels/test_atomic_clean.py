"""AtomicClean at tile level, and how CANN deals its bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS

import npusim.kernels  # noqa: F401  (registers the kernels)
from npusim.ir import DType
from npusim.kernels.atomic_clean import PIECE, shares
from npusim.machine.launch import run_tile_level, time_launch
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([1, 8, PIECE // 4, PIECE // 4 + 1]), st.integers(0, 200_000))
def test_zeros(first: int, more: int) -> None:
    chip = CHIPS["ascend910a"]
    args = KernelArgs("MemSet", (), (OperandSpec((first + more,), DType.FLOAT32),))
    plan = choose_plan("AtomicClean", args, chip)
    y = np.ones(first + more, np.float32)
    run_tile_level(chip, "AtomicClean", args, plan, [y])
    assert not y.any()
    fast = time_launch(chip, "AtomicClean", args, plan, fold=False)
    assert fast.cycles == time_launch(chip, "AtomicClean", args, plan, engine="simpy").cycles


@pytest.mark.parametrize(
    ("shape", "blocks"),
    [  # recorded block dims of the 30-core part, what cleans one more small tensor left out
        ((18, 3, 16, 16), 2),
        ((80, 20, 16, 16), 17),
        ((108, 20, 16, 16), 23),
        ((128, 20, 16, 16), 27),
        ((200, 48, 16, 16), 29),
        ((21128, 768), 30),
    ],
)
def test_shares_are_whole_pieces(shape: tuple[int, ...], blocks: int) -> None:
    nbytes = 4 * int(np.prod(shape))
    share, count = shares(nbytes, 30)
    assert count == blocks and share % PIECE == 0 and share * count >= nbytes
