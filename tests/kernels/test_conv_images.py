"""Convolutions whose tiles hold several images: whole numbers, so that every sum is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from launching import CHIPS, Pick, check_operator, timed

from npusim.chip.spec import ChipSpec
from npusim.errors import GraphError
from npusim.ir import DType, EpilogueStep, Layout
from npusim.kernels.conv import Conv2D
from npusim.kernels.conv_tiling import conv_problem
from npusim.machine.launch import time_launch
from npusim.program.kernel import KernelArgs, OperandSpec, Plan, choose_plan, get_kernel
from npusim.sanitize import sanitize_launch

B2 = CHIPS["ascend910b2"]
NC, FZ, ND = Layout.NC1HWC0, Layout.FRACTAL_Z, Layout.ND
TILINGS = st.integers(0, 999)
RELU, ADD = EpilogueStep("Relu"), EpilogueStep("Add", 3)


def several(number: int) -> Pick:
    """Picks any tiling of several images (0: one of the most) that the sanitizer finds sound."""

    def pick(kernel: str, args: KernelArgs, chip: ChipSpec) -> Plan:
        k = get_kernel(kernel)
        found = [t for t in k.tilings(args, chip) if t["images"] > 1]
        found.sort(key=lambda t: -t["images"])
        plan = k.plan(args, chip, found[number % len(found)])
        assert not sanitize_launch(chip, kernel, args, plan)
        return plan

    return pick


def check(
    dtype: str, shape: tuple[int, ...], co: int, kernel: tuple[int, int], attrs: dict[str, Any],
    bias: bool, steps: tuple[EpilogueStep, ...], cores: int = 2, tiling: int = 0,
) -> Plan:  # fmt: skip
    """Against the operator, bit for bit."""
    rng = np.random.default_rng(0)

    def whole(*size: int) -> np.ndarray:
        return rng.integers(-1, 2, size).astype(dtype)

    mix = ADD in steps
    inputs, layouts = [whole(*shape), whole(co, shape[1], *kernel)], [NC, FZ]
    if bias or mix:
        inputs, layouts = [*inputs, whole(co)], [*layouts, ND]
    if mix:
        inputs, layouts = [*inputs, whole(shape[0], co, *shape[2:])], [*layouts, NC]
    name = "Conv2DEpilogue" if mix else "Conv2D"
    return check_operator(
        B2.with_cores(cores), name, "Conv", inputs, attrs, layouts=[*layouts, NC],
        epilogue=steps, pick=several(tiling),
    )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["float16", "float32", "int8"]), st.data())
def test_windows(dtype: str, data: st.DataObject) -> None:
    """Strides, odd sizes, any number of images, one more or fewer in the last tile."""
    pad, stride = data.draw(st.integers(0, 2)), st.integers(1, 2)
    kernel = (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)))
    strides = (data.draw(stride), data.draw(stride))
    attrs = {"strides": strides, "pads": (pad,) * 4}
    if dtype == "int8":
        attrs["offset_x"] = data.draw(st.integers(-3, 3))
    shape = tuple(data.draw(st.integers(low, n)) for low, n in ((2, 9), (1, 40), (1, 10), (1, 10)))
    steps = data.draw(st.sampled_from([(), (RELU,)])) if dtype != "int8" else ()
    bias = dtype != "int8" and data.draw(st.booleans())
    try:
        check(dtype, shape, data.draw(st.integers(1, 70)), kernel, attrs, bias, steps,
              tiling=data.draw(TILINGS))  # fmt: skip
    except GraphError:  # a window larger than the image
        assume(False)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["float16", "float32"]), st.data())
def test_steps_on_vector_cores(dtype: str, data: st.DataObject) -> None:
    """Each image is a tile of theirs."""
    side = data.draw(st.sampled_from([1, 3]))
    shape = tuple(data.draw(st.integers(low, n)) for low, n in ((2, 9), (1, 40), (1, 9), (1, 9)))
    steps = (ADD, *data.draw(st.sampled_from([(), (RELU,)])))
    check(dtype, shape, data.draw(st.integers(1, 90)), (side, side), {"pads": (side // 2,) * 4},
          True, steps, tiling=data.draw(TILINGS))  # fmt: skip


@pytest.mark.parametrize("images", [7, 8])
@pytest.mark.parametrize("kernel", [1, 3])
def test_a_layer_on_one_core(kernel: int, images: int) -> None:
    """7 × 7, as in ResNet-50: four images, packed five; the last tile has fewer."""
    shape = (images, 64, 7, 7)
    attrs = {"pads": (kernel // 2,) * 4}
    plan = check("float16", shape, 128, (kernel, kernel), attrs, True, (RELU,), cores=1)
    assert plan.tiling["images"] == (5 if kernel == 1 else 4)


def layer(batch: int, ci: int, co: int, kernel: int, side: int = 7, group: int = 1) -> KernelArgs:
    """A padded convolution of stride 1 in fp16."""
    x, y = (OperandSpec((batch, c, side, side), DType.FLOAT16, NC) for c in (ci, co))
    w = OperandSpec((co, ci // group, kernel, kernel), DType.FLOAT16, FZ)
    attrs = {"group": group, "strides": (1, 1), "pads": (kernel // 2,) * 4, "dilations": (1, 1)}
    return KernelArgs("Conv", (x, w), (y,), tuple(sorted(attrs.items())))


def test_every_loop_nest_moves_what_it_plans() -> None:
    """Weights once for all images of a tile; the launch checks the bytes."""
    args = layer(9, 64, 96, 3)
    chip = B2.with_cores(3)
    tilings = [t for t in Conv2D.tilings(args, chip) if t["images"] > 1]
    for resident in (0, 1, 2):
        kinds = [t for t in tilings if t["resident"] == resident]
        for tiling in kinds[:: max(1, len(kinds) // 4)]:
            plan = Conv2D.plan(args, chip, tiling)
            time_launch(chip, "Conv2D", args, plan)
            each = -(-9 // tiling["bb"])
            loads = 1 if resident == 2 else -(-each // tiling["images"])
            assert plan.traffic[1].total == tiling["bb"] * tiling["bm"] * loads * 6 * 36 * 512


@pytest.mark.parametrize("kernel", [1, 3])
def test_quicker_than_image_by_image(kernel: int) -> None:
    """The last layers of ResNet-50, of 64 images: by a fifth at least; less read from L2."""
    args = layer(64, 2048 if kernel == 1 else 512, 512, kernel)
    best, plan = timed(B2, "Conv2D", args)
    assert plan.tiling["images"] > 1
    alone = [t for t in Conv2D.tilings(args, B2) if t["images"] == 1]
    tiling = min(alone, key=lambda t: Conv2D.estimate(args, B2, t))
    other = time_launch(B2, "Conv2D", args, Conv2D.plan(args, B2, tiling))
    assert best.cycles < 0.8 * other.cycles
    assert best.l2_bytes < other.l2_bytes


def test_where_a_tile_is_one_image() -> None:
    """One image, large images, groups, and results that leave through the vector unit."""
    for chip, args in (
        (B2, layer(1, 64, 64, 3)), (B2, layer(8, 64, 64, 3, 28)),
        (B2, layer(64, 64, 64, 3, group=2)), (CHIPS["ascend910a"], layer(64, 64, 64, 3)),
    ):  # fmt: skip
        assert {t["images"] for t in Conv2D.tilings(args, chip)} == {1}
        assert choose_plan("Conv2D", args, chip).tiling["images"] == 1


def test_packed_rows_need_fewer_fractals() -> None:
    """4 images of 49 positions: 13 fractals of 16 where a window sees pixels, else 16."""
    assert [conv_problem(layer(4, 16, 16, k)).fractals(49, 4) for k in (1, 3)] == [13, 16]
    assert [conv_problem(layer(4, 16, 16, k)).fractals(49, 1) for k in (1, 3)] == [4, 4]
