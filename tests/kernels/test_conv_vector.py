"""fp32 convolutions on the vector unit against Conv."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, random_array, timed

import npusim.kernels.conv_vector  # noqa: F401
from npusim.errors import GraphError
from npusim.ir import DType, EpilogueStep, Layout
from npusim.machine.launch import time_launch
from npusim.program.kernel import KernelArgs, OperandSpec, Plan, get_kernel

NC, FZ, ND = Layout.NC1HWC0, Layout.FRACTAL_Z, Layout.ND
RELU = EpilogueStep("Relu")


def check(
    chip: str,
    shape: tuple[int, ...],
    co: int,
    kernel: tuple[int, int],
    attrs: dict[str, Any],
    bias: bool = False,
    residual: tuple[int, ...] = (),
    steps: tuple[EpilogueStep, ...] = (),
) -> Plan:
    rng = np.random.default_rng(0)
    inputs: list[np.ndarray | None] = [
        random_array(rng, shape, "float32"),
        random_array(rng, (co, shape[1], *kernel), "float32"),
    ]
    layouts = [NC, FZ]
    if bias or residual:
        inputs.append(random_array(rng, (co,), "float32") if bias else None)
        layouts.append(ND)
    if residual:
        inputs.append(random_array(rng, residual, "float32"))
        layouts.append(NC)
        steps = (EpilogueStep("Add", 3), *steps)
    return check_operator(
        CHIPS[chip],
        "ConvVector",
        "Conv",
        inputs,
        attrs,
        layouts=[*layouts, NC],
        epilogue=steps,
        rtol=1e-5,
        atol=1e-4,
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_windows(data: st.DataObject) -> None:
    kernel = (data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4)))
    attrs: dict[str, Any] = {
        "strides": tuple(data.draw(st.integers(1, 2)) for _ in range(2)),
        "dilations": tuple(data.draw(st.integers(1, 2)) for _ in range(2)),
    }
    if data.draw(st.booleans()):
        attrs["pads"] = tuple(data.draw(st.integers(0, 3)) for _ in range(4))
    else:
        attrs["auto_pad"] = data.draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    shape = tuple(data.draw(st.integers(1, n)) for n in (3, 40, 13, 13))
    co = data.draw(st.integers(1, 150))
    chip = data.draw(st.sampled_from(["toy", "ascend910a", "ascend910b2"]))
    steps = data.draw(st.sampled_from([(), (RELU,)]))
    try:
        check(chip, shape, co, kernel, attrs, data.draw(st.booleans()), (), steps)
    except GraphError:  # a window larger than the image
        assume(False)


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
@pytest.mark.parametrize("bias", [False, True])
def test_residual(chip: str, bias: bool) -> None:
    pads = {"pads": (1, 1, 1, 1)}
    check(chip, (2, 24, 9, 10), 72, (3, 3), pads, bias, (2, 72, 9, 10), (RELU,))
    check(chip, (2, 24, 9, 10), 72, (1, 1), {}, bias, (2, 72, 9, 10))


def test_stem() -> None:
    """A 7 × 7 window of stride 2 over three channels: only those are multiplied."""
    check("ascend910a", (1, 3, 56, 56), 64, (7, 7), {"strides": (2, 2), "pads": (3,) * 4}, True)


def test_more_units_than_cores() -> None:
    """Shares that do not come out even: images on the toy's two cores, channels on 32."""
    check("toy", (5, 3, 6, 6), 200, (1, 1), {})
    check("ascend910a", (1, 4, 1, 2), 64 * 37 + 5, (1, 1), {}, True)


def conv(n: int, ci: int, co: int, size: int, k: int, stride: int, pad: int) -> KernelArgs:
    out = (size + 2 * pad - k) // stride + 1
    x = OperandSpec((n, ci, size, size), DType.FLOAT32, NC)
    w = OperandSpec((co, ci, k, k), DType.FLOAT32, FZ)
    y = OperandSpec((n, co, out, out), DType.FLOAT32, NC)
    attrs = {"strides": (stride,) * 2, "dilations": (1, 1), "pads": (pad,) * 4, "group": 1}
    return KernelArgs("Conv", (x, w), (y,), tuple(sorted(attrs.items())))


@pytest.mark.parametrize(
    "layer", [(1, 64, 64, 56, 3, 1, 1), (4, 256, 512, 28, 1, 2, 0), (1, 512, 512, 7, 3, 1, 1)]
)
def test_engines_agree_below_the_peak(layer: tuple[int, ...]) -> None:
    chip, args = CHIPS["ascend910a"], conv(*layer)
    result, plan = timed(chip, "ConvVector", args)
    for engine in ("fast", "simpy"):
        again = time_launch(chip, "ConvVector", args, plan, engine=engine, fold=False)
        assert again.cycles == result.cycles
    out = args.outputs[0].shape
    macs = out[0] * out[1] * out[2] * out[3] * layer[1] * layer[4] ** 2
    ideal = macs / chip.core.vector.lanes["float32"] / chip.vector_cores()
    assert ideal < result.cycles < 1.8 * ideal
    assert max(core.instructions for core in result.cores) < 2000


def test_refusals() -> None:
    kernel, chip, args = get_kernel("ConvVector"), CHIPS["ascend910a"], conv(1, 8, 8, 8, 3, 1, 1)
    assert kernel.refuse(args, chip) == ""
    grouped = tuple((k, 2 if k == "group" else v) for k, v in args.attrs)
    assert "grouped" in kernel.refuse(KernelArgs("Conv", args.inputs, args.outputs, grouped), chip)
    steps = [EpilogueStep(op, None, (("const1", v),)) for op, v in (("Max", 1.0), ("Min", 0.0))]

    def fused(*epilogue: EpilogueStep) -> str:
        return kernel.refuse(
            KernelArgs("Conv", args.inputs, args.outputs, args.attrs, epilogue), chip
        )

    assert "padded channels" in fused(steps[0])
    assert fused(*steps) == ""


def test_a_pointwise_window_that_sees_only_padding() -> None:
    check("toy", (1, 1, 1, 1), 1, (1, 1), {"strides": (2, 1), "pads": (1, 0, 0, 0)})
