"""Pools as CANN's static schedules run them, at tile level against the operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, random_array

import npusim.kernels  # noqa: F401  (registers)
from npusim.errors import GraphError, UnsupportedError
from npusim.ir import DType, Layout
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan, get_kernel

NC, ND = Layout.NC1HWC0, Layout.ND
CHIP = CHIPS["ascend910a"]


def _check(kernel: str, op: str, x: np.ndarray, attrs: dict[str, Any], layout: Layout = NC) -> None:
    tolerance = 0.0 if "Max" in op else 4e-3  # sums are in fp16
    check_operator(CHIP, kernel, op, [x], attrs, layout=layout, rtol=tolerance, atol=tolerance)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_columns(data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(["MaxPool", "AveragePool"]))
    kernel = tuple(data.draw(st.integers(1, 4)) for _ in range(2))
    attrs: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": tuple(data.draw(st.integers(1, 3)) for _ in range(2)),
        "pads": tuple(data.draw(st.integers(0, k - 1)) for k in kernel * 2),
    }
    if op == "AveragePool":
        attrs["count_include_pad"] = data.draw(st.integers(0, 1))
    shape = tuple(data.draw(st.integers(1, n)) for n in (3, 40, 40, 20))
    try:
        _check("PoolColumns", op, random_array(np.random.default_rng(0), shape, "float16"), attrs)
    except GraphError:  # a window larger than the image
        assume(False)
    except UnsupportedError as e:
        assert "only padding" in e.what
        assume(False)


@pytest.mark.parametrize(
    ("op", "shape", "attrs"),
    [
        # sub-tiles of whole rows; rows that fill no fractals; a row in parts; one buffer of each
        ("AveragePool", (1, 32, 35, 35), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
        ("MaxPool", (1, 16, 60, 85), {"kernel_shape": (5, 5), "strides": (2, 1)}),
        ("MaxPool", (1, 16, 9, 500), {"kernel_shape": (5, 5), "strides": (2, 1)}),
        ("MaxPool", (1, 16, 30, 290), {"kernel_shape": (7, 2), "strides": (3, 1)}),
        ("AveragePool", (1, 16, 60, 85), {"kernel_shape": (5, 5), "pads": (2, 2, 2, 2)}),
    ],
)
def test_columns_of_large_images(op: str, shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    _check("PoolColumns", op, random_array(np.random.default_rng(1), shape, "float16"), attrs)


@pytest.mark.parametrize("op", ["GlobalMaxPool", "GlobalAveragePool"])
@pytest.mark.parametrize(
    "shape", [(3, 64, 8, 8), (1, 40, 17, 60), (2, 16, 3, 5000), (40, 16, 5, 5)]
)
def test_whole_images(op: str, shape: tuple[int, ...]) -> None:
    _check("PoolFold", op, random_array(np.random.default_rng(2), shape, "float16"), {})


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_volumes(data: st.DataObject) -> None:
    kernel = tuple(data.draw(st.integers(1, 4)) for _ in range(3))
    attrs = {
        "kernel_shape": kernel,
        "strides": tuple(data.draw(st.integers(1, 3)) for _ in range(3)),
        "pads": tuple(data.draw(st.integers(0, k - 1)) for k in kernel * 2),
    }
    shape = tuple(data.draw(st.integers(1, n)) for n in (2, 33, 8, 14, 14))
    x = random_array(np.random.default_rng(3), shape, "float16")
    try:
        _check("Pool3D", "MaxPool", x, attrs, Layout.NDC1HWC0)
    except GraphError:
        assume(False)


def test_volumes_in_tiles() -> None:
    x = random_array(np.random.default_rng(4), (1, 16, 9, 20, 120), "float16")
    attrs = {"kernel_shape": (4, 4, 3), "strides": (2, 3, 1), "pads": (1, 1, 1, 2, 1, 1)}
    _check("Pool3D", "MaxPool", x, attrs, Layout.NDC1HWC0)


@pytest.mark.parametrize(
    ("shape", "kernel", "strides"),
    [
        ((2, 32, 5, 9, 30), (3, 2, 2), (1, 2, 1)),
        ((1, 16, 4, 60, 90), (1, 1, 4), (1, 1, 2)),
        ((1, 16, 12, 13, 14), (6, 6, 6), (6, 2, 1)),
    ],
)
def test_means_of_volumes(
    shape: tuple[int, ...], kernel: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(5)
    taps = int(np.prod(kernel))
    filters = (rng.integers(-2, 3, (taps * shape[1] // 16, 1, 16, 16)) / 16).astype(np.float16)
    inputs = [rng.integers(-2, 3, shape).astype(np.float16), filters]
    layouts = [Layout.NDC1HWC0, ND, Layout.NDC1HWC0]
    attrs = {"kernel_shape": kernel, "strides": strides}
    check_operator(
        CHIP, "BlockDepthwise", "AvgPool3DD", inputs, attrs, layouts=layouts, rtol=2e-3, atol=2e-3
    )


@pytest.mark.parametrize(
    ("out", "kernel", "strides", "pads", "image"),
    [
        ((8, 8), (3, 3), (1, 1), (1, 1, 1, 1), (8, 8)),
        ((35, 35), (3, 3), (1, 1), (1, 1, 1, 1), (35, 35)),
        ((5, 5), (5, 5), (3, 3), (0, 0, 0, 0), (17, 17)),
        ((4, 6), (2, 3), (3, 2), (0, 1, 0, 1), (12, 12)),
    ],
)
def test_gradient_of_means(
    out: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, ...],
    image: tuple[int, int],
) -> None:
    rng = np.random.default_rng(6)
    dy, mean = (rng.integers(-3, 4, (3, 32, *out)).astype(np.float16) for _ in range(2))
    filters = (rng.integers(-2, 3, (2, *kernel, 1, 16, 16)) / 16).astype(np.float16)
    attrs = {"kernel_shape": kernel, "strides": strides, "pads": pads, "image_shape": image}
    check_operator(
        CHIP,
        "BlockDepthwise",
        "AvgPoolGradVm",
        [dy, mean, filters],
        attrs,
        layouts=[NC, NC, ND, NC],
        rtol=2e-3,
        atol=2e-3,
    )


def test_gradient_of_means_over_whole_images() -> None:
    rng = np.random.default_rng(7)
    dy, mean = (rng.standard_normal((3, 32, 1, 1)).astype(np.float16) for _ in range(2))
    attrs = {
        "kernel_shape": (8, 8),
        "strides": (1, 1),
        "pads": (0, 0, 0, 0),
        "image_shape": (8, 8),
    }
    check_operator(CHIP, "BlockDepthwise", "AvgPoolGradVm", [dy, mean], attrs, layout=NC)


def test_refusals() -> None:
    x = OperandSpec((1, 16, 8, 8), DType.FLOAT16, NC)
    args = KernelArgs("MaxPool", (x,), (x,), (("kernel_shape", (1, 1)),))
    with pytest.raises(UnsupportedError, match="split cores"):
        choose_plan("PoolColumns", args, CHIPS["ascend910b2"])
    assert "NDC1HWC0" in get_kernel("Pool3D").refuse(args, CHIP)
    assert "no program" in get_kernel("BlockDepthwise").refuse(args, CHIP)
    assert "operator MaxPool" in get_kernel("PoolFold").refuse(args, CHIP)
