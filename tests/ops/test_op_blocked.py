"""Convolutions on NC1HWC0 itself against Conv on NCHW."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from npusim.errors import GraphError
from npusim.ir import EpilogueStep, Layout, Node, TensorType, pack, unpack
from npusim.ir.dtype import DType
from npusim.ir.layout import channels_in_blocks, channels_last
from npusim.machine.workers import Workers
from npusim.ops import compute_node, get_operator
from npusim.ops.blocked import conv_blocked, filters
from npusim.ops.blocked_depthwise import depthwise_blocked, depthwise_filters
from npusim.ops.conv import conv_window

PAIRS = st.tuples(st.integers(1, 4), st.integers(1, 4))


def turned(x: np.ndarray) -> np.ndarray:
    """The same with all channels of a pixel together in memory."""
    return channels_in_blocks(np.ascontiguousarray(channels_last(x)))


@settings(max_examples=120, deadline=None)
@given(
    st.booleans(),
    st.tuples(st.booleans(), st.booleans()),
    PAIRS,
    PAIRS,
    PAIRS,
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
    st.tuples(st.integers(1, 2), st.integers(1, 36), st.integers(1, 10), st.integers(1, 10)),
)
def test_blocked_convolutions(
    depthwise: bool,
    in_channels_last: tuple[bool, bool],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    pads: list[int],
    shape: tuple[int, ...],
) -> None:
    rng = np.random.default_rng(0)
    c, co = shape[1], shape[1] if depthwise else 20
    attrs: dict[str, Any] = {"strides": strides, "dilations": dilations, "pads": pads}
    attrs["group"] = c if depthwise else 1
    try:
        window = conv_window(shape[2:], kernel, {**get_operator("Conv").attrs, **attrs})
    except GraphError:  # a window larger than the input
        assume(False)
    x = rng.standard_normal(shape).astype(np.float32)
    w = rng.standard_normal((co, 1 if depthwise else c, *kernel)).astype(np.float32)
    b = rng.standard_normal(co).astype(np.float32)
    other = rng.standard_normal((shape[0], co, *window.out)).astype(np.float32)
    half, six = np.full((1, 1, 1, 1), 0.5, np.float32), np.float32(6)
    # fmt: off
    steps = (EpilogueStep("Add", 4), EpilogueStep("Min", 5), EpilogueStep("Add", 3),
             EpilogueStep("Relu"))
    # fmt: on
    node = Node("n", "Conv", ("x", "w", "b", "z", "half", "six"), ("y",), attrs, steps)
    values = [x, w, b, other, half, np.asarray(six)]
    want = compute_node(node, values, [TensorType(other.shape, DType.FLOAT32)])[0]
    image = pack(x, Layout.NC1HWC0)
    operands = [half, np.asarray(six), pack(other, Layout.NC1HWC0), None]
    fused = list(zip(steps, operands, strict=True))
    y = np.full_like(pack(want, Layout.NC1HWC0), np.nan)
    image, y = (
        turned(a) if yes else a for a, yes in zip((image, y), in_channels_last, strict=True)
    )
    if depthwise:
        pieces = depthwise_blocked(image, depthwise_filters(w, 16, b), window, fused, y)
    else:
        dense = filters(pack(w, Layout.FRACTAL_Z), kernel[0] * kernel[1], c, b)
        pieces = conv_blocked(image, dense, window, fused, y)
    Workers().run(pieces.work, pieces.whole)
    got = unpack(y, want.shape, Layout.NC1HWC0)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("low", "high"), [(0.0, 6.0), (2.0, -1.0), (None, 1.0), (1.0, None)])
def test_clip_lets_the_upper_bound_win(low: float | None, high: float | None) -> None:
    x = np.linspace(-3, 9, 25, dtype=np.float32)
    x[3] = np.nan
    bounds = [None if v is None else np.float32(v) for v in (low, high)]
    want = x if low is None else np.maximum(x, bounds[0])
    want = want if high is None else np.minimum(want, bounds[1])
    node = Node("n", "Clip", ("x", "low", "high"), ("y",))
    given_ = [x, *(None if v is None else np.asarray(v) for v in bounds)]
    got = compute_node(node, given_, [TensorType(x.shape, DType.FLOAT32)])[0]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("in_channels_last", [False, True])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16])
@pytest.mark.parametrize(("group", "kernel", "stride", "dilation"), [
    (2, 1, 1, 1), (4, 1, 2, 1), (2, 3, 1, 1), (4, 3, 2, 1), (2, 3, 1, 2),
])  # fmt: skip
def test_groups_of_whole_blocks(
    group: int, kernel: int, stride: int, dilation: int, dtype: DType, in_channels_last: bool
) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 64, 9, 11)).astype(dtype.np)
    w = rng.standard_normal((128, 64 // group, kernel, kernel)).astype(dtype.np)
    b = rng.standard_normal(128).astype(np.float32)
    attrs = {"group": group, "strides": (stride,) * 2, "dilations": (dilation,) * 2}
    attrs["pads"] = (kernel // 2,) * 4
    window = conv_window(x.shape[2:], w.shape[2:], {**get_operator("Conv").attrs, **attrs})
    want_type = TensorType((2, 128, *window.out), dtype)
    node = Node("n", "Conv", ("x", "w", "b"), ("y",), attrs, (EpilogueStep("Relu"),))
    want = compute_node(node, [x, w, b], [want_type])[0]
    y = np.full_like(pack(want, Layout.NC1HWC0), np.nan)
    dense = filters(pack(w, Layout.FRACTAL_Z), kernel * kernel, 64 // group, b)
    relu = [(EpilogueStep("Relu"), None)]
    image = pack(x, Layout.NC1HWC0)
    if in_channels_last:
        image, y = turned(image), turned(y)
    pieces = conv_blocked(image, dense, window, relu, y, group)
    Workers().run(pieces.work, pieces.whole)
    got = unpack(y, want.shape, Layout.NC1HWC0)
    tolerance = 1e-4 if dtype is DType.FLOAT32 else 2e-3
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
