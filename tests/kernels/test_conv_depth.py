"""ConvConv at tile level, against its operator and against the two kernels that it replaces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, execute, random_array

import npusim.kernels  # noqa: F401  (says where kernels are)
from npusim.errors import GraphError
from npusim.ir import DType, EpilogueStep, Layout, Node, TensorType
from npusim.kernels.conv_depth import ConvConv
from npusim.machine.gm import hot
from npusim.machine.launch import time_launch
from npusim.ops import infer_node
from npusim.program.kernel import KernelArgs, OperandSpec, Plan, choose_plan

NC, FZ, ND = Layout.NC1HWC0, Layout.FRACTAL_Z, Layout.ND
LAYOUTS = (NC, FZ, ND, FZ, ND)
RELU = (EpilogueStep("Relu"),)
RESIDUAL = (EpilogueStep("Add", 5), EpilogueStep("Relu"))
TARGETS = [("toy", "float16"), ("ascend910a", "float16"), ("ascend910b2", "bfloat16")]


def result_of(inputs: list[np.ndarray | None], attrs: dict[str, Any]) -> TensorType:
    """Shape and type of the result; a window larger than the image is no example."""
    kinds = [None if a is None else TensorType(a.shape, DType.of(a.dtype)) for a in inputs]
    names = tuple(f"x{i}" for i in range(len(inputs)))
    try:
        return infer_node(Node("n", "ConvConv", names, ("y",), attrs), kinds, inputs)[0]
    except GraphError:
        assume(False)
        raise


def small(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Whole numbers of which every sum is exact in fp32, in any order."""
    return rng.integers(-2, 3, shape).astype(DType(dtype).np)


def check(
    target: tuple[str, str], shape: tuple[int, ...], mid: int, co: int, kernel: tuple[int, int],
    attrs: dict[str, Any], biases: tuple[bool, bool] = (True, True),
    steps: tuple[EpilogueStep, ...] = RELU,
) -> Plan:  # fmt: skip
    """Exactly the operator's result, by numbers that are exact in any order of summation."""
    chip, dtype = target
    rng = np.random.default_rng(0)
    shapes = (shape, (mid, shape[1], *kernel), (mid,), (co, mid, 1, 1), (co,))
    given = (True, True, biases[0], True, biases[1])
    inputs = [small(rng, s, dtype) if g else None for s, g in zip(shapes, given, strict=True)]
    layouts = [*LAYOUTS, NC]
    if any(s.operand is not None for s in steps):
        out = result_of(inputs, attrs)
        inputs.append(small(rng, out.shape, dtype))
        layouts.append(NC)
    else:
        result_of(inputs, attrs)
    return check_operator(
        CHIPS[chip], "ConvConv", "ConvConv", inputs, attrs, layouts=layouts, epilogue=steps
    )


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(TARGETS), st.data())
def test_windows(target: tuple[str, str], data: st.DataObject) -> None:
    attrs: dict[str, Any] = {
        "strides": tuple(data.draw(st.integers(1, 3)) for _ in range(2)),
        "dilations": tuple(data.draw(st.integers(1, 2)) for _ in range(2)),
        "pads": tuple(data.draw(st.integers(0, 2)) for _ in range(4)),
        "relu": data.draw(st.booleans()),
    }
    kernel = (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)))
    most = (3, 20, 12, 12) if target[0] == "toy" else (4, 50, 20, 20)
    shape = tuple(data.draw(st.integers(1, n)) for n in most)
    mid, co = (data.draw(st.integers(1, 20 if target[0] == "toy" else 80)) for _ in range(2))
    steps = [(), RELU] if target[0] == "ascend910b2" else [(), RELU, RESIDUAL]
    biases = data.draw(st.booleans()), data.draw(st.booleans())
    check(target, shape, mid, co, kernel, attrs, biases, data.draw(st.sampled_from(steps)))


