"""Row kernels: tile level against the operators' numpy semantics, ND and FRACTAL_NZ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npusim.kernels  # noqa: F401  (registers)
from npusim.ir import DType, Layout, Node, TensorType, pack, unpack
from npusim.kernels.lang import Kernel
from npusim.machine.launch import run_tile_level, time_launch
from npusim.ops import compute_node, infer_node
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan
from tests.kernels.launching import CHIPS

#: Operator → its inputs: x a tensor, v a positive value per row, r a value per row, c per column.
INPUTS = {
    "LayerNorm": "xcc",
    "LayerNormXBackpropV2": "xxvrc",
    "SoftmaxV2": "x",
    "SoftmaxGradExt": "xx",
    "SoftmaxGrad": "xx",
    "ConfusionSoftmaxGrad": "xx",
    "LogSoftmaxGrad": "xx",
    "LogSoftmaxV2": "x",  # of LongRows
    "LayerNormBetaGammaBackpropV2": "xx",
    "SoftmaxCrossEntropyWithLogits": "xx",  # of RowByRow
}
OUTPUTS = {
    "LayerNorm": 3,
    "LayerNormXBackpropV2": 2,
    "LayerNormBetaGammaBackpropV2": 2,
    "SoftmaxCrossEntropyWithLogits": 2,
}


def check(chip: str, kernel: str, op: str, m: int, n: int, dtype: str, layout: Layout) -> None:
    """Numbers within fp16's rounding, and both engines agree."""
    rng = np.random.default_rng(7)
    shapes = {"x": (m, n), "v": (m, 1), "r": (m, 1), "c": (n,)}
    values = []
    for kind in INPUTS[op]:
        a = rng.standard_normal(shapes[kind]).astype(dtype)
        values.append(np.abs(a) + a.dtype.type(0.5) if kind == "v" else a)
    outputs = OUTPUTS.get(op, 1)
    attrs = {"epsilon": 0.1} if "c" in INPUTS[op] else {}
    names = tuple(f"x{i}" for i in range(len(values)))
    node = Node("n", op, names, tuple(f"y{i}" for i in range(outputs)), attrs)
    types = infer_node(node, [TensorType(v.shape, DType.of(v.dtype)) for v in values], values)

    def spec(t: TensorType) -> OperandSpec:
        return OperandSpec(t.shape, t.dtype, layout if t.shape == (m, n) else Layout.ND)

    ins = tuple(spec(TensorType(v.shape, DType.of(v.dtype))) for v in values)
    outs = tuple(spec(t) for t in types)
    args = KernelArgs(op, ins, outs, tuple(attrs.items()))
    plan = choose_plan(kernel, args, CHIPS[chip])
    stored = [np.ascontiguousarray(pack(v, s.layout)) for v, s in zip(values, ins, strict=True)]
    results = [np.zeros(o.storage_shape, o.dtype.np) for o in outs]
    run_tile_level(CHIPS[chip], kernel, args, plan, [*stored, *results])
    fast = time_launch(CHIPS[chip], kernel, args, plan, fold=False)
    assert fast.cycles == time_launch(CHIPS[chip], kernel, args, plan, engine="simpy").cycles
    want = compute_node(node, values, types)
    for r, o, w in zip(results, outs, want, strict=True):
        got = unpack(r, o.shape, o.layout).astype(np.float64)
        np.testing.assert_allclose(got, w.astype(np.float64), rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
@pytest.mark.parametrize(
    "op", [o for o in INPUTS if not any(n in o for n in ("BetaGamma", "Cross", "LogSoftmaxV2"))]
)
@settings(max_examples=6, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4))
def test_nz_tiles_compute_the_operator(chip: str, op: str, m1: int, n1: int) -> None:
    n1 = min(n1, 2) if chip == "toy" else n1  # its UB is small
    check(chip, "RowTiles", op, 16 * m1, 16 * n1, "float16", Layout.FRACTAL_NZ)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    "op", ["LayerNorm", "LayerNormXBackpropV2", "ConfusionSoftmaxGrad", "LogSoftmaxGrad"]
)
@settings(max_examples=6, deadline=None)
@given(st.integers(1, 20), st.integers(1, 9))
def test_nd_tiles_compute_the_operator(op: str, dtype: str, m: int, n1: int) -> None:
    check("ascend910a", "RowTiles", op, m, 16 * n1, dtype, Layout.ND)


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
@pytest.mark.parametrize("layout", [Layout.ND, Layout.FRACTAL_NZ])
@settings(max_examples=6, deadline=None)
@given(st.integers(1, 4), st.integers(1, 20))
def test_column_sums(chip: str, layout: Layout, m1: int, n1: int) -> None:
    op = "LayerNormBetaGammaBackpropV2"
    n1 = min(n1, 8) if chip == "toy" else n1  # its UB is small
    check(chip, "ColumnSums", op, 16 * m1, 16 * n1, "float32", layout)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_strips_of_a_batch_of_matrices(dtype: str) -> None:
    """Each block has the same rows of every matrix; the last one has fewer."""
    op, shape = "LayerNormXBackpropV2", (3, 50, 48)
    stats, attrs = (3, 50, 1), (("epsilon", 0.1),)
    rng = np.random.default_rng(3)
    values = [rng.standard_normal(s).astype(dtype) for s in (shape, shape, stats, stats, (48,))]
    values[2] = np.abs(values[2])
    args = KernelArgs(
        op,
        tuple(OperandSpec(v.shape, DType.of(v.dtype)) for v in values),
        (OperandSpec(shape, DType(dtype)), OperandSpec(shape, DType.FLOAT32)),
        attrs,
    )
    plan = choose_plan("RowTiles", args, CHIPS["ascend910a"])
    assert plan.block_dim == 25
    results = [np.zeros(o.shape, o.dtype.np) for o in args.outputs]
    run_tile_level(CHIPS["ascend910a"], "RowTiles", args, plan, [*values, *results])
    node = Node("n", op, tuple("abcde"), ("y", "z"), dict(attrs))
    types = infer_node(node, [TensorType(v.shape, DType.of(v.dtype)) for v in values], values)
    for got, want in zip(results, compute_node(node, values, types), strict=True):
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("chip", ["toy", "ascend910a", "ascend910b2"])
@settings(max_examples=6, deadline=None)
@given(st.integers(1, 40), st.integers(1, 200))
def test_rows_one_by_one(chip: str, m: int, n: int) -> None:
    for dtype in ("float16", "float32"):
        check(chip, "RowByRow", "SoftmaxV2", m, n, dtype, Layout.ND)
        check(chip, "RowByRow", "SoftmaxCrossEntropyWithLogits", m, n, dtype, Layout.ND)


def test_a_lane_sum_takes_a_repeat_a_row() -> None:
    """vcadd gives one result a repeat: 64 rows of 16 lanes are 64 repeats, not 16."""
    k = Kernel(CHIPS["ascend910a"], KernelArgs("SoftmaxV2", (), ()), 0, False)
    rows = k.alloc("UB", 64 * 16 * 4).region((64, 16), np.float32)
    sums = k.alloc("UB", 64 * 4).region((64,), np.float32)
    vector = CHIPS["ascend910a"].core.vector
    assert k.reduce("cadd", sums, rows).occupy == 64 * vector.costs["reduce"].b32 + vector.head


@pytest.mark.parametrize("chip", ["toy", "ascend910a", "ascend910b2"])
@pytest.mark.parametrize("op", ["LogSoftmaxV2", "LogSoftmaxGrad"])
@pytest.mark.parametrize(("m", "n"), [(3, 21128), (33, 9000), (2, 40), (1, 8200)])
def test_rows_in_pieces(chip: str, op: str, m: int, n: int) -> None:
    check(chip, "LongRows", op, m, n, "float32", Layout.ND)
