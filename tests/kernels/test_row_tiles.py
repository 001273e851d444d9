"""Row kernels: tile level against the operators' numpy semantics, ND and FRACTAL_NZ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npusim.kernels  # noqa: F401  (registers)
from npusim.ir import DType, Layout, Node, TensorType, pack, unpack
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
    "LayerNormBetaGammaBackpropV2": "xx",
    "SoftmaxCrossEntropyWithLogits": "xx",
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
@pytest.mark.parametrize("op", [o for o in INPUTS if "BetaGamma" not in o and "Cross" not in o])
@settings(max_examples=6, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4))
def test_nz_tiles_compute_the_operator(chip: str, op: str, m1: int, n1: int) -> None:
    n1 = min(n1, 2) if chip == "toy" else n1  # its UB is small
    check(chip, "RowTiles", op, 16 * m1, 16 * n1, "float16", Layout.FRACTAL_NZ)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("op", ["LayerNormXBackpropV2", "ConfusionSoftmaxGrad"])
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


@pytest.mark.parametrize("chip", ["toy", "ascend910a", "ascend910b2"])
@settings(max_examples=6, deadline=None)
@given(st.integers(1, 40), st.integers(1, 130))
def test_cross_entropy_takes_any_row(chip: str, m: int, n: int) -> None:
    op = "SoftmaxCrossEntropyWithLogits"
    check(chip, "RowTiles", op, m, n, "float32", Layout.ND)
