"""Conv2D on the cube at tile level against Conv; tolerance as in `test_matmul`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, random_array

from npusim.errors import GraphError
from npusim.ir import DType, EpilogueStep, Layout
from npusim.kernels.conv import Conv2D
from npusim.machine.launch import time_launch
from npusim.program.kernel import KernelArgs, OperandSpec, Plan, choose_plan

NC, FZ, ND = Layout.NC1HWC0, Layout.FRACTAL_Z, Layout.ND
C04 = (Layout.NC1HWC0_C04, Layout.FRACTAL_Z_C04)
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 5e-5}
TARGETS = st.sampled_from(
    [("toy", "float16"), ("ascend910a", "float16"), ("ascend910b2", "float16"),
     ("ascend910b2", "bfloat16"), ("ascend910b2", "float32")]
)  # fmt: skip
RELU = (EpilogueStep("Relu"),)
SIZES = st.tuples(st.integers(1, 9), st.integers(1, 9))


def check(
    target: tuple[str, str], shape: tuple[int, ...], co: int, kernel: tuple[int, int],
    attrs: dict[str, Any], bias: bool = False, steps: tuple[EpilogueStep, ...] = (),
    given_layouts: tuple[Layout, Layout] = (NC, FZ),
) -> Plan:  # fmt: skip
    chip, dtype = target
    rng = np.random.default_rng(0)
    weights = (co, shape[1] // attrs.get("group", 1), *kernel)
    inputs = [random_array(rng, shape, dtype), random_array(rng, weights, dtype)]
    layouts = [*given_layouts]
    if bias:
        inputs.append(random_array(rng, (co,), dtype))
        layouts.append(ND)
    depth = shape[1] * kernel[0] * kernel[1]
    return check_operator(
        CHIPS[chip],
        "Conv2D",
        "Conv",
        inputs,
        attrs,
        layouts=[*layouts, NC],
        epilogue=steps,
        rtol=TOLERANCE[dtype],
        atol=TOLERANCE[dtype] * max(1.0, depth**0.5 / 4),
    )


@settings(max_examples=60, deadline=None)
@given(TARGETS, st.data())
def test_windows(target: tuple[str, str], data: st.DataObject) -> None:
    check_window(target, data, channels=50, most=4)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["toy", "ascend910a"]), st.data())
def test_windows_on_few_channels(chip: str, data: st.DataObject) -> None:
    check_window((chip, "float16"), data, channels=4, most=7, given_layouts=C04)


def check_window(
    target: tuple[str, str], data: st.DataObject, channels: int, most: int,
    given_layouts: tuple[Layout, Layout] = (NC, FZ),
) -> None:  # fmt: skip
    """A convolution with a window of at most `most` by `most`."""
    kernel = (data.draw(st.integers(1, most)), data.draw(st.integers(1, most)))
    attrs: dict[str, Any] = {
        "strides": tuple(data.draw(st.integers(1, 3)) for _ in range(2)),
        "dilations": tuple(data.draw(st.integers(1, 2)) for _ in range(2)),
    }
    if data.draw(st.booleans()):
        attrs["pads"] = tuple(data.draw(st.integers(0, 3)) for _ in range(4))
    else:
        attrs["auto_pad"] = data.draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    shape = tuple(data.draw(st.integers(1, n)) for n in (3, channels, 14, 14))
    co = data.draw(st.integers(1, 70))
    try:
        check(target, shape, co, kernel, attrs, data.draw(st.booleans()),
              data.draw(st.sampled_from([(), RELU])), given_layouts)  # fmt: skip
    except GraphError:  # a window larger than the image
        assume(False)


@pytest.mark.parametrize("target", [("toy", "float16"), ("ascend910a", "float16"),
                                    ("ascend910b2", "float32")])  # fmt: skip
@pytest.mark.parametrize(
    ("shape", "co", "kernel", "attrs"),
    [
        ((1, 3, 57, 57), 64, (5, 5), {"strides": (2, 2), "pads": (2,) * 4}),  # a stem
        ((2, 64, 20, 20), 64, (1, 1), {}),  # the image as one column
        ((2, 40, 15, 15), 33, (1, 1), {"strides": (2, 2)}),
        ((1, 100, 7, 7), 130, (3, 3), {"pads": (1,) * 4}),
        ((1, 16, 1, 40), 16, (1, 5), {}),
        ((1, 16, 5, 5), 8, (3, 3), {"pads": (3, 3, 3, 3)}),  # windows that see only padding
        ((2, 96, 9, 8), 48, (3, 3), {"group": 3}),
        ((1, 64, 20, 20), 128, (1, 1), {"group": 4}),
    ],
)
def test_layers(
    target: tuple[str, str], shape: tuple[int, ...], co: int, kernel: tuple[int, int],
    attrs: dict[str, Any],
) -> None:  # fmt: skip
    check(target, shape, co, kernel, attrs, True, RELU)


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
@pytest.mark.parametrize(("size", "kernel"), [(57, 7), (40, 3), (33, 1)])
def test_stems_of_few_channels(chip: str, size: int, kernel: int) -> None:
    attrs = {"strides": (2, 2), "pads": (kernel // 2,) * 4}
    check((chip, "float16"), (2, 3, size, size), 64, (kernel, kernel), attrs, True, RELU, C04)


def test_few_channels_are_fewer_steps_of_the_cube() -> None:
    """7 × 7 over 3 channels: K is 13 blocks instead of 49."""
    chip, cycles = CHIPS["ascend910a"], []
    for layouts in ((NC, FZ), C04):
        plain = conv(3, 64, 112, 7, n=4)
        pair = [replace(o, layout=lay) for o, lay in zip(plain.operands[:2], layouts, strict=True)]
        args = replace(plain, inputs=tuple(pair))
        plan = choose_plan("Conv2D", args, chip)
        cycles.append(time_launch(chip, "Conv2D", args, plan).cycles)
        assert plan.traffic[0].unique <= pair[0].nbytes
    assert cycles[1] < cycles[0] / 1.7


def conv(
    ci: int, co: int, size: int, k: int, dtype: DType = DType.FLOAT16, n: int = 1
) -> KernelArgs:
    """A padded k × k convolution of stride 1."""
    x, w, y = (
        OperandSpec((n, ci, size, size), dtype, NC), OperandSpec((co, ci, k, k), dtype, FZ),
        OperandSpec((n, co, size, size), dtype, NC),
    )  # fmt: skip
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (k // 2,) * 4, "group": 1}
    return KernelArgs("Conv", (x, w), (y,), tuple(sorted(attrs.items())))


@pytest.mark.parametrize("resident", [0, 1, 2])
@pytest.mark.parametrize("chip", list(CHIPS))
def test_every_loop_nest_moves_what_it_plans(chip: str, resident: int) -> None:
    spec, args = CHIPS[chip], conv(64, 96, 20, 3)
    kinds = [t for t in Conv2D.tilings(args, spec) if t["resident"] == resident]
    assert kinds or chip == "toy"  # where no panel fits L1
    for tiling in kinds[:: max(1, len(kinds) // 4)]:
        plan = Conv2D.plan(args, spec, tiling)
        result = time_launch(spec, "Conv2D", args, plan)  # checks the bytes
        assert result.cycles > 25 * 6 * 36 / plan.block_dim  # M, N, K blocks
        assert plan.traffic[2].total == args.outputs[0].nbytes
        assert sum(count for _, count in plan.classes) == plan.block_dim <= spec.cores.count


def test_a_large_layer_keeps_the_cube_busy() -> None:
    """3 × 3 over 256 channels: at least 70 % of the cube's peak."""
    args = conv(256, 256, 56, 3, n=8)
    for name in ("ascend910a", "ascend910b2"):
        chip = CHIPS[name]
        result = time_launch(chip, "Conv2D", args, choose_plan("Conv2D", args, chip))
        macs = 8 * 256 * 256 * 9 * 56 * 56
        ideal = macs / (chip.cube_flops("float16") / 2 / chip.clock)
        assert ideal < result.cycles < ideal / 0.7


