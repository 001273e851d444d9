"""Gradients, losses and optimiser steps at tile level against numpy, several outputs at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, random_array

from npusim.errors import UnsupportedError
from npusim.ir import DType
from npusim.kernels.training_expressions import TRAINING
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan

RTOL = {"float16": 4e-3, "float32": 2e-5}
GRADIENTS = {
    "GeluGrad": 3, "TanhGrad": 2, "ReluGrad": 2, "MaximumGrad": 3, "MinimumGrad": 3,
    "SigmoidCrossEntropyWithLogits": 2, "SigmoidCrossEntropyWithLogitsGrad": 3,
    "SigmoidGrad": 2, "SwishGrad": 3,
}  # fmt: skip
OPTIMISERS = [
    "ApplyAdam", "ApplyAdamW", "ApplyAdamWV2", "ApplyRMSProp", "ApplyMomentum",
    "FusedMulApplyMomentum",
    "LambApplyOptimizerAssign",
]  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["toy", "ascend910a"]),
    st.sampled_from(["float16", "float32"]),
    st.sampled_from(sorted(GRADIENTS)),
    st.integers(1, 700),
)
def test_gradients(chip: str, dtype: str, op: str, n: int) -> None:
    rng = np.random.default_rng(n)
    inputs = [random_array(rng, (n,), dtype) for _ in range(GRADIENTS[op])]
    check_operator(CHIPS[chip], "Elementwise", op, inputs, {}, rtol=RTOL[dtype], atol=2e-3)


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(["toy", "ascend910a"]),
    st.sampled_from(["float16", "float32"]),
    st.integers(1, 700),
)
def test_leaky_relu_gradient(chip: str, dtype: str, n: int) -> None:
    rng = np.random.default_rng(n)
    inputs = [random_array(rng, (n,), dtype) for _ in range(2)]
    attrs = {"alpha": 0.125}
    check_operator(
        CHIPS[chip], "Elementwise", "LeakyReluGrad", inputs, attrs, rtol=RTOL[dtype], atol=2e-3
    )


def _positive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(0.1, 2.0, shape).astype(np.float32)


def _scalar(value: float) -> np.ndarray:
    return np.full((1,), value, np.float32)


def _state(op: str, rng: np.random.Generator, n: int) -> tuple[list[np.ndarray], int]:
    """Inputs of an optimiser step and how many outputs it has."""
    x = [rng.standard_normal(n).astype(np.float32) for _ in range(3)]
    v = _positive(rng, (n,))
    s = _scalar
    if op == "ApplyAdam":
        scalars = [s(0.9), s(0.98), s(0.01), s(0.9), s(0.99), s(1e-4)]
        return [x[0], x[1], v, *scalars, x[2]], 3
    if op == "ApplyAdamW":
        rates = [s(0.9), s(0.98), s(0.01), s(0.1), s(0.9), s(0.99), s(1e-4)]
        return [x[0], x[1], v, *rates, x[2]], 3
    if op == "ApplyAdamWV2":
        return [x[0], x[1], v, x[2], s(3.0)], 3
    if op == "ApplyRMSProp":
        return [x[0], v, x[1], s(0.1), x[2]], 3
    if op == "ApplyMomentum":
        return [x[0], x[1], s(0.1), x[2], s(0.9)], 2
    if op == "FusedMulApplyMomentum":
        return [x[0], x[1], s(0.1), x[2], s(0.9), s(0.5)], 2
    scalars = [s(0.9), s(0.1), s(0.99), s(0.01), s(1e-4), s(3.0), s(1.0), s(0.01)]
    return [x[0], v, x[1], x[2], *scalars], 3


@settings(max_examples=24, deadline=None)
@given(
    st.sampled_from(["toy", "ascend910a"]),
    st.sampled_from(OPTIMISERS),
    st.integers(2, 3000),
)
def test_optimisers(chip: str, op: str, n: int) -> None:
    inputs, outputs = _state(op, np.random.default_rng(n), n)
    check_operator(
        CHIPS[chip], "Elementwise", op, inputs, {}, n_outputs=outputs, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(("w", "g"), [(2.0, 0.5), (0.0, 0.5), (2.0, 0.0)])
def test_lamb_weight(w: float, g: float) -> None:
    """The trust ratio is 1 where a norm is 0."""
    rng = np.random.default_rng(3)
    update, param = (rng.standard_normal(300).astype(np.float32) for _ in range(2))
    inputs = [_scalar(w), _scalar(g), _scalar(0.1), update, param]
    check_operator(CHIPS["ascend910a"], "Elementwise", "LambApplyWeightAssign", inputs, {},
                   rtol=1e-5, atol=1e-6)  # fmt: skip


@pytest.mark.parametrize("x", [4.0, 0.0, -1.0])
def test_clip_by_norm(x: float) -> None:
    inputs = [_scalar(x), _scalar(0.0), _scalar(1.0), _scalar(0.5)]
    check_operator(CHIPS["ascend910a"], "Elementwise", "ClipByNormNoDivSum", inputs, {}, rtol=1e-6)


def test_outputs_must_be_the_operators() -> None:
    """An optimiser with an output missing, or one of another shape, is refused."""
    specs: tuple[Any, ...] = (OperandSpec((64,), DType.FLOAT32),) * 2
    args = KernelArgs("Add", specs, specs)
    with pytest.raises(UnsupportedError, match="2 outputs"):
        choose_plan("Elementwise", args, CHIPS["toy"])
    other = OperandSpec((32,), DType.FLOAT32)
    args = KernelArgs("Add", specs, (specs[0], other))
    with pytest.raises(UnsupportedError, match="different shapes"):
        choose_plan("Elementwise", args, CHIPS["toy"])


def test_every_program_is_tested_here() -> None:
    assert {
        *GRADIENTS,
        *OPTIMISERS,
        "LambApplyWeightAssign",
        "ClipByNormNoDivSum",
        "LeakyReluGrad",
    } == set(TRAINING)
