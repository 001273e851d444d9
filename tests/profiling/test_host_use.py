"""Bubbles: they and the busy time add up, and each part goes to its cause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npusim.profiling.host_report import bubble_table, host_lines
from npusim.profiling.host_use import host_and_device
from npusim.timeline import HostUse, OpRecord, Timeline

OP = OpRecord(
    "a", "Add", "add", "AI_CORE", 1, 0, 0, 100, 10, {}, 0, 0, 0, "vector", 1.0, 0, {"vector": 1.0}
)


def timeline(*ops: OpRecord, total: int) -> Timeline:
    host = HostUse("eager", 1, total, 40, 0, total - 40)
    return Timeline("chip", 1e9, ops, total, host=host)


def causes(found: Timeline) -> dict[str, int]:
    return {b.cause: b.cycles for b in host_and_device(found).bubbles}


def test_a_bubble_is_cut_by_its_op_from_the_end() -> None:
    first = replace(OP, start=50, end=150, starved=50)
    second = replace(OP, name="b", start=250, end=300, starved=20, waited=30, queued=10)
    found = timeline(first, second, total=330)
    assert causes(found) == {"host": 50 + 20 + 30, "event": 30, "cores": 10, "gap": 40}
    used = host_and_device(found)
    assert used.device_busy == 150
    assert used.device_busy + sum(b.cycles for b in used.bubbles) == 330
    assert used.device_bound == 290


def test_what_lies_under_other_streams_is_no_bubble() -> None:
    other = replace(OP, name="c", stream=1, start=0, end=200)
    late = replace(OP, name="d", start=180, end=240, waited=100)
    assert causes(timeline(other, late, total=240)) == {}


def test_the_longest_is_named() -> None:
    ops = [replace(OP, name=n, start=s, end=s + 10, starved=20) for n, s in (("x", 20), ("y", 50))]
    ops.append(replace(OP, name="z", start=100, end=110, starved=40))
    (bubbles,) = host_and_device(timeline(*ops, total=110)).bubbles
    assert (bubbles.count, bubbles.cycles, bubbles.longest) == (3, 80, 40)
    assert bubbles.before == "z"


def test_a_busy_device_has_no_table() -> None:
    found = timeline(OP, total=100)
    assert bubble_table(found) is None
    assert found.host is not None
    lines = dict(host_lines(found, found.host))
    assert lines["device"] == "busy 100.0 %, still 0.0 %"
    assert "eager, op by op, 1 step" in lines["execution"]


@pytest.mark.parametrize("queued", [0, 500])
def test_no_part_is_longer_than_its_bubble(queued: int) -> None:
    late = replace(OP, start=300, end=400, queued=queued)
    found = causes(timeline(replace(OP), late, total=400))
    assert sum(found.values()) == 200
