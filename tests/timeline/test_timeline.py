"""The Timeline's units and rows, and the accounting checks on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npusim.errors import AccountingError
from npusim.timeline import OpRecord, PipeTime, SimulatorSpeed, Timeline, check_timeline

OP = OpRecord(
    name="fc", op_type="Gemm", kernel="matmul", core_type="AI_CORE", block_dim=2, stream=0,
    start=0, end=1000, launch=100,
    pipes={"cube": PipeTime(600, 200, {"mte1": 70, "barrier": 30}), "mte2": PipeTime(900, 0)},
    bytes_hbm=10, bytes_l2=20, flops=30, bound="mte2", bound_share=0.9, roofline=1000,
    limits={"mte2": 0.9, "cube": 0.6},
)  # fmt: skip


def timeline(*ops: OpRecord, total: int | None = None) -> Timeline:
    latest = max((op.end for op in ops), default=0)
    return Timeline("toy", 2e9, ops, latest if total is None else total)


def test_cycles_become_microseconds() -> None:
    t = timeline(OP)
    assert t.total_us == pytest.approx(0.5)
    (row,) = t.to_frame()
    assert row["duration_us"] == pytest.approx(0.5)
    assert row["cube_us"] == pytest.approx(0.3)
    assert repr(t) == "Timeline(toy, 1 ops, 0.5 µs)"


def test_events_per_second_of_no_time_is_zero() -> None:
    assert SimulatorSpeed(0.0, 10).events_per_s == 0
    assert SimulatorSpeed(2.0, 10).events_per_s == 5


def test_a_sound_timeline_passes_unchanged() -> None:
    other_stream = replace(OP, stream=1, start=500, end=1500)
    after = replace(OP, start=1000, end=2000)
    t = timeline(OP, other_stream, after)
    assert check_timeline(t) is t
    assert check_timeline(timeline()).ops == ()


@pytest.mark.parametrize(
    ("ops", "total", "message"),
    [
        (
            [OP, replace(OP, start=999, end=1999)],
            None,
            "starts at 999; its stream was free at 1000",
        ),
        ([OP], 999, "ends at 1000, the run at 999"),
        ([replace(OP, end=-1)], 1000, "lasts -1 cycles"),
        ([replace(OP, launch=1001)], None, "lasts 1000 cycles"),
        ([replace(OP, roofline=1001)], None, "below its roofline"),
        ([replace(OP, pipes={"cube": PipeTime(600, 200, {"mte1": 99})})], None, "899 of 900"),
        ([replace(OP, pipes={"cube": PipeTime(901, 0)})], None, "901 of 900"),
    ],
)
def test_what_does_not_close_is_refused(ops: list[OpRecord], total: int, message: str) -> None:
    with pytest.raises(AccountingError, match=message):
        check_timeline(timeline(*ops, total=total))
