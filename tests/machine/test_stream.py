"""Streams: order, gaps, events, priorities, faults, callbacks, room, and what ends in a circle."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tiny import CHIPS

from npusim.errors import DeadlockError, UnsupportedError
from npusim.machine.device import Device
from npusim.machine.entries import (
    CallbackEntry,
    CopyEntry,
    CopyKind,
    DeviceFaultError,
    RecordEntry,
    WaitEntry,
)
from npusim.machine.recorder import KeepAll

CHIP = CHIPS["ascend910a"]
GAP, EVENT = CHIP.cycles(CHIP.scheduler.gap), CHIP.cycles(CHIP.scheduler.event)


@pytest.fixture
def device() -> Device:
    return Device(CHIP, KeepAll())


def call(name: str, cycles: int = 100) -> CallbackEntry:
    return CallbackEntry(name, lambda: None, cycles)


def times(device: Device) -> dict[str, tuple[int, int]]:
    return {op.name: (op.start, op.end) for op in device.recorder.ops()}


def test_entries_of_a_stream_are_in_order_with_a_gap_between(device: Device) -> None:
    for name in "abc":
        device.submit(0, call(name))
    device.run()
    step = 100 + GAP
    assert times(device) == {n: (i * step, i * step + 100) for i, n in enumerate("abc")}


def test_a_late_entry_starts_when_it_comes_and_the_stream_starved(device: Device) -> None:
    device.submit(0, call("a"))
    device.run_until(5000)
    device.submit(0, call("b"))
    device.run()
    assert times(device)["b"] == (5000, 5100)
    assert device.recorder.ops()[1].starved == 5000 - 100 - GAP


def test_an_entry_that_comes_within_the_gap_still_keeps_it(device: Device) -> None:
    device.submit(0, call("a"))
    device.run_until(100 + GAP // 2)
    device.submit(0, call("b"))
    device.run()
    assert times(device)["b"] == (100 + GAP, 200 + GAP)
    assert device.recorder.ops()[1].starved == 0


def test_a_wait_is_not_over_before_the_record_and_is_just_after(device: Device) -> None:
    mark = device.env.event()
    device.submit(0, call("a", 1000))
    device.submit(0, RecordEntry("e", mark))
    device.submit(1, WaitEntry("e", mark))
    device.submit(1, call("b"))
    device.run_until(1000 + EVENT - 1)
    assert not mark.triggered
    device.run_until(1000 + EVENT)
    assert mark.triggered
    device.run()
    assert times(device)["b"][0] == 1000 + 2 * EVENT
    assert device.recorder.ops()[1].waited == 1000 + 2 * EVENT


def test_the_lower_priority_number_is_served_first(device: Device) -> None:
    for number, priority in ((0, 0), (1, 7), (2, 0)):
        device.stream(number, priority)
        device.submit(number, CopyEntry(f"c{number}", CopyKind.H2D, 1 << 20))
    device.run()
    found = times(device)
    assert found["c0"] < found["c2"] < found["c1"]


@dataclass
class Breaks:
    """An effect that fails at its end."""

    def begin(self) -> None:
        """Nothing yet."""

    def finish(self) -> None:
        raise DeviceFaultError(507015, "AI Core exception")


def test_a_fault_stops_its_stream_and_nobody_waits_for_ever(device: Device) -> None:
    mark = device.env.event()
    device.submit(0, CopyEntry("bad", CopyKind.H2D, 64, effect=Breaks()))
    device.submit(0, call("dropped"))
    device.submit(0, RecordEntry("e", mark))
    device.submit(1, WaitEntry("e", mark))
    device.submit(1, call("other"))
    device.run()
    assert set(times(device)) == {"other"}
    assert device.streams[0].fault is not None
    assert device.streams[0].fault.code == 507015
    assert device.streams[1].fault is None


def test_callbacks_run_in_their_turn(device: Device) -> None:
    seen: list[int] = []
    device.submit(0, call("a", 300))
    device.submit(0, CallbackEntry("cb", lambda: seen.append(device.now), 50))
    device.run()
    assert seen == [300 + GAP + 50]


def test_room_comes_when_an_entry_leaves_the_queue(device: Device) -> None:
    stream = device.stream(0)
    for name in "abc":
        stream.put(call(name))
    room = stream.room(2)  # queued: b and c, when a has started
    assert not room.triggered
    device.run_until(99)
    assert not room.triggered
    device.run_until(100)
    assert room.triggered


def test_drained_tells_the_end_of_all_that_is_queued(device: Device) -> None:
    assert device.stream(0).drained().triggered
    device.submit(0, call("a"))
    device.submit(0, call("b"))
    end = device.stream(0).drained()
    device.run_while(end)
    assert device.now == 200 + GAP


def test_more_streams_than_the_chip_has_are_refused() -> None:
    scheduler = CHIP.scheduler.model_copy(update={"max_streams": 2})
    device = Device(CHIP.model_copy(update={"scheduler": scheduler}), KeepAll())
    device.stream(0), device.stream(1), device.stream(0)
    with pytest.raises(UnsupportedError, match="one stream more than 2"):
        device.stream(2)


def test_a_circle_is_told_by_name(device: Device) -> None:
    marks = [device.env.event() for _ in range(3)]
    for i in range(3):
        device.submit(i, WaitEntry(f"event {i}", marks[i]))
        device.submit(i, call(f"task{i}"))
        device.submit(i, RecordEntry(f"event {i - 1}", marks[i - 1]))
    with pytest.raises(DeadlockError) as error:
        device.run("test")
    for i in range(3):
        assert f"task 'task{i}' on stream {i} waits for event {i}" in error.value.what
        assert f"stream {(i + 1) % 3} has not recorded it" in error.value.what
    assert "in a circle" in error.value.what


def test_waiting_for_what_never_comes_ends_with_its_name(device: Device) -> None:
    device.submit(0, WaitEntry("event 5", device.env.event()))
    with pytest.raises(DeadlockError, match="stream 0 waits for event 5, no task records it"):
        device.run_while(device.stream(0).drained())
