"""Convolution gradients and Conv2D + BNTrainingReduce at tile level against their operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from launching import CHIPS, random_array

import npusim.kernels  # noqa: F401  (registers the kernels)
from npusim.errors import GraphError
from npusim.ir import DType, Layout, Node, TensorType, pack, unpack
from npusim.machine.launch import run_tile_level, time_launch
from npusim.ops import compute_node, infer_node
from npusim.program.kernel import KernelArgs, OperandSpec, Plan, choose_plan

NC, FZ, ND = Layout.NC1HWC0, Layout.FRACTAL_Z, Layout.ND
TARGETS = st.sampled_from(["toy", "ascend910a"])
SEED = np.random.default_rng(0)


def run(
    chip: str, kernel: str, op_type: str, inputs: Sequence[np.ndarray], attrs: dict[str, Any],
    layouts: Sequence[Layout], outputs: Sequence[Layout],
) -> Plan:  # fmt: skip
    """Tile level on zeroed outputs (atomic adds need them) against `compute_node`."""
    names = tuple(f"x{i}" for i in range(len(inputs)))
    node = Node("n", op_type, names, tuple(f"y{i}" for i in range(len(outputs))), attrs)
    types = infer_node(node, [TensorType(a.shape, DType.of(a.dtype)) for a in inputs], inputs)
    want = compute_node(node, inputs, types)
    specs = tuple(
        OperandSpec(a.shape, DType.of(a.dtype), lay) for a, lay in zip(inputs, layouts, strict=True)
    )
    outs = tuple(OperandSpec(t.shape, t.dtype, lay) for t, lay in zip(types, outputs, strict=True))
    args = KernelArgs(op_type, specs, outs, tuple(sorted(attrs.items())))
    plan = choose_plan(kernel, args, CHIPS[chip])
    stored = [np.ascontiguousarray(pack(a, lay)) for a, lay in zip(inputs, layouts, strict=True)]
    results = [np.zeros(o.storage_shape, o.dtype.np) for o in outs]
    run_tile_level(CHIPS[chip], kernel, args, plan, [*stored, *results])
    fast = time_launch(CHIPS[chip], kernel, args, plan, fold=False)
    assert fast.cycles == time_launch(CHIPS[chip], kernel, args, plan, engine="simpy").cycles
    for r, o, w in zip(results, outs, want, strict=True):
        got = unpack(r, o.shape, o.layout)
        scale = max(1.0, float(np.abs(w.astype(np.float64)).max()))
        np.testing.assert_allclose(
            got.astype(np.float64), w.astype(np.float64), rtol=4e-3, atol=4e-3 * scale
        )
    return plan


@st.composite
def layers(draw: Any) -> tuple[tuple[int, ...], int, tuple[int, int], dict[str, Any]]:
    """Image shape, Co, kernel, attributes."""
    kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    attrs = {
        "strides": tuple(draw(st.integers(1, 3)) for _ in range(2)),
        "pads": tuple(draw(st.integers(0, k - 1)) for k in kernel * 2),
    }
    shape = tuple(draw(st.integers(1, n)) for n in (3, 40, 14, 14))
    return shape, draw(st.integers(1, 70)), kernel, attrs


def forward_shape(
    shape: tuple[int, ...], co: int, kernel: tuple[int, int], attrs: dict[str, Any]
) -> tuple[int, ...]:
    node = Node("n", "Conv", ("x", "w"), ("y",), attrs)
    half = DType.FLOAT16
    types = [TensorType(shape, half), TensorType((co, shape[1], *kernel), half)]
    try:
        return infer_node(node, types, [None, None])[0].shape
    except GraphError:  # a window larger than the image
        assume(False)
        raise


@settings(max_examples=40, deadline=None)
@given(TARGETS, layers())
def test_bn_sums(chip: str, layer: tuple[Any, ...]) -> None:
    shape, co, kernel, attrs = layer
    forward_shape(shape, co, kernel, attrs)
    inputs = [random_array(SEED, s, "float16") for s in (shape, (co, shape[1], *kernel))]
    run(chip, "Conv2DBNTrainingReduce", "FusionOp_Conv2D_BNTrainingReduce", inputs, attrs,
        (NC, FZ), (NC, NC, NC))  # fmt: skip


def input_gradient(chip: str, layer: tuple[Any, ...], adds: int, relu: bool) -> Plan:
    shape, co, kernel, attrs = layer
    dy = forward_shape(shape, co, kernel, attrs)
    inputs = [random_array(SEED, s, "float16") for s in (dy, (co, shape[1], *kernel))]
    inputs += [random_array(SEED, shape, "float16") for _ in range(adds)]
    op, layouts = "Conv2DBackpropInput", [NC, FZ, *[NC] * adds]
    if relu:
        n, c, h, w = shape
        bits = SEED.integers(0, 256, (n, -(-c // 16), h, w, 2)).astype(np.uint8)
        inputs.append(bits)
        layouts.append(ND)
        op = f"FusionOp_Conv2DBackpropInput_{'AddN_' * bool(adds)}ReluGradV2"
    attrs = {**attrs, "input_size": shape[2:]}
    return run(chip, "Conv2DBackpropInput", op, inputs, attrs, layouts, (NC,))


@settings(max_examples=60, deadline=None)
@given(TARGETS, layers(), st.sampled_from([(0, False), (0, True), (1, True)]))
def test_input_gradient(chip: str, layer: tuple[Any, ...], fused: tuple[int, bool]) -> None:
    input_gradient(chip, layer, *fused)


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
@pytest.mark.parametrize(
    "layer",
    [
        ((2, 64, 14, 14), 32, (1, 1), {}),
        ((1, 40, 15, 15), 64, (3, 3), {"strides": (2, 2), "pads": (1,) * 4}),
        ((2, 130, 7, 7), 100, (3, 3), {"pads": (1,) * 4}),
        ((1, 16, 8, 8), 32, (1, 1), {"strides": (2, 2)}),
    ],
)
def test_input_gradient_of_layers(chip: str, layer: tuple[Any, ...]) -> None:
    input_gradient(chip, layer, 1, True)


def filter_gradient(chip: str, layer: tuple[Any, ...]) -> Plan:
    shape, co, kernel, attrs = layer
    dy = forward_shape(shape, co, kernel, attrs)
    inputs = [random_array(SEED, s, "float16") for s in (dy, shape)]
    attrs = {**attrs, "kernel_shape": kernel}
    op = "Conv2DBackpropFilter"
    return run(chip, op, op, inputs, attrs, (NC, NC), (FZ,))


@settings(max_examples=60, deadline=None)
@given(TARGETS, layers())
def test_filter_gradient(chip: str, layer: tuple[Any, ...]) -> None:
    filter_gradient(chip, layer)


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
@pytest.mark.parametrize(
    ("layer", "atomic"),
    [
        (((2, 64, 14, 14), 32, (1, 1), {}), True),
        (((40, 16, 8, 8), 64, (3, 3), {"pads": (1,) * 4}), False),
        (((2, 130, 7, 7), 100, (3, 3), {"pads": (1,) * 4}), True),
        (((1, 16, 9, 9), 32, (3, 3), {"strides": (2, 2), "pads": (1,) * 4}), False),
    ],
)
def test_filter_gradient_of_layers(chip: str, layer: tuple[Any, ...], atomic: bool) -> None:
    plan = filter_gradient(chip, layer)
    if chip == "ascend910a" and layer[0][0] < 32:  # one image a block
        assert (plan.block_dim > 1) == atomic


def test_channels_of_powers_of_two_may_be_split_where_blocks_divide_the_batch() -> None:
    """32 blocks of 512→512 3×3 split channels; of 384→384 each adds a whole dW."""
    splits = {}
    for c in (512, 384):
        specs = [OperandSpec((32, c, s, s), DType.FLOAT16, NC) for s in (7, 14)]
        attrs = (("kernel_shape", (3, 3)), ("pads", (1,) * 4), ("strides", (2, 2)))
        dw = OperandSpec((c, c, 3, 3), DType.FLOAT32, FZ)
        op = "Conv2DBackpropFilter"
        plan = choose_plan(op, KernelArgs(op, tuple(specs), (dw,), attrs), CHIPS["ascend910a"])
        splits[c] = plan.tiling["bb"]
        assert plan.block_dim == 32
    assert splits == {512: 1, 384: 32}


def test_a_window_one_row_high_reads_its_rows_only() -> None:
    specs = [OperandSpec(s, DType.FLOAT16, NC) for s in ((2, 32, 28, 28), (2, 16, 14, 14))]
    w = OperandSpec((16, 32, 1, 1), DType.FLOAT16, FZ)
    args = KernelArgs("Conv", (specs[0], w), (specs[1],), (("group", 1), ("strides", (2, 2))))
    plan = choose_plan("Conv2D", args, CHIPS["ascend910a"])
    assert plan.traffic[0].unique * 2 == specs[0].nbytes


@settings(max_examples=30, deadline=None)
@given(TARGETS, layers())
def test_bn_and_filter_gradient(chip: str, layer: tuple[Any, ...]) -> None:
    bn_and_filter_gradient(chip, layer)


@pytest.mark.parametrize(
    "layer",
    [
        ((1, 130, 9, 9), 40, (3, 3), {"pads": (1,) * 4}),  # dY is read back for later n tiles
        ((2, 40, 16, 16), 600, (1, 1), {"strides": (2, 2)}),  # several m tiles
    ],
)
def test_bn_and_filter_gradient_of_layers(layer: tuple[Any, ...]) -> None:
    bn_and_filter_gradient("ascend910a", layer)


def bn_and_filter_gradient(chip: str, layer: tuple[Any, ...]) -> None:
    shape, co, kernel, attrs = layer
    co = min(co, 32) if chip == "toy" else co  # the toy's UB holds coefficients of 32 channels
    dy = forward_shape(shape, co, kernel, attrs)
    inputs = [random_array(SEED, s, "float16") for s in (shape, dy, dy)]
    inputs += [random_array(SEED, (1, co, 1, 1), "float32") for _ in range(5)]
    inputs[-1] = np.abs(inputs[-1]) + np.float32(0.5)  # a variance
    attrs = {**attrs, "kernel_shape": kernel}
    run(chip, "FusedDbnDw", "FusedDbnDw", inputs, attrs, (NC,) * 8, (NC, FZ))
