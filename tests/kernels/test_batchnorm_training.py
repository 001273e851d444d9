"""Batch normalisation in training: tile level against the operators' numpy semantics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npusim.kernels  # noqa: F401  (registers)
from npusim.ir import DType, Layout, Node, TensorType, pack, unpack
from npusim.kernels.batchnorm_grid import cut_blocks, cut_tile, nearest_factor
from npusim.machine.launch import run_tile_level, time_launch
from npusim.ops import compute_node, infer_node
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan
from tests.kernels.launching import CHIPS, random_array

INPUTS = {
    "BNTrainingReduce": "i",
    "BNTrainingUpdate": "ippppvv",
    "FusionOp_BNTrainingUpdate_ReLUV2": "ippppvv",
    "FusionOp_BNTrainingUpdate_Add_ReLUV2": "ippppvvi",
    "BNTrainingUpdateGrad": "iipv",
    "BNTrainingReduceGrad": "iippppv",
}
OUTPUTS = dict(zip(INPUTS, (2, 5, 6, 6, 2, 1), strict=True))


def _values(op: str, shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    channel = (1, shape[1], 1, 1)
    found = []
    for kind in INPUTS[op]:
        if kind == "i":
            found.append(random_array(rng, shape, dtype))
        else:
            p = random_array(rng, channel, "float32")
            found.append(np.abs(p) + 0.5 if kind == "v" else p)
    if "Update" in op and len(INPUTS[op]) > 4:  # sums of the image itself
        x = found[0].astype(np.float32)
        found[1], found[2] = (v.sum((0, 2, 3), keepdims=True) for v in (x, x * x))
    return found


def _launch(chip: Any, op: str, values: list[np.ndarray]) -> tuple[list[Any], list[Any]]:
    """(wanted, got) outputs; sums start from cleared memory."""
    attrs = {} if op == "BNTrainingReduce" else {"epsilon": 0.1}
    node = Node(
        "n",
        op,
        tuple(f"x{i}" for i in range(len(values))),
        tuple(f"y{i}" for i in range(OUTPUTS[op])),
        attrs,
    )
    types = infer_node(node, [TensorType(v.shape, DType.of(v.dtype)) for v in values], values)
    layout = Layout.NC1HWC0
    ins = tuple(OperandSpec(v.shape, DType.of(v.dtype), layout) for v in values)
    outs = tuple(
        OperandSpec(t.shape, t.dtype, layout if len(t.shape) == 4 else Layout.ND) for t in types
    )
    args = KernelArgs(op, ins, outs, tuple(attrs.items()))
    plan = choose_plan("BatchNorm", args, chip)
    stored = [np.ascontiguousarray(pack(v, layout)) for v in values]
    results = [np.zeros(o.storage_shape, o.dtype.np) for o in outs]
    run_tile_level(chip, "BatchNorm", args, plan, [*stored, *results])
    fast = time_launch(chip, "BatchNorm", args, plan, fold=False)
    assert fast.cycles == time_launch(chip, "BatchNorm", args, plan, engine="simpy").cycles
    assert fast.cycles == time_launch(chip, "BatchNorm", args, plan).cycles
    want = compute_node(node, values, types)
    return want, [unpack(r, o.shape, o.layout) for r, o in zip(results, outs, strict=True)]


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
@pytest.mark.parametrize("op", list(INPUTS))
@settings(max_examples=8, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9))
def test_tiles_compute_the_operator(chip: str, op: str, n: int, c1: int, h: int, w: int) -> None:
    values = _values(op, (n, 16 * c1, h, w), "float16")
    want, got = _launch(CHIPS[chip], op, values)
    for g, wanted in zip(got, want, strict=True):
        if wanted.dtype == np.uint8:  # a value within rounding of 0 may fall on either side
            assert np.count_nonzero(g != wanted) <= max(1, 0.02 * wanted.size)
        else:
            np.testing.assert_allclose(
                g.astype(np.float64), wanted.astype(np.float64), rtol=4e-3, atol=4e-3
            )


def test_small_slices_cost_more_per_element() -> None:
    """Each slice pays every pass's start: 7 × 7 costs over 1.4 times 28 × 28 per element."""
    times = {}
    for side, c1 in ((28, 4), (7, 64)):
        x = OperandSpec((16, 16 * c1, side, side), DType.FLOAT16, Layout.NC1HWC0)
        p = OperandSpec((1, 16 * c1, 1, 1), DType.FLOAT32, Layout.NC1HWC0)
        args = KernelArgs("BNTrainingUpdateGrad", (x, x, p, p), (p, p))
        chip = CHIPS["ascend910a"]
        times[side] = time_launch(
            chip, "BatchNorm", args, choose_plan("BatchNorm", args, chip)
        ).cycles
    assert times[7] > 1.4 * times[28]


@pytest.mark.parametrize(
    ("images", "c1", "sums", "want"),
    [
        (32, 16, False, (2, 16, 28)),  # 16 of 30 cores, two images each
        (32, 64, False, (2, 64, 28)),
        (32, 16, True, (2, 16, 28)),
        (32, 64, True, (32, 3, 28)),  # 22 of 30 cores, three channel blocks each
        (8, 64, False, (8, 3, 28)),
        (8, 8, False, (1, 3, 28)),  # 64 slices, too few of either
        (2, 4, True, (1, 1, 10)),
    ],
)
def test_blocks_cut_the_first_axis_with_an_index_a_core(
    images: int, c1: int, sums: bool, want: tuple[int, int, int]
) -> None:
    assert cut_blocks(images, c1, 28, 30, sums) == want


def test_tiles_are_whole_slices_or_rows_that_nearly_divide() -> None:
    assert nearest_factor(147, 4) == 3
    assert nearest_factor(71, 8) == 8  # 1 would be far too small
    assert cut_tile(14, 14, 64, 21760, True) == (14, 4)
    assert cut_tile(14, 14, 64, 21760, False) == (14, 1)
    assert cut_tile(56, 56, 64, 21760, True) == (14, 1)
    assert cut_tile(9, 2000, 4, 21760, True) == (0, 0)