def test_refusals() -> None:
    chip, args = CHIPS["ascend910a"], conv(16, 16, 8, 3)

    def refuse(**changes: Any) -> str:
        parts = {"inputs": args.inputs, "outputs": args.outputs, "attrs": args.attrs, **changes}
        return Conv2D.refuse(KernelArgs("Conv", **parts), chip)

    assert refuse() == ""
    assert "whole blocks" in refuse(attrs=(("group", 2),))
    x, w = (OperandSpec(o.shape, o.dtype) for o in args.inputs if o is not None)
    assert "NC1HWC0" in refuse(inputs=(x, args.inputs[1]))
    assert "FRACTAL_Z" in refuse(inputs=(args.inputs[0], w))
    assert "not float32" in Conv2D.refuse(conv(16, 16, 8, 3, DType.FLOAT32), chip)
    few = conv(3, 16, 8, 3)
    pair = [replace(o, layout=lay) for o, lay in zip(few.operands[:2], C04, strict=True)]
    few = replace(few, inputs=tuple(pair))
    assert Conv2D.refuse(few, chip) == ""
    assert "without FIXP" in Conv2D.refuse(few, CHIPS["ascend910b2"])
    assert "FRACTAL_Z_C04" in refuse(inputs=(pair[0], args.inputs[1]))
    assert "FRACTAL_Z weights" in refuse(inputs=(args.inputs[0], pair[1]))
    line = OperandSpec((1, 16, 8), DType.FLOAT16)
    assert "2-D" in refuse(inputs=(line, args.inputs[1]))


@settings(max_examples=25, deadline=None)
@given(TARGETS, st.data())
def test_zeros_between_pixels(target: tuple[str, str], data: st.DataObject) -> None:
    kernel = (data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4)))
    spread = (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)))
    attrs: dict[str, Any] = {
        "spread": spread,
        "dilations": tuple(data.draw(st.integers(1, 2)) for _ in range(2)),
        "pads": tuple(data.draw(st.integers(0, k - 1)) for k in (*kernel, *kernel)),
    }
    shape = (data.draw(st.integers(1, 2)), data.draw(st.integers(1, 40)), *data.draw(SIZES))
    reach = [(k - 1) * d for k, d in zip(kernel, attrs["dilations"], strict=True)]
    pads = [a + b for a, b in zip(attrs["pads"][:2], attrs["pads"][2:], strict=True)]
    room = [(n - 1) * s + p for n, s, p in zip(shape[2:], spread, pads, strict=True)]
    assume(all(r <= n for r, n in zip(reach, room, strict=True)))
    check(target, shape, data.draw(st.integers(1, 40)), kernel, attrs, data.draw(st.booleans()))
