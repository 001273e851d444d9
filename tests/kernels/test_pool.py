"""Pools at tile level against the operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, random_array

import npusim.kernels.pool  # noqa: F401
from npusim.errors import GraphError, UnsupportedError
from npusim.ir import DType, Layout
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan, get_kernel

TOLERANCE = {"float16": 1e-3, "float32": 1e-5, "bfloat16": 8e-3}
CHIP_NAMES = st.sampled_from(["toy", "ascend910a", "ascend910b2"])


def check(chip: str, op: str, x: np.ndarray, attrs: dict[str, Any]) -> None:
    tolerance = 0.0 if "Max" in op else TOLERANCE[x.dtype.name]
    check_operator(
        CHIPS[chip], "Pool", op, [x], attrs, layout=Layout.NC1HWC0, rtol=tolerance, atol=tolerance
    )


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_windows(data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(["MaxPool", "AveragePool"]))
    kernel = [data.draw(st.integers(1, 4)) for _ in range(2)]
    dilations = [data.draw(st.integers(1, 2)) for _ in range(2)]
    attrs: dict[str, Any] = {
        "kernel_shape": tuple(kernel),
        "strides": tuple(data.draw(st.integers(1, 3)) for _ in range(2)),
        "dilations": tuple(dilations),
        "ceil_mode": data.draw(st.integers(0, 1)),
    }
    mode = data.draw(st.sampled_from(["NOTSET", "SAME_UPPER", "VALID"]))
    attrs["auto_pad"] = mode
    if mode == "NOTSET":
        attrs["pads"] = tuple(data.draw(st.integers(0, k - 1)) for k in kernel * 2)
    if op == "AveragePool":
        attrs["count_include_pad"] = data.draw(st.integers(0, 1))
    shape = tuple(data.draw(st.integers(1, n)) for n in (3, 40, 17, 17))
    dtype = data.draw(st.sampled_from(["float16", "float32"]))
    x = random_array(np.random.default_rng(0), shape, dtype)
    try:
        check(data.draw(CHIP_NAMES), op, x, attrs)
    except GraphError:  # a window larger than the image
        assume(False)
    except UnsupportedError as e:
        assert "only padding" in e.what
        assume(False)


@settings(max_examples=20, deadline=None)
@given(
    CHIP_NAMES,
    st.sampled_from(["GlobalMaxPool", "GlobalAveragePool"]),
    st.tuples(*(st.integers(1, n) for n in (3, 40, 15, 15))),
    st.sampled_from(["float16", "float32"]),
)
def test_global(chip: str, op: str, shape: tuple[int, ...], dtype: str) -> None:
    check(chip, op, random_array(np.random.default_rng(1), shape, dtype), {})


@pytest.mark.parametrize(
    ("op", "shape", "attrs"),
    [
        ("MaxPool", (1, 16, 9, 300), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
        ("AveragePool", (2, 32, 40, 40), {"kernel_shape": (3, 3), "strides": (2, 2)}),
        ("GlobalAveragePool", (2, 16, 50, 50), {}),
    ],
)
@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
def test_large(chip: str, op: str, shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    check(chip, op, random_array(np.random.default_rng(2), shape, "float16"), attrs)


def test_bfloat16_goes_through_fp32() -> None:
    x = random_array(np.random.default_rng(3), (1, 20, 8, 8), "bfloat16")
    check("ascend910b2", "MaxPool", x, {"kernel_shape": (2, 2), "strides": (2, 2)})
    check("ascend910b2", "GlobalAveragePool", x, {})


def test_refusals() -> None:
    x = OperandSpec((1, 16, 8, 8), DType.FLOAT16)
    args = KernelArgs("MaxPool", (x,), (x,), (("kernel_shape", (1, 1)),))
    assert "NC1HWC0" in get_kernel("Pool").refuse(args, CHIPS["toy"])
    with pytest.raises(UnsupportedError):
        choose_plan("Pool", args, CHIPS["toy"])
