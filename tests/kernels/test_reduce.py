"""Reductions at tile level against the operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, random_array

from npusim.errors import UnsupportedError
from npusim.ir import DType, Layout
from npusim.kernels.reduce import RECIPES, Reduce
from npusim.program.kernel import KernelArgs, OperandSpec


def check(
    chip: str, op: str, x: np.ndarray, axes: tuple[int, ...], keep: int = 1, **more: Any
) -> None:
    """Tile level against numpy; sums within the error of their order."""
    exact = x.dtype.kind == "i" or op in ("ReduceMax", "ReduceMin")
    half = x.dtype == np.float16
    tolerance = {"rtol": 2e-3 if half else 5e-5, "atol": 2e-3 if half else 2e-5}
    check_operator(
        CHIPS[chip], "Reduce", op, [x], {"keepdims": keep}, constants=[np.array(axes)],
        launch_attrs={"axes": axes}, **({} if exact else tolerance), **more,
    )  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(["toy", "ascend910a", "ascend910b2"]),
    st.sampled_from(["float16", "float32", "int32"]),
    st.lists(st.integers(1, 24), min_size=1, max_size=4),
    st.integers(0, 1),
    st.data(),
)
def test_any_axes(chip: str, dtype: str, shape: list[int], keep: int, data: st.DataObject) -> None:
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1).map(sorted).map(tuple))
    x = random_array(np.random.default_rng(0), shape, dtype)
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape))
    spec, out = OperandSpec(x.shape, DType.of(x.dtype)), OperandSpec(kept, DType.of(x.dtype))
    launch = KernelArgs("ReduceSum", (spec,), (out,), (("axes", axes),))
    if "axes" in Reduce.refuse(launch, CHIPS[chip]):
        return  # kept and reduced axes alternate too often
    for op in ("ReduceSum", "ReduceMax"):
        check(chip, op, x, axes, keep)


@pytest.mark.parametrize("op", sorted(RECIPES))
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_every_reduction(op: str, dtype: str) -> None:
    x = random_array(np.random.default_rng(1), (9, 70, 5), dtype)
    if op in ("ReduceProd", "ReduceLogSum"):
        x = (np.abs(x) * 0.2 + 0.9).astype(x.dtype)
    check("toy", op, x, (1,))
    check("ascend910a", op, x, (1, 2))


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((5, 6000), (1,)), ((3000, 20), (0,)), ((2, 129, 40), (0, 2)), ((2, 3, 70, 90), (2, 3)),
     ((37, 128), (1,)), ((6, 130), (1,)), ((2, 40000), (1,))],
)  # fmt: skip
@pytest.mark.parametrize("chip", ["toy", "ascend910b2"])
def test_lanes_longer_than_a_tile(chip: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = random_array(np.random.default_rng(2), shape, "float32")
    check(chip, "ReduceMean", x, axes)
    check(chip, "ReduceMin", x, axes)


@pytest.mark.parametrize(("channels", "axes"), [(32, (2, 3)), (20, (0, 2, 3)), (32, (0, 2))])
def test_blocked_layout(channels: int, axes: tuple[int, ...]) -> None:
    x = random_array(np.random.default_rng(3), (2, channels, 7, 5), "float16")
    layouts = [Layout.NC1HWC0, Layout.NC1HWC0]
    check("ascend910a", "ReduceMean", x, axes, layouts=layouts)
    with pytest.raises(UnsupportedError, match="axes"):
        check("ascend910a", "ReduceMean", x, (1,), layouts=layouts)


def test_refusals() -> None:
    chip = CHIPS["ascend910a"]
    for shape, axes, dtype in (
        ((2, 3, 4, 5, 6), (0, 2, 4), DType.FLOAT32),
        ((8,), (0,), DType.INT64),
        ((8,), (0,), DType.BOOL),
    ):
        spec, out = OperandSpec(shape, dtype), OperandSpec((1,), dtype)
        assert Reduce.refuse(KernelArgs("ReduceSum", (spec,), (out,), (("axes", axes),)), chip)


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    "shape", [(3, 64, 16), (1, 16, 16), (40, 4, 16), (70, 96), (5, 100), (33, 2), (1, 40)]
)
def test_bias_gradients(chip: str, dtype: str, shape: tuple[int, ...]) -> None:
    """Column blocks of 16, strips of columns, ragged rows."""
    x, axis = random_array(np.random.default_rng(5), shape, dtype), len(shape) - 2
    check_operator(
        CHIPS[chip], "BiasGrad", "ReduceSum", [x], {"keepdims": 0},
        constants=[np.array([axis])], launch_attrs={"axes": (axis,)}, rtol=2e-3, atol=2e-2,
    )  # fmt: skip


@pytest.mark.parametrize("chip", ["toy", "ascend910a", "ascend910b2"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((200, 39), 1), ((100, 80), 1), ((9, 2000), 1), ((40, 39, 80), 1), ((16, 1, 20), 1),
     ((17, 49, 16), 1), ((6, 21000), 0), ((5, 60), 0)],
)  # fmt: skip
def test_lanes_one_by_one(
    chip: str, dtype: str, op: str, shape: tuple[int, ...], axis: int
) -> None:
    """Rows, matrices, a strip of columns; short ones go the usual way."""
    x = random_array(np.random.default_rng(6), shape, dtype)
    check_operator(
        CHIPS[chip], "LibraryReduce", op, [x], {"keepdims": 0}, constants=[np.array([axis])],
        launch_attrs={"axes": (axis,)}, rtol=2e-3, atol=5e-2 if dtype == "float16" else 1e-4,
    )  # fmt: skip
