"""Depthwise convolution at tile level against Conv."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, execute, random_array

import npusim.kernels.depthwise  # noqa: F401
from npusim.errors import GraphError, UnsupportedError
from npusim.ir import DType, EpilogueStep, Layout, Node, TensorType
from npusim.ops import compute_node, infer_node
from npusim.program.kernel import KernelArgs, OperandSpec, get_kernel

TOLERANCE = {"float16": 2e-3, "float32": 1e-5, "bfloat16": 2e-2}
NC, ND = Layout.NC1HWC0, Layout.ND


def check(
    chip: str,
    shape: tuple[int, ...],
    kernel: tuple[int, int],
    dtype: str,
    attrs: dict[str, Any],
    bias: bool = False,
    epilogue: tuple[EpilogueStep, ...] = (),
    residual: tuple[int, ...] = (),
) -> None:
    rng = np.random.default_rng(0)
    c = shape[1]
    inputs: list[np.ndarray | None] = [
        random_array(rng, shape, dtype),
        random_array(rng, (c, 1, *kernel), dtype),
    ]
    layouts = [NC, ND]
    if bias or residual:
        inputs.append(random_array(rng, (c,), dtype) if bias else None)
        layouts.append(ND)
    if residual:
        inputs.append(random_array(rng, residual, dtype))
        layouts.append(NC)
    tolerance = TOLERANCE[dtype]
    check_operator(
        CHIPS[chip],
        "DepthwiseConv",
        "Conv",
        inputs,
        {"group": c, **attrs},
        layouts=[*layouts, NC],
        epilogue=epilogue,
        rtol=tolerance,
        atol=tolerance,
    )


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_windows(data: st.DataObject) -> None:
    kernel = (data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4)))
    attrs = {
        "strides": tuple(data.draw(st.integers(1, 2)) for _ in range(2)),
        "dilations": tuple(data.draw(st.integers(1, 2)) for _ in range(2)),
        "pads": tuple(data.draw(st.integers(0, 2)) for _ in range(4)),
    }
    shape = tuple(data.draw(st.integers(1, n)) for n in (3, 40, 15, 15))
    dtype = data.draw(st.sampled_from(["float16", "float32"]))
    chip = data.draw(st.sampled_from(["toy", "ascend910a", "ascend910b2"]))
    try:
        check(chip, shape, kernel, dtype, attrs, data.draw(st.booleans()))
    except GraphError:  # a window larger than the image
        assume(False)
    except UnsupportedError:  # what one output sees fills the toy's UB
        assert chip == "toy"
        assume(False)


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_fused(chip: str, dtype: str) -> None:
    shape, pads = (2, 24, 9, 10), {"pads": (1, 1, 1, 1)}
    steps = (EpilogueStep("Add", 3), EpilogueStep("Relu"))
    check(chip, shape, (3, 3), dtype, pads, True, steps, residual=shape)
    check(chip, shape, (3, 3), dtype, pads, epilogue=(EpilogueStep("Relu"),))


def test_fused_clip() -> None:
    rng = np.random.default_rng(0)
    x = random_array(rng, (2, 24, 9, 10), "float16")
    w = random_array(rng, (24, 1, 3, 3), "float16")
    node = Node("n", "Conv", ("x", "w"), ("y",), {"group": 24})
    types = infer_node(node, [TensorType(a.shape, DType.FLOAT16) for a in (x, w)], [None, None])
    want = np.clip(compute_node(node, [x, w], types)[0], -0.25, 0.5)
    steps = (("Max", -0.25), ("Min", 0.5))
    clip = tuple(EpilogueStep(op, None, (("const1", value),)) for op, value in steps)
    fused = node.with_(epilogue=clip)
    (y,), _ = execute(
        CHIPS["toy"], "DepthwiseConv", fused, [x, w], types, [NC, ND, NC], fused.attrs
    )
    np.testing.assert_allclose(y, want, atol=2e-3)


@pytest.mark.parametrize("stride", [1, 2])
def test_large(stride: int) -> None:
    attrs = {"pads": (2, 2, 2, 2), "strides": (stride, stride)}
    check("ascend910a", (2, 40, 60, 61), (5, 5), "float16", attrs, True)
    check("toy", (1, 16, 5, 150), (3, 3), "float16", {"strides": (stride, stride)})


def test_bfloat16() -> None:
    check("ascend910b2", (1, 20, 8, 8), (3, 3), "bfloat16", {})


def test_refuses_grouped_convolution() -> None:
    x = OperandSpec((1, 16, 4, 4), DType.FLOAT16, NC)
    w = OperandSpec((16, 8, 1, 1), DType.FLOAT16)
    args = KernelArgs("Conv", (x, w), (x,), (("group", 2),))
    assert "one filter per channel" in get_kernel("DepthwiseConv").refuse(args, CHIPS["toy"])
