"""TransData is `ir.layout.pack` and `unpack`, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, execute, random_array, timed

import npusim.kernels.transdata  # noqa: F401
from npusim.ir import DType, Layout, Node, TensorType
from npusim.program.kernel import KernelArgs, OperandSpec, get_kernel

NODE = Node("t", "TransData", ("x",), ("y",))


def both_ways(chip: str, shape: tuple[int, ...], dtype: str, layout: Layout, seed: int) -> None:
    x = random_array(np.random.default_rng(seed), shape, dtype)
    kind = [TensorType(shape, DType(dtype))]
    for layouts in ([Layout.ND, layout], [layout, Layout.ND]):
        (y,), _ = execute(CHIPS[chip], "TransData", NODE, [x], kind, layouts, {})
        np.testing.assert_array_equal(y, x)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["toy", "ascend910a", "ascend910b2"]),
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 12), st.integers(1, 12)),
    st.sampled_from(["float16", "float32", "int8"]),
    st.integers(0, 99),
)
def test_channels(chip: str, shape: tuple[int, ...], dtype: str, seed: int) -> None:
    both_ways(chip, shape, dtype, Layout.NC1HWC0, seed)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["toy", "ascend910a", "ascend910b2"]),
    st.lists(st.integers(1, 3), max_size=2),
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.sampled_from(["float16", "float32", "int8", "bfloat16"]),
    st.integers(0, 99),
)
def test_fractals(
    chip: str, batch: list[int], matrix: tuple[int, int], dtype: str, seed: int
) -> None:
    both_ways(chip, (*batch, *matrix), dtype, Layout.FRACTAL_NZ, seed)


@pytest.mark.parametrize("layout", [Layout.NC1HWC0, Layout.FRACTAL_NZ])
def test_large(layout: Layout) -> None:
    shape = (2, 35, 60, 61) if layout is Layout.NC1HWC0 else (700, 403)
    both_ways("ascend910a", shape, "float16", layout, 0)


def test_refuses_two_blocked_layouts() -> None:
    x = OperandSpec((1, 16, 4, 4), DType.FLOAT16, Layout.NC1HWC0)
    y = OperandSpec((1, 16, 4, 4), DType.FLOAT16, Layout.FRACTAL_NZ)
    chip = CHIPS["toy"]
    assert get_kernel("TransData").refuse(KernelArgs("TransData", (x,), (y,)), chip)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["toy", "ascend910a", "ascend910b2"]),
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 12), st.integers(1, 12)),
    st.integers(0, 99),
)
def test_channels_with_a_conversion(chip: str, shape: tuple[int, int, int, int], seed: int) -> None:
    _converts(chip, shape, seed)


@pytest.mark.parametrize("chip", ["toy", "ascend910a", "ascend910b2"])
def test_large_with_a_conversion(chip: str) -> None:
    _converts(chip, (2, 35, 60, 61), 0)


def _converts(chip: str, shape: tuple[int, int, int, int], seed: int) -> None:
    """fp32 in ND to fp16 in NC1HWC0 rounds as a Cast does; the way back is exact."""
    wide = random_array(np.random.default_rng(seed), shape, "float32")
    half = wide.astype(np.float16)
    cases = (
        (wide, half, [Layout.ND, Layout.NC1HWC0]),
        (half, half.astype(np.float32), [Layout.NC1HWC0, Layout.ND]),
        (half, half.astype(np.float32), [Layout.ND, Layout.NC1HWC0]),
        (wide, half, [Layout.NC1HWC0, Layout.ND]),
    )
    for given_, want, layouts in cases:
        kind = [TensorType(shape, DType.of(want.dtype))]
        (y,), _ = execute(CHIPS[chip], "TransData", NODE, [given_], kind, layouts, {})
        np.testing.assert_array_equal(y, want)


def _few(chip: str, shape: tuple[int, ...], dtype: str, seed: int) -> None:
    """ND to NC1HWC0_C04 in fp16."""
    x = random_array(np.random.default_rng(seed), shape, dtype)
    kind, layouts = [TensorType(shape, DType.FLOAT16)], [Layout.ND, Layout.NC1HWC0_C04]
    (y,), _ = execute(CHIPS[chip], "TransDataC04", NODE, [x], kind, layouts, {})
    np.testing.assert_array_equal(y, x.astype(np.float16))


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["toy", "ascend910a", "ascend910b2"]),
    st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 40), st.integers(1, 40)),
    st.sampled_from(["float16", "float32"]),
    st.integers(0, 99),
)
def test_few_channels(chip: str, shape: tuple[int, ...], dtype: str, seed: int) -> None:
    _few(chip, shape, dtype, seed)


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
@pytest.mark.parametrize("shape", [(2, 3, 160, 131), (1, 4, 64, 64), (40, 1, 16, 16)])
def test_many_pixels_of_few_channels(chip: str, shape: tuple[int, ...]) -> None:
    _few(chip, shape, "float32", 0)


def test_few_channels_are_less_to_write() -> None:
    """A quarter of the bytes, and less than half of the time."""
    chip, shape = CHIPS["ascend910a"], (8, 3, 224, 224)
    x = OperandSpec(shape, DType.FLOAT32)
    cycles = {}
    for kernel, layout in (("TransData", Layout.NC1HWC0), ("TransDataC04", Layout.NC1HWC0_C04)):
        y = OperandSpec(shape, DType.FLOAT16, layout)
        args = KernelArgs("TransData", (x,), (y,))
        result, plan = timed(chip, kernel, args)
        cycles[kernel] = result.cycles
        assert plan.traffic[1].total == y.nbytes
    assert cycles["TransDataC04"] < cycles["TransData"] / 2


def test_what_few_channels_refuse() -> None:
    chip, kernel = CHIPS["ascend910a"], get_kernel("TransDataC04")
    x = OperandSpec((1, 3, 4, 4), DType.FLOAT16)
    y = OperandSpec((1, 3, 4, 4), DType.FLOAT16, Layout.NC1HWC0_C04)

    def refuse(source: OperandSpec, target: OperandSpec) -> str:
        return kernel.refuse(KernelArgs("TransData", (source,), (target,)), chip)

    assert refuse(x, y) == ""
    assert refuse(y, x) == "TransData from NC1HWC0_C04 to ND"
    assert "no shape" in refuse(OperandSpec((3, 1, 4, 4), DType.FLOAT16), y)
    assert "in fp16" in refuse(OperandSpec(x.shape, DType.INT8), y)
    assert "in fp16" in refuse(x, OperandSpec(y.shape, DType.FLOAT32, y.layout))


def test_refuses_other_conversions() -> None:
    chip = CHIPS["toy"]
    x = OperandSpec((1, 16, 4, 4), DType.FLOAT32, Layout.ND)
    for layout, dtype in ((Layout.FRACTAL_NZ, DType.FLOAT16), (Layout.NC1HWC0, DType.INT32)):
        y = OperandSpec((1, 16, 4, 4), dtype, layout)
        reason = get_kernel("TransData").refuse(KernelArgs("TransData", (x,), (y,)), chip)
        assert "converts between" in reason
