"""The library's row kernels at tile level: RmsNorm, AddRmsNorm, RmsNormGrad, SwiGlu, rotary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npusim.kernels  # noqa: F401  (registers the kernels)
from npusim.errors import UnsupportedError
from npusim.ir import DType, Node, TensorType
from npusim.machine.launch import run_tile_level, time_launch
from npusim.ops import compute_node, infer_node
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan
from tests.kernels.launching import CHIPS, random_array

MORE_OUTPUTS = {"LayerNormGradV3": 3, "ArgMaxWithValue": 2, "ArgMinWithValue": 2}
KINDS = ["float16", "bfloat16", "float32"]


def check(kernel: str, op: str, chip: str, values: list[np.ndarray], **attrs: object) -> None:
    """Numbers within the stored type's rounding, and both engines agree."""
    names = tuple(f"x{i}" for i in range(len(values)))
    outputs = {"AddRmsNorm": 3, "RmsNorm": 2, "RmsNormGrad": 2, **MORE_OUTPUTS}.get(op, 1)
    node = Node("n", op, names, tuple(f"y{i}" for i in range(outputs)), attrs)
    kinds = [TensorType(v.shape, DType.of(v.dtype)) for v in values]
    types = infer_node(node, kinds, values)
    ins, outs = (tuple(OperandSpec(t.shape, t.dtype) for t in side) for side in (kinds, types))
    args = KernelArgs(op, ins, outs, tuple(sorted(attrs.items())))
    plan = choose_plan(kernel, args, CHIPS[chip])
    assert 1 <= plan.block_dim <= CHIPS[chip].vector_cores()
    results = [np.zeros(o.shape, o.dtype.np) for o in outs]
    run_tile_level(CHIPS[chip], kernel, args, plan, [*values, *results])
    fast = time_launch(CHIPS[chip], kernel, args, plan)
    assert fast.cycles == time_launch(CHIPS[chip], kernel, args, plan, engine="simpy").cycles
    for got, want in zip(results, compute_node(node, values, types), strict=True):
        step = {2: 1e-2, 4: 1e-5}[got.dtype.itemsize] if values[0].dtype != np.float32 else 1e-5
        got, want = got.astype(np.float64), want.astype(np.float64)
        np.testing.assert_allclose(got, want, rtol=step, atol=step * max(1.0, np.abs(want).max()))


def arrays(seed: int, dtype: str, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Normal floats."""
    rng = np.random.default_rng(seed)
    return [random_array(rng, s, dtype) for s in shapes]


def chip_for(dtype: str) -> str:
    """A chip whose vector unit has the type."""
    return "ascend910b2" if dtype == "bfloat16" else "ascend910a"


@pytest.mark.parametrize("op", ["RmsNorm", "AddRmsNorm"])
@pytest.mark.parametrize("dtype", KINDS)
@settings(max_examples=8, deadline=None)
@given(st.integers(1, 200), st.sampled_from([1, 16, 50, 128, 700, 2300]))
def test_rms_norm(op: str, dtype: str, rows: int, width: int) -> None:
    shapes = [(rows, 1, width)] * (1 + (op == "AddRmsNorm"))
    values = arrays(rows, dtype, *shapes, (width,))
    check("RmsNorm", op, chip_for(dtype), values, epsilon=0.1)


@pytest.mark.parametrize("dtype", KINDS)
@settings(max_examples=8, deadline=None)
@given(st.integers(1, 200), st.sampled_from([16, 50, 128, 700, 1024]))
def test_rms_norm_grad(dtype: str, rows: int, width: int) -> None:
    dy, x, gamma = arrays(rows, dtype, (rows, width), (rows, width), (width,))
    rstd = np.abs(arrays(7, "float32", (rows, 1))[0]) + np.float32(0.5)
    check("RmsNormGrad", "RmsNormGrad", chip_for(dtype), [dy, x, rstd, gamma])


@pytest.mark.parametrize("dtype", KINDS)
@settings(max_examples=8, deadline=None)
@given(st.integers(1, 200), st.sampled_from([16, 50, 128, 1024]))
def test_layer_norm_grad(dtype: str, rows: int, width: int) -> None:
    dy, x, gamma = arrays(rows, dtype, (rows, width), (rows, width), (width,))
    mean, rstd = arrays(7, "float32", (rows, 1), (rows, 1))
    rstd = np.abs(rstd) + np.float32(0.5)
    check("LayerNormGrad", "LayerNormGradV3", chip_for(dtype), [dy, x, rstd, mean, gamma])


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 60), st.sampled_from([16, 50, 1024]))
def test_softmax_grad_of_bf16(rows: int, width: int) -> None:
    values = arrays(rows, "bfloat16", (rows, width), (rows, width))
    check("RowTiles", "SoftmaxGrad", "ascend910b2", values)


def test_gamma_may_be_wider_than_x() -> None:
    x = arrays(1, "bfloat16", (30, 128))[0]
    gamma = arrays(2, "float32", (128,))[0]
    check("RmsNorm", "RmsNorm", "ascend910b2", [x, gamma])


@pytest.mark.parametrize("op", ["SwiGlu", "SwiGluGrad"])
@pytest.mark.parametrize("dtype", KINDS)
@settings(max_examples=8, deadline=None)
@given(st.integers(1, 120), st.sampled_from([1, 16, 50, 384, 6000]), st.sampled_from([-1, 0]))
def test_swiglu(op: str, dtype: str, rows: int, half: int, dim: int) -> None:
    rows = min(rows, 12) if half == 6000 else rows
    pair = (rows, 2 * half) if dim == -1 else (2 * rows, half)
    shapes = [pair] if op == "SwiGlu" else [(rows, half), pair]
    check("Gated", op, chip_for(dtype), arrays(rows, dtype, *shapes), dim=dim)


@pytest.mark.parametrize("op", ["RotaryPositionEmbedding", "RotaryPositionEmbeddingGrad"])
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("axes", ["sbnd", "bnsd", "bsnd"])
@settings(max_examples=4, deadline=None)
@given(st.integers(1, 150), st.integers(1, 7), st.sampled_from([64, 128]))
def test_rotary(op: str, dtype: str, axes: str, s: int, n: int, d: int) -> None:
    sizes, shared = {"s": s, "b": 2, "n": n, "d": d}, {"s": s, "b": 1, "n": 1, "d": d}
    x, table = (tuple(m[a] for a in axes) for m in (sizes, shared))
    check("Rotary", op, chip_for(dtype), arrays(s, dtype, x, table, table))


@pytest.mark.parametrize("op", ["ArgMaxWithValue", "ArgMinWithValue"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@settings(max_examples=8, deadline=None)
@given(st.integers(1, 200), st.sampled_from([1, 64, 100, 6400]))
def test_arg_with_value(op: str, dtype: str, rows: int, width: int) -> None:
    check("ArgValue", op, "ascend910b2", arrays(rows, dtype, (rows, width)))


def test_what_does_not_fit_is_refused() -> None:
    x, half = OperandSpec((4, 100_000), DType.FLOAT16), OperandSpec((100_000,), DType.FLOAT16)
    rstd = OperandSpec((4, 1), DType.FLOAT32)
    with pytest.raises(UnsupportedError, match="no tiling fits"):
        choose_plan("RmsNorm", KernelArgs("RmsNorm", (x, half), (x, rstd)), CHIPS["ascend910a"])
    y = OperandSpec((4, 33), DType.FLOAT16)
    with pytest.raises(UnsupportedError, match="32 B"):
        args = KernelArgs("RotaryPositionEmbedding", (y, y, y), (y,))
        choose_plan("Rotary", args, CHIPS["ascend910a"])