@pytest.mark.parametrize("target", TARGETS[1:])
@pytest.mark.parametrize(
    ("shape", "mid", "co", "kernel", "stride"),
    [
        ((1, 64, 56, 56), 64, 256, 3, 1),  # ResNet-50
        ((2, 128, 28, 28), 128, 512, 3, 2),
        ((3, 64, 30, 17), 96, 48, 5, 1),
        ((40, 256, 7, 7), 32, 16, 1, 1),  # more images than cores
    ],
)
def test_layers(
    target: tuple[str, str], shape: tuple[int, ...], mid: int, co: int, kernel: int, stride: int
) -> None:
    attrs = {"pads": (kernel // 2,) * 4, "strides": (stride, stride), "relu": True}
    steps = RELU if target[0] == "ascend910b2" else RESIDUAL
    plan = check(target, shape, mid, co, (kernel, kernel), attrs, steps=steps)
    assert plan.block_dim > 1


def launch(
    shape: tuple[int, ...] = (1, 64, 56, 56), mid: int = 64, co: int = 256, kernel: int = 3,
    dtype: DType = DType.FLOAT16,
) -> KernelArgs:  # fmt: skip
    """A pair with a residual on the way out."""
    n, c, h, w = shape
    x, y = OperandSpec(shape, dtype, NC), OperandSpec((n, co, h, w), dtype, NC)
    weights = [OperandSpec(s, dtype, FZ) for s in ((mid, c, kernel, kernel), (co, mid, 1, 1))]
    biases = [OperandSpec((s,), dtype) for s in (mid, co)]
    attrs = (("pads", (kernel // 2,) * 4), ("relu", True))
    inputs = (x, weights[0], biases[0], weights[1], biases[1], y)
    return KernelArgs("ConvConv", inputs, (y,), attrs, RESIDUAL)


def test_random_values_as_the_two_kernels_have_them() -> None:
    """The image between is rounded as it would be stored; sums differ in their order only."""
    chip, rng = CHIPS["ascend910a"], np.random.default_rng(0)
    args = launch((2, 32, 14, 14), 48, 64)
    inputs = [random_array(rng, o.shape, "float16") for o in args.inputs if o is not None]
    between = TensorType((2, 48, 14, 14), DType.FLOAT16)
    first = Node("a", "Conv", ("x", "w", "b"), ("y",), {"pads": (1,) * 4}, RELU)
    attrs = {**first.attrs, "group": 1}
    (mid,), _ = execute(chip, "Conv2D", first, inputs[:3], [between], [*LAYOUTS[:3], NC], attrs)
    steps = (EpilogueStep("Add", 3), EpilogueStep("Relu"))
    second = Node("b", "Conv", ("x", "w", "b", "r"), ("y",), {}, steps)
    result = TensorType((2, 64, 14, 14), DType.FLOAT16)
    layouts = [NC, FZ, ND, NC, NC]
    (want,), _ = execute(
        chip, "Conv2D", second, [mid, *inputs[3:]], [result], layouts, {"group": 1}
    )
    both = Node("c", "ConvConv", tuple("xwbvcr"), ("y",), {}, RESIDUAL)
    layouts = [*LAYOUTS, NC, NC]
    (got,), _ = execute(chip, "ConvConv", both, inputs, [result], layouts, dict(args.attrs))
    assert np.mean(got == want) > 0.99
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), 2e-3, 0.25)


@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])
def test_the_image_between_is_in_no_traffic(chip: str) -> None:
    args = launch()
    args = args if chip == "ascend910a" else replace(args, inputs=args.inputs[:5], epilogue=RELU)
    plan = choose_plan("ConvConv", args, CHIPS[chip])
    named = {i for i, o in enumerate(args.operands) if o is not None}
    assert set(plan.traffic) == named
    assert plan.traffic[3].total == plan.block_dim * args.operands[3].nbytes
    result = time_launch(CHIPS[chip], "ConvConv", args, plan)
    assert result.l2_bytes == sum(t.total for t in plan.traffic.values())


@pytest.mark.parametrize(
    ("chip", "args", "reason"),
    [
        ("ascend910a", launch(mid=512, co=512), "both weights take"),
        ("ascend910b2", launch(dtype=DType.FLOAT32), "float32 between the convolutions"),
        ("ascend910b2", launch(), "the second: epilogue Add is not one of Relu"),
        ("ascend910a", launch(dtype=DType.BFLOAT16), "the first: the cube takes float16"),
    ],
)
def test_refusals(chip: str, args: KernelArgs, reason: str) -> None:
    assert reason in ConvConv.refuse(args, CHIPS[chip])


def test_images_too_wide_for_l1() -> None:
    """Weights alone would fit."""
    args = launch((1, 256, 8, 700), 64, 64)
    assert not ConvConv.refuse(args, CHIPS["ascend910a"])
    assert not list(ConvConv.tilings(args, CHIPS["ascend910a"]))


@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])
@pytest.mark.parametrize(
    ("shape", "mid", "co"),
    [((1, 64, 56, 56), 64, 256), ((1, 128, 28, 28), 128, 512), ((8, 64, 28, 28), 64, 128)],
)
def test_the_estimate_is_near_the_time(
    chip: str, shape: tuple[int, ...], mid: int, co: int
) -> None:
    """Of the tiling that it chooses, everything in L2."""
    spec, args = CHIPS[chip], launch(shape, mid, co)
    if chip == "ascend910b2":
        args = replace(args, inputs=args.inputs[:5], epilogue=RELU)
    plan = choose_plan("ConvConv", args, spec)
    cycles = time_launch(spec, "ConvConv", args, plan, hot(plan)).cycles
    cycles += spec.cycles(spec.scheduler.per_block) * plan.block_dim
    found = ConvConv.estimate(args, spec.with_all_in_l2(), plan.tiling)
    assert 0.85 < found / cycles < 1.15
