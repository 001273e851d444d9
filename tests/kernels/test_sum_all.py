"""SumAll at tile level: sums of a whole tensor, blocks adding atomically into zero."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, random_array

import npusim.kernels  # noqa: F401  (registers the kernels)
from npusim.errors import UnsupportedError
from npusim.ir import DType, Node, TensorType
from npusim.kernels.sum_all import share_of
from npusim.machine.launch import run_tile_level, time_launch
from npusim.ops import compute_node, infer_node
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan


def run(chip: str, op: str, x: np.ndarray) -> None:
    """Tile level against the operator; both engines take as long."""
    spec, kind = OperandSpec(x.shape, DType.of(x.dtype)), TensorType(x.shape, DType.of(x.dtype))
    attrs = {"keepdims": 0} if op.startswith("Reduce") else {}
    names = ("y", "z") if op == "SquareSumV2" else ("y",)
    node = Node("n", op, ("x",), names, attrs)
    types = infer_node(node, [kind], [x])
    want = compute_node(node, [x], types)
    outs = (OperandSpec((1,), spec.dtype), spec)[: len(names)]
    args = KernelArgs(op, (spec,), outs, tuple(attrs.items()))
    plan = choose_plan("SumAll", args, CHIPS[chip])
    got = [np.zeros(o.shape, o.dtype.np) for o in outs]
    run_tile_level(CHIPS[chip], "SumAll", args, plan, [x, *got])
    size = float(np.abs(np.asarray(x, np.float64)).sum()) + float((x.astype(np.float64) ** 2).sum())
    tolerance = size * (4e-3 if x.dtype == np.float16 else 1e-6)
    assert abs(float(got[0][0]) - float(np.reshape(want[0], ())[()])) <= tolerance
    for g, w in zip(got[1:], want[1:], strict=True):
        np.testing.assert_array_equal(g, w)
    fast = time_launch(CHIPS[chip], "SumAll", args, plan, fold=False)
    assert fast.cycles == time_launch(CHIPS[chip], "SumAll", args, plan, engine="simpy").cycles


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["toy", "ascend910a"]),
    st.sampled_from(["float16", "float32"]),
    st.sampled_from(["SquareSumV1", "SquareSumV2", "ReduceSum", "ReduceMean"]),
    st.integers(1, 20000),
)
def test_sums(chip: str, dtype: str, op: str, n: int) -> None:
    run(chip, op, random_array(np.random.default_rng(n), (n,), dtype))


def test_a_wide_result_is_refused() -> None:
    x = OperandSpec((64, 2), DType.FLOAT32)
    args = KernelArgs("ReduceSum", (x,), (OperandSpec((2,), DType.FLOAT32),))
    with pytest.raises(UnsupportedError, match="one element"):
        choose_plan("SumAll", args, CHIPS["toy"])


@pytest.mark.parametrize(
    ("shape", "blocks", "share"),
    [
        ((768, 768), 31, 25 * 768),  # 30 times 25 rows, and 18
        ((3072, 768), 31, 102 * 768),
        ((21128,), 31, 704),
        ((2, 768), 6, 256),
        ((600, 10), 30, 200),
        ((100,), 1, 100),
    ],
)
def test_shares_leave_a_short_last_block(shape: tuple[int, ...], blocks: int, share: int) -> None:
    rows = shape[0] if len(shape) > 1 else 1
    assert share_of(int(np.prod(shape)), rows, blocks) == share


def test_rows_of_a_matrix() -> None:
    run("ascend910a", "SquareSumV2", random_array(np.random.default_rng(3), (77, 50), "float32"))
