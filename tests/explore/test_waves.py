"""Blocks beyond the cores: list scheduling with a serial hand-out."""

from __future__ import annotations

import pytest

from npusim.chip.load import load_chip
from npusim.explore.replay import plan_for, replay, time_waves
from npusim.explore.replay.launches import launch_of
from npusim.explore.replay.waves import block_classes, makespan
from npusim.frontends.recorded import RecordedOp, RecordedTensor
from npusim.machine.gm import cold
from npusim.program.kernel import Plan

CHIP = load_chip("ascend910-30c")


@pytest.mark.parametrize(
    ("cycles", "cores", "per_block", "end"),
    [
        ([100] * 4, 2, 0, 200),  # two rounds
        ([100, 100, 10], 2, 0, 110),  # a short last block
        ([100] * 3, 2, 10, 210),  # the third waits for the first core, free at 110
        ([5] * 4, 2, 10, 45),  # a core is free before the next block is handed out
        ([7], 3, 2, 9),
    ],
)
def test_makespan(cycles: list[int], cores: int, per_block: float, end: float) -> None:
    assert makespan(cycles, cores, per_block) == end


def test_classes_of_blocks_in_order() -> None:
    plan = Plan({}, 5, {}, ((0, 3), (2, 1), (4, 1)))
    assert block_classes(plan) == [0, 0, 1, 0, 2]


def _transpose(blocks: int) -> RecordedOp:
    nz = RecordedTensor("FRACTAL_NZ", "float16", (48, 256, 16, 16))
    out = RecordedTensor("FRACTAL_NZ", "float16", (32, 12, 4, 8, 16, 16))
    kind = "ConfusionTransposeD"
    return RecordedOp("net", kind, kind, "AI_CORE", blocks, (nz,), (out,), 1, 1.0)


def test_two_even_rounds_beat_a_full_one_and_a_rest() -> None:
    """30 and 2 blocks of 1/32 each take longer than 30 and 18 of 1/48, as measured (11.2, 9.3)."""
    rest, even = (replay([_transpose(b)], CHIP).rows[0].predicted_us for b in (32, 48))
    assert rest is not None and even is not None
    assert even < rest


def test_up_to_the_cores_it_is_one_launch() -> None:
    op = _transpose(30)
    launch = launch_of(op)
    plan = plan_for(launch, CHIP, 30)
    more = plan_for(launch, CHIP, 60)
    one = time_waves(CHIP, launch, plan, cold(plan)).cycles
    two = time_waves(CHIP, launch, more, cold(more)).cycles
    assert 0 < one < 2 * two
