"""Convolution rows of a profile: shapes read back, block splits honoured, times near the chip's."""

from __future__ import annotations

import pytest

from npusim.chip import load_chip
from npusim.explore.replay import launch_of, plan_for, replay
from npusim.explore.replay.windows import window_attrs
from npusim.frontends.recorded import RecordedOp, RecordedTensor

CHIP = load_chip("ascend910-30c")
BN = "FusionOp_Conv2D_BNTrainingReduce"
RELU_GRAD = "FusionOp_Conv2DBackpropInput_ReluGradV2"


def image(c1: int, side: int, dtype: str = "float16") -> RecordedTensor:
    return RecordedTensor("NC1HWC0", dtype, (32, c1, side, side, 16))


def weights(k1: int, co1: int, dtype: str = "float16") -> RecordedTensor:
    return RecordedTensor("FRACTAL_Z", dtype, (k1, co1, 16, 16))


def sums(c1: int) -> RecordedTensor:
    return RecordedTensor("NC1HWC0", "float32", (1, c1, 1, 1, 16))


def row(
    op: str, blocks: int, inputs: list[RecordedTensor], outputs: list[RecordedTensor], us: float
) -> RecordedOp:
    return RecordedOp("net", op, op, "AI_CORE", blocks, tuple(inputs), tuple(outputs), 1, us)


def forward(blocks: int, c1: int, co1: int, side: int, taps: int, us: float) -> RecordedOp:
    """A stride-1 convolution with BN's sums."""
    inputs = [image(c1, side), weights(c1 * taps, co1)]
    return row(BN, blocks, inputs, [image(co1, side), sums(co1), sums(co1)], us)


MASK = RecordedTensor("ND", "uint8", (32, 16, 14, 14, 2))
ROWS = [  # recorded on a 30-core 910 at 0.9 GHz, ResNet-50 and InceptionV3 at batch 32
    forward(16, 8, 32, 28, 1, 141.287),
    forward(16, 16, 16, 14, 9, 95.626),
    forward(30, 12, 12, 17, 7, 73.412),
    row(RELU_GRAD, 16, [image(16, 14), weights(144, 16), MASK], [image(16, 14)], 91.353),
    row("Conv2DBackpropFilter", 32, [image(24, 8), image(128, 8)],
        [weights(128, 24, "float32")], 101.574),
    row("FusedDbnDw", 32, [image(32, 28), image(8, 28), image(8, 28), *[sums(8)] * 5],
        [image(8, 28), weights(32, 8, "float32")], 87.317),
]  # fmt: skip


@pytest.mark.parametrize("op", ROWS, ids=lambda op: f"{op.op_type}-{op.measured_us}")
def test_times_are_near_the_recorded(op: RecordedOp) -> None:
    (found,) = replay([op], CHIP).rows
    assert found.predicted_us == pytest.approx(op.measured_us, rel=0.25)


def test_a_default_split_keeps_sixteen_of_thirty_cores_busy() -> None:
    assert plan_for(launch_of(ROWS[2]), CHIP, 30).block_dim == 16


def test_blocks_of_whole_images_add_the_filter_gradient_atomically() -> None:
    plan = plan_for(launch_of(ROWS[4]), CHIP, 32)
    written = plan.traffic[2]
    assert plan.tiling["bb"] == 32
    assert written.total == 32 * written.unique


def test_window_is_read_off_the_sizes() -> None:
    attrs = dict(window_attrs((224, 224), (112, 112), (7, 7)))
    assert attrs == {"pads": (2, 2, 3, 3), "strides": (2, 2)}
    with pytest.raises(ValueError, match="no window of 3 takes 100 to 7"):
        window_attrs((100, 100), (7, 7), (3, 3))
