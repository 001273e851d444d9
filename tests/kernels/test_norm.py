"""Normalisations at tile level against the operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, random_array, timed

import npusim.kernels.norm  # noqa: F401
from npusim.ir import DType
from npusim.program.kernel import KernelArgs, OperandSpec

RTOL = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-4}


def check(
    chip: str, op: str, shape: tuple[int, ...], dtype: str, vectors: int = 2, outputs: int = 1,
    **attrs: Any,
) -> None:  # fmt: skip
    """Tile level against numpy."""
    rng = np.random.default_rng(len(shape))
    x = random_array(rng, shape, dtype)
    over_width = op in ("LayerNormalization", "RMSNormalization")
    inner = shape[attrs.get("axis", -1) % len(shape) :] if over_width else shape[1:2]
    affine = [random_array(rng, inner, dtype) for _ in range(vectors)]
    check_operator(
        CHIPS[chip], "Norm", op, [x, *affine], attrs, n_outputs=outputs, rtol=RTOL[dtype],
        atol=5e-5 if dtype == "float32" else 2e-3,
    )  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["toy", "ascend910a", "ascend910b2"]),
    st.sampled_from(["float16", "float32"]),
    st.lists(st.integers(2, 24), min_size=1, max_size=3).map(tuple),
    st.integers(0, 2),
    st.sampled_from([1, 3]),
)
def test_layer_norm(chip: str, dtype: str, shape: tuple[int, ...], axis: int, outputs: int) -> None:
    axis %= len(shape)
    check(chip, "LayerNormalization", shape, dtype, 2 - (outputs == 3), outputs, axis=axis)
    check(chip, "RMSNormalization", shape, dtype, 1, axis=axis)


@pytest.mark.parametrize(("chip", "dtype"), [("toy", "float32"), ("ascend910b2", "bfloat16")])
def test_rows_longer_than_a_tile(chip: str, dtype: str) -> None:
    check(chip, "LayerNormalization", (3, 20001), dtype, outputs=3)
    check(chip, "RMSNormalization", (2, 30001), dtype, 1)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("shape", [(3, 5, 24), (70, 768), (2, 20001)])
@pytest.mark.parametrize(
    ("chip", "dtype"), [("toy", "float32"), ("ascend910a", "float16"), ("ascend910b2", "bfloat16")]
)
def test_add_layer_norm(chip: str, dtype: str, shape: tuple[int, ...], outputs: int) -> None:
    """Of a sum, which may be wanted itself, in tiles of many rows and of less than one."""
    rng = np.random.default_rng(7)
    x, other = (random_array(rng, shape, dtype) for _ in range(2))
    affine = [random_array(rng, shape[-1:], dtype) for _ in range(2)]
    check_operator(
        CHIPS[chip], "Norm", "AddLayerNorm", [x, other, *affine], {"axis": -1},
        n_outputs=outputs, rtol=RTOL[dtype], atol=5e-5 if dtype == "float32" else 2e-3,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "groups"),
    [((2, 24, 5, 7), 4), ((2, 32, 30, 30), 2), ((2, 6, 9), 3), ((2, 4, 6000), 2)],
)
@pytest.mark.parametrize(("chip", "dtype"), [("toy", "float16"), ("ascend910a", "float32")])
def test_channels(chip: str, dtype: str, shape: tuple[int, ...], groups: int) -> None:
    check(chip, "GroupNormalization", shape, dtype, num_groups=groups)
    check(chip, "InstanceNormalization", shape, dtype)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT32])
def test_layer_norm_takes_as_long_as_measured(dtype: DType) -> None:
    """BERT's (·, 768) rows: 93 cycles per 128 elements in fp16, 77 in fp32 on the chip."""
    x, vector = OperandSpec((4096, 768), dtype), OperandSpec((768,), dtype)
    args = KernelArgs("LayerNormalization", (x, vector, vector), (x,))
    result, plan = timed(CHIPS["ascend910a"], "Norm", args)
    assert 60 < result.cycles * plan.block_dim / (4096 * 6) < 100
