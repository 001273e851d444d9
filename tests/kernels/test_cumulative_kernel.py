"""CumSum and CumProd at tile level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, timed

import npusim.kernels.cumulative  # noqa: F401
from npusim.ir import DType, Layout
from npusim.program.kernel import KernelArgs, OperandSpec, get_kernel


def check(chip: str, op: str, x: np.ndarray, axis: int, **attrs: Any) -> int:
    """Steps of a tile; fp16 folds in fp32, as the operator's semantics do."""
    constant = [np.array(axis, np.int64)]
    plan = check_operator(CHIPS[chip], "Cumulative", op, [x], attrs, constant, {"axis": axis})
    return plan.tiling["r"]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(list(CHIPS)),
    st.lists(st.sampled_from([1, 2, 3, 7, 16, 33]), min_size=1, max_size=3),
    st.sampled_from(["float16", "float32", "int32"]),
    st.sampled_from(["CumSum", "CumProd"]),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_any_axis(
    chip: str,
    shape: list[int],
    dtype: str,
    op: str,
    exclusive: bool,
    back: bool,
    data: st.DataObject,
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = np.random.default_rng(0).choice([-1, 1, 2, 0.5], shape).astype(dtype)
    check(chip, op, x, axis, exclusive=int(exclusive), reverse=int(back))


@pytest.mark.parametrize(("shape", "axis"), [((3, 1000, 40), 1), ((2, 700), 1), ((900, 65), 0)])
@pytest.mark.parametrize("reverse", [0, 1])
def test_rows_are_carried_from_tile_to_tile(
    shape: tuple[int, ...], axis: int, reverse: int
) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    assert check("toy", "CumSum", x, axis, reverse=reverse, exclusive=reverse) < x.shape[axis]


def test_bf16_where_the_vector_unit_has_it() -> None:
    x = np.random.default_rng(1).standard_normal((5, 40)).astype(DType.BFLOAT16.np)
    check("ascend910b2", "CumSum", x, 0)
    assert "bfloat16" in refused(OperandSpec((5, 40), DType.BFLOAT16), axis=0)


def refused(spec: OperandSpec, **attrs: Any) -> str:
    args = KernelArgs("CumSum", (spec,), (spec,), tuple(attrs.items()))
    return get_kernel("Cumulative").refuse(args, CHIPS["ascend910a"])


def test_what_is_refused() -> None:
    assert "axis" in refused(OperandSpec((4, 8), DType.FLOAT32))
    assert "int64" in refused(OperandSpec((4, 8), DType.INT64), axis=0)
    assert "layout" in refused(OperandSpec((1, 16, 4, 4), DType.FLOAT16, Layout.NC1HWC0), axis=0)


def test_a_step_costs_an_instruction() -> None:
    """A scan twice as long takes twice as long; one twice as wide does not."""
    chip = CHIPS["ascend910a"]

    def cycles(length: int, width: int) -> int:
        spec = OperandSpec((length, width), DType.FLOAT32)
        return timed(chip, "Cumulative", KernelArgs("CumSum", (spec,), (spec,), (("axis", 0),)))[
            0
        ].cycles

    short, long, wide = cycles(500, 512), cycles(1000, 512), cycles(500, 1024)
    assert 1.8 < long / short < 2.2 and wide < 1.3 * short
