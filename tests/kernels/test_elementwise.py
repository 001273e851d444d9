"""Elementwise at tile level: every operator, broadcasting, layouts, chains, constants."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, execute, random_array, timed

from npusim.errors import UnsupportedError
from npusim.ir import DType, EpilogueStep, Layout, Node, TensorType
from npusim.kernels.elementwise import Elementwise
from npusim.kernels.expressions import LOWER
from npusim.kernels.library_expressions import LIBRARY
from npusim.kernels.quant_expressions import QUANTISATION
from npusim.kernels.training_expressions import TRAINING
from npusim.kernels.trigonometry import TRIGONOMETRY
from npusim.machine.launch import time_launch
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan

RTOL = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5}
UNARY = [
    "Relu",
    "Sigmoid",
    "Tanh",
    "Softplus",
    "Softsign",
    "Elu",
    "Selu",
    "Celu",
    "Mish",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Sign",
    "Floor",
    "Ceil",
    "Round",
    "Exp",
    "Abs",
    "Neg",
    "Erf",
    "Identity",
    "Swish",
    "ThresholdedRelu",
    "Shrink",
    "Reciprocal",
    "IsNaN",
    "IsInf",
]
BINARY = ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Equal", "Greater", "Less",
          "GreaterOrEqual", "LessOrEqual"]  # fmt: skip


def check(chip: str, op: str, inputs: list[Any], attrs: dict[str, Any], **more: Any) -> None:
    """Tile level against numpy, within an ulp or two."""
    dtype = max((a for a in inputs if a is not None), key=lambda a: a.size).dtype.name
    check_operator(CHIPS[chip], "Elementwise", op, inputs, attrs,
                   rtol=RTOL.get(dtype, 0.0), atol=1e-6, **more)  # fmt: skip


@pytest.mark.parametrize("op", UNARY)
@pytest.mark.parametrize(("chip", "dtype"), [("toy", "float16"), ("ascend910b2", "float32")])
def test_unary(chip: str, dtype: str, op: str) -> None:
    x = random_array(np.random.default_rng(1), (37, 11), dtype)
    check(chip, op, [x], {})
    if op == "Gelu":
        check(chip, op, [x], {"approximate": "tanh"})


def test_gelu_of_every_fp16() -> None:
    """x·Φ(x) by a polynomial: some two units in the last place, three with the final rounding."""
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    x = every[np.isfinite(every)]
    kind = [TensorType(x.shape, DType.FLOAT16)]
    node = Node("n", "Gelu", ("x",), ("y",), {"approximate": "none"})
    (got,), _ = execute(
        CHIPS["toy"], "Elementwise", node, [x], kind, [Layout.ND] * 2, {"approximate": "none"}
    )
    wide = x.astype(np.float64)
    exact = wide * np.vectorize(math.erfc)(-wide / math.sqrt(2)) / 2
    unit = np.maximum(2.0**-24, 2.0 ** (np.floor(np.log2(np.abs(exact) + 1e-30)) - 10))
    assert (np.abs(got.astype(np.float64) - exact) / unit).max() < 3


@pytest.mark.parametrize("op", ["Log", "Sqrt"])
def test_unary_of_positive(op: str) -> None:
    x = np.abs(random_array(np.random.default_rng(1), (300,), "float32")) + np.float32(0.1)
    check("ascend910a", op, [x], {})


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["toy", "ascend910a", "ascend910b2"]),
    st.sampled_from(["float16", "float32"]),
    st.sampled_from(BINARY),
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from("ab=")), max_size=5),
)
def test_broadcasting(chip: str, dtype: str, op: str, axes: list[tuple[int, str]]) -> None:
    """Any mixture of axes along which one operand, the other, or neither is repeated."""
    size = 1
    kept = []
    for n, which in axes:
        if size * n <= 20000:
            size *= n
            kept.append((n, which))
    rng = np.random.default_rng(size)
    a = random_array(rng, [1 if w == "a" else n for n, w in kept], dtype)
    b = random_array(rng, [1 if w == "b" else n for n, w in kept], dtype)
    while b.ndim > 1 and b.shape[0] == 1 and size % 2:
        b = b[0]
    check(chip, op, [a, b], {})


@pytest.mark.parametrize(
    "op", ["Add", "Sub", "Mul", "Max", "Min", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor"]
)
def test_int32(op: str) -> None:
    rng = np.random.default_rng(2)
    a, b = random_array(rng, (9, 33), "int32"), random_array(rng, (33,), "int32")
    check("ascend910a", op, [a, b], {})
    check("toy", "BitwiseNot", [a], {})


@pytest.mark.parametrize("op", ["And", "Or", "Xor", "Not"])
def test_booleans(op: str) -> None:
    rng = np.random.default_rng(3)
    inputs = [random_array(rng, (7, 45), "bool"), random_array(rng, (1, 45), "bool")]
    check("toy", op, inputs[: 1 if op == "Not" else 2], {})


@pytest.mark.parametrize("to", ["float16", "float32", "int32", "uint8", "int8", "bool"])
@pytest.mark.parametrize("source", ["float16", "float32", "int32", "bool"])
def test_cast(source: str, to: str) -> None:
    x = random_array(np.random.default_rng(4), (3, 177), source)
    check("ascend910a", "Cast", [x], {"to": to})


def test_selection_and_clipping() -> None:
    rng = np.random.default_rng(5)
    x, half = random_array(rng, (5, 90), "float16"), np.asarray(0.5, np.float16)
    check("toy", "Where", [x > 0, x, half], {})
    check("toy", "Clip", [x, None, half], {})
    check("toy", "Clip", [x], {}, constants=[-half, half],
          launch_attrs={"const1": -0.5, "const2": 0.5})  # fmt: skip
    check("toy", "PRelu", [x.reshape(5, 9, 10), random_array(rng, (9, 1), "float16")], {})


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, -0.5, -1.0, 0.0, 1.0, 1.7])
def test_power_of_a_constant(exponent: float) -> None:
    x = np.abs(random_array(np.random.default_rng(6), (200,), "float32")) + np.float32(0.1)
    constant = np.asarray(exponent, np.float32)
    check("toy", "Pow", [x], {}, constants=[constant], launch_attrs={"const1": exponent})


def test_power_of_a_tensor() -> None:
    x = np.array([-2, -1.5, 0, 0.5, 3, -2, 0, 4, -8], np.float32)
    y = np.array([3, 2, 0, -1.5, 2, 0.5, 2, 0, -3], np.float32)
    check("ascend910a", "Pow", [x, y], {})


@pytest.mark.parametrize("layout", [Layout.ND, Layout.NC1HWC0])
@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
def test_batch_normalization(chip: str, layout: Layout) -> None:
    rng = np.random.default_rng(7)
    x = random_array(rng, (3, 32, 7, 5), "float16")
    vectors = [np.abs(random_array(rng, (32,), "float16")) + np.float16(0.5) for _ in range(4)]
    layouts = [layout, *[Layout.ND] * 4, layout]
    check(chip, "BatchNormalization", [x, *vectors], {}, layouts=layouts)


@pytest.mark.parametrize("layout", [Layout.ND, Layout.NC1HWC0])
def test_chain_stays_in_fp32(layout: Layout) -> None:
    rng = np.random.default_rng(8)
    x, y = (random_array(rng, (2, 48, 6, 11), "float16") for _ in range(2))
    scale = random_array(rng, (1, 48, 1, 1), "float16")
    steps = (EpilogueStep("Mul", 2), EpilogueStep("Sigmoid"), EpilogueStep("Add", 1))
    for chip in ("toy", "ascend910b2"):
        check(chip, "Relu", [x, y, scale], {}, layout=layout, epilogue=steps)


def test_blocks_of_a_matrix() -> None:
    rng = np.random.default_rng(9)
    x, bias = random_array(rng, (3, 50, 48), "float16"), random_array(rng, (48,), "float16")
    nz = Layout.FRACTAL_NZ
    check("ascend910a", "Add", [x[:, :48], bias], {}, layouts=[nz, Layout.ND, nz])


def test_bfloat16() -> None:
    rng = np.random.default_rng(10)
    x, y = random_array(rng, (33, 70), "bfloat16"), random_array(rng, (33, 1), "bfloat16")
    check("ascend910b2", "Mul", [x, y], {}, epilogue=(EpilogueStep("Tanh"),))
    with pytest.raises(UnsupportedError, match="no bfloat16"):
        check("ascend910a", "Mul", [x, y], {})


def test_refusals() -> None:
    chip = CHIPS["ascend910a"]
    nc = Layout.NC1HWC0
    x = OperandSpec((2, 32, 5, 5), DType.FLOAT16, nc)
    column = OperandSpec((2, 1, 5, 5), DType.FLOAT16, nc)
    assert Elementwise.refuse(KernelArgs("Add", (x, column), (x,)), chip)
    for dtype, op in ((DType.INT64, "Add"), (DType.FLOAT64, "Relu"), (DType.INT32, "Div")):
        spec = OperandSpec((5,), dtype)
        inputs = (spec, spec) if op != "Relu" else (spec,)
        assert Elementwise.refuse(KernelArgs(op, inputs, (spec,)), chip)


def _vector_args(op: str, n: int, dtype: DType, inputs: int, **attrs: Any) -> KernelArgs:
    spec = OperandSpec((n,), dtype)
    return KernelArgs(op, (spec,) * inputs, (spec,), tuple(sorted(attrs.items())))


def test_large_addition_is_bound_by_hbm() -> None:
    chip = CHIPS["ascend910a"]
    result, plan = timed(chip, "Elementwise", _vector_args("Add", 2**24, DType.FLOAT32, 2))
    assert plan.block_dim == chip.cores.count
    assert result.cycles > 0.9 * 3 * 2**26 / chip.hbm_rate
    assert result.cycles < 1.15 * 3 * 2**26 / chip.hbm_rate


def test_gelu_takes_twelve_passes() -> None:
    """12 fp32 passes, 2 exponentials, a division: 64–74 cycles per 128 elements, as measured."""
    args = _vector_args("Gelu", 2**22, DType.FLOAT16, 1, approximate="tanh")
    result, plan = timed(CHIPS["ascend910a"], "Elementwise", args)
    assert 64 < result.cycles * plan.block_dim / 2**22 * 128 < 76


def test_small_tensors_take_few_blocks() -> None:
    for n, blocks in ((1, 1), (768, 1), (3072, 3), (2**20, 32)):
        args = _vector_args("Relu", n, DType.FLOAT16, 1)
        _, plan = timed(CHIPS["ascend910a"], "Elementwise", args)
        assert plan.block_dim == blocks


@pytest.mark.parametrize("op", ["Add", "Sigmoid"])
def test_loops_fold(op: str) -> None:
    args = _vector_args(op, 2**21 + 5, DType.FLOAT32, 2 if op == "Add" else 1)
    for chip in CHIPS.values():
        plan = choose_plan("Elementwise", args, chip)
        folded, full = (time_launch(chip, "Elementwise", args, plan, fold=f) for f in (True, False))
        assert folded.cycles == pytest.approx(full.cycles, rel=1e-3)
        assert folded.hbm_bytes == full.hbm_bytes
        assert full.cycles < 1.3 * Elementwise.estimate(args, chip, plan.tiling)


def test_every_operator_is_tested_here() -> None:
    elsewhere = {
        "Log",
        "Sqrt",
        "Pow",
        "And",
        "Or",
        "Xor",
        "Not",
        "Where",
        "Clip",
        "PRelu",
        "Cast",
        "BatchNormalization",
        "Dropout",
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseNot",
        "BitwiseXor",
    }
    others = {*TRAINING, *LIBRARY, *TRIGONOMETRY, *QUANTISATION}  # have files of their own
    assert set(LOWER) - others == elsewhere | set(UNARY) | set(BINARY)
