"""ScatterND, ScatterElements and TensorScatter at tile level, duplicates and all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, timed
from test_gather_nd import EXTENTS, tuples

import npusim.kernels.scatter_elements
import npusim.kernels.scatter_rows  # noqa: F401
from npusim.errors import KernelError
from npusim.ir import DType
from npusim.machine.launch import run_tile_level
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan, get_kernel

#: The kernels, by the bytes of a row.
NARROW, WIDE = "ScatterElements", "ScatterRows"
REDUCTIONS = ["none", "add", "mul", "max", "min"]


def kernel_for(x: np.ndarray, width: int) -> str:
    return NARROW if width * x.itemsize < 32 else WIDE


def whole(shape: Any, dtype: str, seed: int = 0) -> np.ndarray:
    """Numbers whose sums and products are exact, whatever the order of roundings."""
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(dtype)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(CHIPS)),
    st.lists(EXTENTS, min_size=1, max_size=3),
    st.integers(1, 70),
    st.sampled_from(["float16", "float32", "int32"]),
    st.sampled_from(REDUCTIONS),
    st.data(),
)
def test_tuples(
    chip: str, shape: list[int], n: int, dtype: str, how: str, data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(shape)))
    picks = tuples((n,), shape[:k], data.draw(st.sampled_from(["int32", "int64"])))
    updates = whole((n, *shape[k:]), dtype, 1)
    x = whole(shape, dtype)
    name = kernel_for(x, updates[0].size)
    check_operator(CHIPS[chip], name, "ScatterND", [x, picks, updates], {"reduction": how})


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(CHIPS)),
    st.lists(EXTENTS, min_size=1, max_size=3),
    st.integers(1, 40),
    st.sampled_from(["float16", "float32", "int32"]),
    st.sampled_from(REDUCTIONS),
    st.data(),
)
def test_elements(
    chip: str, shape: list[int], n: int, dtype: str, how: str, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    wanted = (*shape[:axis], n, *shape[axis + 1 :])
    picks = tuples(wanted, shape[axis : axis + 1], "int64")[..., 0]
    inputs = [whole(shape, dtype), picks, whole(wanted, dtype, 1)]
    attrs = {"axis": axis, "reduction": how}
    check_operator(CHIPS[chip], NARROW, "ScatterElements", inputs, attrs)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64"])
@pytest.mark.parametrize("width", [3, 50])
def test_types_that_are_only_moved(dtype: str, width: int) -> None:
    x, u = whole((6, width), dtype), whole((9, width), dtype, 1)
    picks, name = tuples((9,), (6,), "int64"), kernel_for(x, width)
    for chip in CHIPS.values():
        check_operator(chip, name, "ScatterND", [x, picks, u], {})


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize("chip", list(CHIPS))
def test_runs_into_a_cache(chip: str, axis: int, mode: str) -> None:
    shape = [5, 3, 9, 40]
    x = whole(shape, "float16")
    shape[axis] = 2
    last = x.shape[axis] - (0 if mode == "circular" else 1)
    starts = np.random.default_rng(0).integers(0, last, 5)
    inputs = [x, whole(shape, "float16", 1), starts]
    attrs = {"axis": axis, "mode": mode}
    name = kernel_for(x, int(np.prod(x.shape[axis + 1 :])))
    check_operator(CHIPS[chip], name, "TensorScatter", inputs, attrs)


@pytest.mark.parametrize("how", ["none", "add"])
def test_duplicates_come_in_order(how: str) -> None:
    """Rows that every block is offered, long enough to be cut on the toy."""
    x, picks = whole((60, 2500), "float32"), np.full((50, 1), 7, np.int64)
    updates = np.random.default_rng(0).standard_normal((50, 2500)).astype(np.float32)
    for chip in ("toy", "ascend910b2"):
        inputs = [x, picks, updates]
        plan = check_operator(CHIPS[chip], WIDE, "ScatterND", inputs, {"reduction": how})
        assert plan.block_dim > 1
        assert chip != "toy" or plan.tiling["part"] < 2500


@pytest.mark.parametrize("how", ["none", "max"])
def test_lanes_longer_than_a_chunk_are_cut(how: str) -> None:
    """Every chunk of a lane is offered all of its indices."""
    x, picks = whole((2, 9000), "float32"), tuples((2, 700), (9000,), "int32")[..., 0]
    inputs, attrs = [x, picks, whole((2, 700), "float32", 1)], {"axis": 1, "reduction": how}
    plan = check_operator(CHIPS["toy"], NARROW, "ScatterElements", inputs, attrs)
    assert plan.tiling["rows"] < 9000


def launch(
    op: str, data: OperandSpec, picks: tuple[int, ...], kind: DType, **attrs: Any
) -> KernelArgs:
    k = picks[-1] if op == "ScatterND" else 0
    shape = (*picks[:-1], *data.shape[k:]) if k else picks
    given = (data, OperandSpec(picks, kind), OperandSpec(shape, data.dtype))
    return KernelArgs(op, given, (data,), tuple(sorted(attrs.items())))


def test_what_is_refused() -> None:
    rows, elements = (get_kernel(k).refuse for k in (WIDE, NARROW))
    chip, x, longs = (
        CHIPS["ascend910a"],
        *(OperandSpec((4, 16), t) for t in (DType.FLOAT16, DType.INT64)),
    )
    assert "float32" in rows(launch("ScatterND", x, (2, 1), DType.FLOAT32), chip)
    assert "less than 32 B" in rows(launch("ScatterND", x, (2, 2), DType.INT64), chip)
    assert "32 B and more" in elements(launch("ScatterND", x, (2, 1), DType.INT64), chip)
    assert not rows(launch("ScatterND", longs, (2, 1), DType.INT64), chip)
    assert "int64" in rows(launch("ScatterND", longs, (2, 1), DType.INT64, reduction="add"), chip)
    few = launch("ScatterElements", x, (2, 4), DType.INT64, axis=0)
    assert "beside the axis" in elements(few, chip)


def test_a_wrong_index_is_an_error() -> None:
    args = launch("ScatterND", OperandSpec((4, 16), DType.FLOAT16), (2, 1), DType.INT32)
    half = np.zeros((4, 16), "f2")
    operands = [half, np.array([[1], [4]], np.int32), half[:2], half.copy()]
    plan = choose_plan(WIDE, args, CHIPS["toy"])
    with pytest.raises(KernelError, match="dimension of 4"):
        run_tile_level(CHIPS["toy"], WIDE, args, plan, operands)


def test_time_grows_with_the_picks_and_the_table() -> None:
    chip, half = CHIPS["ascend910a"], DType.FLOAT16

    def cycles(rows: int, picks: int) -> int:
        args = launch("ScatterND", OperandSpec((rows, 256), half), (picks, 1), DType.INT64)
        return timed(chip, WIDE, args)[0].cycles

    few, many, large = cycles(4096, 64), cycles(4096, 4096), cycles(32768, 64)
    assert many > 2 * few and large > 3 * few
