"""Streams and events: order, limits, deadlocks, callbacks, the host's clock."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.runtime import (
    Code,
    Device,
    DeviceBuffer,
    InvalidUseError,
    ResourceLimitError,
    Stream,
    SyncTimeoutError,
)

MIB = 1 << 20


def busy(device: Device, stream: Stream, a: DeviceBuffer) -> int:
    """Queue a fill of all of `a`; its cycles."""
    device.memset(a, 1, a.nbytes, stream)
    sdma, chip = device.chip.sdma, device.chip
    return chip.cycles(sdma.latency) + chip.cycles(a.nbytes / sdma.bandwidth)


def test_a_stream_runs_in_order_with_gaps_between() -> None:
    with Device("ascend910a") as device:
        s, a = device.stream(), device.malloc(MIB)
        cycles = [busy(device, s, a) for _ in range(3)]
        s.synchronize()
        ops = device.timeline.ops
        assert [op.cycles for op in ops] == cycles
        gap = device.chip.cycles(device.chip.scheduler.gap)
        assert ops[1].start == ops[0].end + gap and ops[2].start == ops[1].end + gap


def test_elapsed_time_is_what_lies_between() -> None:
    with Device("ascend910a") as device:
        s, a = device.stream(), device.malloc(MIB)
        start, end = device.event(), device.event()
        start.record(s)
        cycles = busy(device, s, a)
        end.record(s)
        s.synchronize()
        event = device.chip.cycles(device.chip.scheduler.event)
        (op,) = device.timeline.ops
        assert start.cycle <= op.start and end.cycle == op.end + event
        late = op.start - start.cycle  # the host queued it as the event fired
        expected = device.chip.seconds(late + cycles + event) * 1e3
        assert late == 0 and end.elapsed_ms(start) == expected
        with pytest.raises(InvalidUseError) as error:
            start.elapsed_ms(end)
        assert error.value.code is Code.RT_EVENT_TIMESTAMP_REVERSAL == 107007


def test_a_stream_waits_for_an_event_of_another() -> None:
    with Device("ascend910a") as device:
        first, second = device.stream(), device.stream()
        a, b, event = device.malloc(8 * MIB), device.malloc(64), device.event()
        busy(device, first, a)
        event.record(first)
        event.wait(second)
        busy(device, second, b)
        second.synchronize()
        long, short = device.timeline.ops
        assert short.start > long.end and short.waited > 0
        assert event.complete and event.waited


def test_a_wait_before_the_record_waits_for_it() -> None:
    with Device("ascend910a") as device:
        first, second, event = device.stream(), device.stream(), device.event()
        a, b = device.malloc(MIB), device.malloc(64)
        event.wait(second)
        busy(device, second, b)
        busy(device, first, a)
        event.record(first)
        device.synchronize()
        long, short = device.timeline.ops
        assert (long.stream, short.stream) == (first.number, second.number)
        assert short.start > long.end


def test_a_record_arms_the_event_again() -> None:
    with Device("ascend910a") as device:
        first, second, event = device.stream(), device.stream(), device.event()
        a, b = device.malloc(8 * MIB), device.malloc(64)
        event.record(first)
        event.synchronize()
        early = event.cycle
        busy(device, first, a)
        event.record(first)
        assert not event.complete
        event.wait(second)
        busy(device, second, b)
        second.synchronize()
        assert event.complete and event.cycle > early
        assert device.timeline.ops[1].start > device.timeline.ops[0].end
        event.reset()
        assert not event.recorded and not event.complete


def test_queries_do_not_wait() -> None:
    with Device("ascend910a") as device:
        s, a, event = device.stream(), device.malloc(8 * MIB), device.event()
        assert s.done
        busy(device, s, a)
        event.record(s)
        assert not s.done and not event.complete
        calls = 0
        while not event.complete:
            device.call("poll")
            calls += 1
        assert calls > 1 and device.clock.now >= event.cycle
        with pytest.raises(InvalidUseError) as error:
            device.event().synchronize()
        assert error.value.code is Code.RT_PARAM_INVALID
        with pytest.raises(InvalidUseError) as error:
            _ = device.event().cycle
        assert error.value.code is Code.RT_EVENT_TIMESTAMP_INVALID == 107006


def test_synchronisation_gives_up_in_time() -> None:
    with Device("ascend910a") as device:
        s, a, event = device.stream(), device.malloc(64 * MIB), device.event()
        cycles = busy(device, s, a)
        event.record(s)
        begin, chip = device.clock.now, device.chip
        with pytest.raises(SyncTimeoutError) as error:
            s.synchronize(timeout=1e-4)
        assert error.value.code is Code.RT_STREAM_SYNC_TIMEOUT == 507046
        assert device.clock.now == begin + chip.cycles(1e-4) + chip.cycles(chip.host.sync)
        with pytest.raises(SyncTimeoutError) as error:
            event.synchronize(timeout=1e-4)
        assert error.value.code is Code.RT_EVENT_SYNC_TIMEOUT == 507047
        s.synchronize(timeout=chip.seconds(cycles))


def test_a_circle_of_waits_is_named() -> None:
    with Device("ascend910a") as device:
        one, two = device.stream(), device.stream()
        x, y = device.event(), device.event()
        x.wait(one), y.record(one)
        y.wait(two), x.record(two)
        with pytest.raises(SyncTimeoutError, match="streams wait in a circle") as error:
            one.synchronize()
        assert error.value.code is Code.RT_TASK_TIMEOUT == 107020
        for name in (x.name, y.name, "stream 1", "stream 2"):
            assert name in str(error.value)


def test_an_event_that_nobody_records_is_named() -> None:
    with Device("ascend910a") as device:
        s, event = device.stream(), device.event()
        event.wait(s)
        with pytest.raises(SyncTimeoutError, match="event 0, no task records it"):
            s.synchronize()
        with pytest.raises(SyncTimeoutError):
            s.synchronize(timeout=1.0)


def test_priority_decides_who_is_next() -> None:
    """Three copies want the link that a fourth holds: the stream of priority 0 gets it first."""
    with Device("ascend910a") as device:
        host = device.malloc_host(MIB)
        streams = [device.stream(p) for p in (7, 7, 3, 0)]
        for s in streams:
            device.memcpy_async(device.malloc(MIB), host, MIB, s)
        device.synchronize()
        order = [op.stream for op in device.timeline.ops]
        assert order == [streams[i].number for i in (0, 3, 2, 1)]
        assert [device.stream(p).priority for p in (-4, 99)] == [0, 7]


def test_the_chip_limits_streams_and_events() -> None:
    few = ["scheduler.max_streams=3", "scheduler.max_events=2"]
    with Device("toy", overrides=few) as device:
        assert device.streams_left == 2  # the default stream is one
        device.stream()
        last = device.stream()
        with pytest.raises(ResourceLimitError, match="at most 3 at a time") as error:
            device.stream()
        assert error.value.code is Code.RT_NO_STREAM_RESOURCE == 207008
        last.destroy()
        assert device.stream().number == last.number
        events = [device.event() for _ in range(2)]
        with pytest.raises(ResourceLimitError, match="at most 2 at a time") as error:
            device.event()
        assert error.value.code is Code.RT_NO_EVENT_RESOURCE == 207007
        device.event(counted=False)
        device.destroy_event(events[0])
        assert device.events_left == 1
        device.event()
        device.memcpy(device.malloc(8), np.zeros(8, np.uint8), 8)  # copies need no stream


def test_a_full_queue_holds_the_host_up() -> None:
    with Device("ascend910a", overrides=["scheduler.queue_depth=4"]) as device:
        s, a = device.stream(), device.malloc(16 * MIB)
        for _ in range(8):
            busy(device, s, a)
        s.synchronize()
        used = device.timeline.host
        assert used is not None
        assert used.queue_full > 0
        assert used.busy + used.queue_full + used.waiting == used.end
        assert sum(1 for span in used.spans if span.name == "queue full") == 3


def test_a_callback_runs_in_its_turn() -> None:
    """It sees what was before it in the stream; what is behind waits while it runs the device."""
    with Device("ascend910a") as device:
        s, a, host = device.stream(), device.malloc(64), device.malloc_host(64)
        seen: list[int] = []

        def look() -> None:
            device.memcpy(host, a, 64)
            seen.append(int(host[0]))

        for value in (5, 6):
            device.memset(a, value, 64, s)
            s.callback(look)
        assert not seen
        s.synchronize()
        assert seen == [5, 6]
        fills = [op for op in device.timeline.ops if op.name.startswith("memset")]
        copies = [op for op in device.timeline.ops if op.name.startswith("memcpy")]
        assert fills[0].end <= copies[0].start and copies[0].end <= fills[1].start


def test_a_callback_that_does_not_block_leaves_the_stream_going() -> None:
    with Device("ascend910a") as device:
        s, a, b = device.stream(), device.malloc(8 * MIB), device.malloc(8 * MIB)
        host = device.malloc_host(8 * MIB)
        busy(device, s, a)
        s.callback(lambda: device.memcpy(host, b, 8 * MIB), blocks=False)
        busy(device, s, a)
        s.synchronize()
        _, callback, *others = device.timeline.ops
        fill, copy = sorted(others, key=lambda op: op.op_type == "MEMCPY_ASYNC" and op.stream)
        assert callback.op_type == "CALLBACK"
        assert fill.start < copy.end and copy.start < fill.end  # side by side


def test_what_a_callback_raises_synchronisation_raises() -> None:
    with Device("toy") as device:
        s = device.stream()

        def bad() -> None:
            raise ValueError("mine")

        s.callback(bad)
        with pytest.raises(ValueError, match="mine"):
            s.synchronize()
        s.synchronize()


def test_the_same_program_gives_the_same_timeline() -> None:
    def run() -> object:
        with Device("ascend910a") as device:
            s, t, event = device.stream(), device.stream(), device.event()
            a, host = device.malloc(MIB), device.malloc_host(MIB)
            for _ in range(5):
                device.memcpy_async(a, host, MIB, s)
                event.record(s)
                event.wait(t)
                busy(device, t, a)
            device.synchronize()
            return device.timeline

    assert run() == run()
