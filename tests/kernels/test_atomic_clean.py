"""AtomicAddrClean at tile level."""

from __future__ import annotations

import numpy as np
import pytest
from launching import CHIPS

import npusim.kernels.atomic_clean  # noqa: F401
from npusim.ir import DType
from npusim.machine.launch import run_tile_level, time_launch
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan, get_kernel


@pytest.mark.parametrize("chip", ["toy", "ascend910a", "ascend910b2"])
@pytest.mark.parametrize("n", [1, 8, 12_288, 12_296, 500_000, 1_000_001])
def test_zeros(chip: str, n: int) -> None:
    args = KernelArgs("MemSet", (), (OperandSpec((n,), DType.FLOAT32),))
    plan = choose_plan("AtomicClean", args, CHIPS[chip])
    out = np.full(n, 7, np.float32)
    run_tile_level(CHIPS[chip], "AtomicClean", args, plan, [out])
    assert not out.any()


def test_one_buffer_a_block() -> None:
    """Twelve buffers and a block more take thirteen blocks, which take as long as one buffer."""
    chip, buffer = CHIPS["ascend910a"], 12_288
    one, many = (
        KernelArgs("MemSet", (), (OperandSpec((n,), DType.FLOAT32),))
        for n in (buffer, 12 * buffer + 8)
    )
    plans = [choose_plan("AtomicClean", a, chip) for a in (one, many)]
    assert [p.block_dim for p in plans] == [1, 13]
    single = time_launch(chip, "AtomicClean", one, plans[0]).cycles
    dup = chip.core.vector.costs["dup"].b32
    assert dup is not None and single > 48 * 1024 / 256 * dup


def test_what_is_refused() -> None:
    spec = OperandSpec((4,), DType.FLOAT32)
    refuse = get_kernel("AtomicClean").refuse
    assert refuse(KernelArgs("MemSet", (), (spec,), (("value", 1.0),)), CHIPS["toy"])
    assert refuse(KernelArgs("Identity", (spec,), (spec,)), CHIPS["toy"])
