"""Convolutions and their gradients through FIXP, in C0 = 8 and 16, against their operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, random_array

import npusim.kernels  # noqa: F401  (registers the kernels)
from npusim.errors import GraphError, UnsupportedError
from npusim.ir import DType, Layout, Node, TensorType, pack, unpack
from npusim.machine.launch import run_tile_level, time_launch
from npusim.ops import compute_node, infer_node
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan

B2 = CHIPS["ascend910b2"]
LAYOUTS = {
    "float32": (Layout.NC1HWC0_8, Layout.FRACTAL_Z_8),
    "float16": (Layout.NC1HWC0, Layout.FRACTAL_Z),
}
SEED = np.random.default_rng(0)
KINDS = st.sampled_from(["float16", "float32"])


@st.composite
def layers(draw: Any) -> tuple[tuple[int, ...], int, tuple[int, int], dict[str, Any]]:
    """Image shape, Co, kernel, attributes."""
    kernel = (draw(st.integers(1, 5)), draw(st.integers(1, 5)))
    attrs = {
        "strides": tuple(draw(st.integers(1, 3)) for _ in range(2)),
        "pads": tuple(draw(st.integers(0, k - 1)) for k in kernel * 2),
    }
    shape = tuple(draw(st.integers(1, n)) for n in (3, 40, 14, 30))
    return shape, 16 * draw(st.integers(1, 4)), kernel, attrs


def result_shape(
    shape: tuple[int, ...], co: int, kernel: tuple[int, int], attrs: dict[str, Any]
) -> tuple[int, ...]:
    types = [TensorType(shape, DType.FLOAT32), TensorType((co, shape[1], *kernel), DType.FLOAT32)]
    try:
        return infer_node(Node("n", "Conv", ("x", "w"), ("y",), attrs), types, [None, None])[
            0
        ].shape
    except GraphError:  # a window larger than the image
        assume(False)
        raise


@settings(max_examples=25, deadline=None)
@given(layers(), KINDS, st.booleans())
def test_forward(layer: tuple[Any, ...], dtype: str, biased: bool) -> None:
    shape, co, kernel, attrs = layer
    result_shape(shape, co, kernel, attrs)
    image, weights = LAYOUTS[dtype]
    inputs = [random_array(SEED, s, dtype) for s in (shape, (co, shape[1], *kernel))]
    if biased:
        inputs.append(random_array(SEED, (co,), "float32"))
        assume(dtype == "float32")
    layouts = (image, weights, *[Layout.ND] * biased, image)
    scale = float(np.sqrt(shape[1] * kernel[0] * kernel[1]))
    check_operator(
        B2, "FixpConv2D", "Conv", inputs, attrs, launch_attrs={"hf32": 1}, layouts=layouts,
        rtol=4e-3, atol=4e-3 * scale,
    )  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(layers(), KINDS)
def test_gradient_by_the_input(layer: tuple[Any, ...], dtype: str) -> None:
    shape, co, kernel, attrs = layer
    shape = (shape[0], 16 * (shape[1] // 10 + 1), *shape[2:])
    dy = result_shape(shape, co - 3, kernel, attrs)
    image, weights = LAYOUTS[dtype]
    inputs = [random_array(SEED, s, dtype) for s in (dy, (co - 3, shape[1], *kernel))]
    scale = float(np.sqrt(co * kernel[0] * kernel[1]))
    check_operator(
        B2, "FixpConv2D", "Conv2DBackpropInput", inputs, {**attrs, "input_size": shape[2:]},
        launch_attrs={"hf32": 1}, layouts=(image, weights, image), rtol=4e-3, atol=4e-3 * scale,
    )  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(layers(), KINDS, st.integers(1, 4))
def test_gradient_by_the_weights(layer: tuple[Any, ...], dtype: str, images: int) -> None:
    shape, co, kernel, attrs = layer
    shape = (8 * images, *shape[1:]) if images > 2 else shape
    dy = result_shape(shape, co - 3, kernel, attrs)
    # Whole numbers, which are exact in HF32 and sum exactly. C0 of the result is the inputs' own.
    inputs = [SEED.integers(-2, 3, s).astype(dtype) for s in (dy, shape)]
    attrs = {**attrs, "kernel_shape": kernel}
    image, weights = LAYOUTS[dtype]
    types = [TensorType(a.shape, DType.of(a.dtype)) for a in inputs]
    node = Node("n", "Conv2DBackpropFilter", ("dy", "x"), ("dw",), attrs)
    (kind,) = infer_node(node, types, inputs)
    (want,) = compute_node(node, inputs, [kind])
    specs = tuple(OperandSpec(a.shape, DType.of(a.dtype), image) for a in inputs)
    out = OperandSpec(kind.shape, kind.dtype, weights)
    launch_attrs = tuple(sorted({**attrs, "hf32": 1}.items()))
    args = KernelArgs("Conv2DBackpropFilter", specs, (out,), launch_attrs)
    plan = choose_plan("FixpFilterGrad", args, B2)
    stored = [np.ascontiguousarray(pack(a, image)) for a in inputs]
    got = np.zeros(out.storage_shape, np.float32)
    run_tile_level(B2, "FixpFilterGrad", args, plan, [*stored, got])
    np.testing.assert_array_equal(unpack(got, out.shape, weights), want)
    fast = time_launch(B2, "FixpFilterGrad", args, plan, fold=False)
    assert fast.cycles == time_launch(B2, "FixpFilterGrad", args, plan, engine="simpy").cycles


def test_chips_that_empty_l0c_through_the_vector_unit_are_refused() -> None:
    x, w = OperandSpec((1, 16, 4, 4), DType.FLOAT16, Layout.NC1HWC0), OperandSpec(
        (16, 16, 1, 1), DType.FLOAT16, Layout.FRACTAL_Z)  # fmt: skip
    with pytest.raises(UnsupportedError, match="vector unit"):
        choose_plan("FixpConv2D", KernelArgs("Conv", (x, w), (x,)), CHIPS["ascend910a"])
