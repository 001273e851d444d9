"""Two convolutions on cube cores; their residual and activation on vector cores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, random_array

import npusim.kernels  # noqa: F401  (says where kernels are)
from npusim.ir import DType, EpilogueStep, Layout
from npusim.kernels.conv_depth import ConvConv
from npusim.kernels.conv_depth_mix import ConvConvEpilogue
from npusim.machine.gm import hot
from npusim.machine.launch import time_launch
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan

CHIP, NAME = CHIPS["ascend910b2"], "ConvConvEpilogue"
NC, FZ = Layout.NC1HWC0, Layout.FRACTAL_Z
ADD, RELU = EpilogueStep("Add", 5), EpilogueStep("Relu")
SWISH = EpilogueStep("Swish", None, (("alpha", 1.0),))
ROUGH = {DType.FLOAT16: (3e-3, 1e-2), DType.BFLOAT16: (2e-2, 0.1)}


def launch(
    shape: tuple[int, int, int, int], mid: int, co: int, kernel: int, *steps: EpilogueStep,
    dtype: DType = DType.FLOAT16, stride: int = 1,
) -> KernelArgs:  # fmt: skip
    """A pair with biases that keeps its size but for the stride."""
    n, c, h, w = shape
    x, y = OperandSpec(shape, dtype, NC), OperandSpec((n, co, h // stride, w // stride), dtype, NC)
    weights = [OperandSpec(s, dtype, FZ) for s in ((mid, c, kernel, kernel), (co, mid, 1, 1))]
    biases = [OperandSpec((s,), dtype) for s in (mid, co)]
    others = (y,) if any(s.operand for s in steps) else ()
    attrs = (("pads", (kernel // 2,) * 4), ("relu", True), ("strides", (stride,) * 2))
    inputs = (x, weights[0], biases[0], weights[1], biases[1], *others)
    return KernelArgs("ConvConv", inputs, (y,), attrs, steps)


@settings(max_examples=30, deadline=None)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 19), st.integers(1, 19)),
    st.integers(1, 60), st.integers(1, 90), st.sampled_from([1, 3]), st.integers(1, 2),
    st.sampled_from([(ADD,), (ADD, RELU), (SWISH, ADD), (SWISH,)]), st.sampled_from(list(ROUGH)),
)  # fmt: skip
def test_as_the_operator(
    shape: tuple[int, int, int, int], mid: int, co: int, kernel: int, stride: int,
    steps: tuple[EpilogueStep, ...], dtype: DType,
) -> None:  # fmt: skip
    """Ragged tiles, odd rows, channels that fill no block; both engines agree (see `execute`)."""
    assume(shape[2] % stride == shape[3] % stride == 0)
    args = launch(shape, mid, co, kernel, *steps, dtype=dtype, stride=stride)
    rng, inputs = np.random.default_rng(0), []
    for o in args.inputs:
        assert o is not None
        a = random_array(rng, o.shape, dtype.value)
        scale = np.sqrt(np.prod(o.shape[1:])) if o.layout is FZ else 1.0
        inputs.append((a.astype(np.float32) / scale).astype(a.dtype))
    rtol, atol = ROUGH[dtype]
    check_operator(
        CHIP, NAME, "ConvConv", inputs, dict(args.attrs), epilogue=steps,
        layouts=[o.layout for o in args.operands], rtol=rtol, atol=atol,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("chip", "args", "reason"),
    [
        ("ascend910b2", launch((1, 64, 56, 56), 64, 256, 3, RELU), ""),
        ("ascend910b2", launch((1, 64, 56, 56), 64, 256, 3), "no steps"),
        ("ascend910a", launch((1, 64, 56, 56), 64, 256, 3, ADD), "cube and vector are one core"),
        ("ascend910b2", launch((1, 256, 14, 14), 256, 1024, 3, ADD), "both weights take"),
        ("ascend910b2", launch((1, 32, 8, 8), 32, 20, 3, EpilogueStep("Log")), "not finite"),
    ],
)
def test_refusals(chip: str, args: KernelArgs, reason: str) -> None:
    found = ConvConvEpilogue.refuse(args, CHIPS[chip])
    assert reason in found and bool(reason) == bool(found)


def test_the_image_between_is_in_no_traffic() -> None:
    """But the results go through the workspace, which stays in L2."""
    args = launch((1, 64, 56, 56), 64, 256, 3, ADD, RELU)
    plan = choose_plan(NAME, args, CHIP)
    assert set(plan.traffic) == {*range(7), len(args.operands)}
    assert plan.traffic[len(args.operands)].total == 2 * args.outputs[0].nbytes


@pytest.mark.parametrize(
    ("shape", "mid", "co"),
    [((1, 64, 56, 56), 64, 256), ((1, 128, 28, 28), 128, 512), ((8, 64, 28, 28), 64, 128)],
)
def test_the_estimate_is_near_the_time(shape: tuple[int, ...], mid: int, co: int) -> None:
    """Of the tiling that it chooses, everything in L2; and the steps hide behind the cube."""
    args = launch(shape, mid, co, 3, ADD, RELU)
    plan = choose_plan(NAME, args, CHIP)
    launched = CHIP.cycles(CHIP.scheduler.per_block) * plan.block_dim
    cycles = time_launch(CHIP, NAME, args, plan, hot(plan)).cycles + launched
    found = ConvConvEpilogue.estimate(args, CHIP.with_all_in_l2(), plan.tiling)
    assert 0.8 < found / cycles < 1.25
    plain = replace(args, inputs=args.inputs[:5], epilogue=())
    without = choose_plan("ConvConv", plain, CHIP)
    assert not ConvConv.refuse(plain, CHIP)
    alone = time_launch(CHIP, "ConvConv", plain, without, hot(without)).cycles
    assert cycles - launched < 1.5 * alone
