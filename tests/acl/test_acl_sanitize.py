"""Races in programs that call the runtime: seeded ones are found, sound ones have none."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from conftest import Start

import npusim.acl as acl
from npusim.runtime import Device
from npusim.sanitize import FindingKind, StreamSanitizer

N = 1 << 16
IN, OUT, ON = 1, 2, 3  # ways of memcpy


def pipeline(event: bool, wait_for_copy: bool = True) -> None:
    """Copy in, copy on the device, copy out, over three streams; or with an event forgotten."""
    streams = [acl.rt.create_stream()[0] for _ in "abc"]
    a, b = (acl.rt.malloc(N, 0)[0] for _ in "ab")
    host = acl.rt.malloc_host(N)[0]
    copied, moved = (acl.rt.create_event()[0] for _ in "ab")
    assert acl.rt.memcpy_async(a, N, host, N, IN, streams[0]) == 0
    acl.rt.record_event(copied, streams[0])
    if wait_for_copy:
        acl.rt.stream_wait_event(streams[1], copied)
    assert acl.rt.memcpy_async(b, N, a, N, ON, streams[1]) == 0
    acl.rt.record_event(moved, streams[1])
    if event:
        acl.rt.stream_wait_event(streams[2], moved)
    assert acl.rt.memcpy_async(host, N, b, N, OUT, streams[2]) == 0
    assert acl.rt.synchronize_device() == 0
    for buffer in (a, b):
        acl.rt.free(buffer)
    acl.rt.free_host(host)


def test_a_sound_pipeline_has_no_findings(start: Start) -> None:
    start(sanitize=True)
    for _ in range(3):
        pipeline(event=True)
    assert acl.findings() == ()


def test_forgotten_events_are_found_and_told_at_the_end(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    start(sanitize=True)
    pipeline(event=False)
    kinds = [f.kind for f in acl.findings()]
    assert kinds == [FindingKind.UNINITIALISED, FindingKind.WAR]  # the copy out came too early
    pipeline(event=True, wait_for_copy=False)
    assert len(acl.findings()) > 2
    with caplog.at_level(logging.WARNING, "npusim.runtime"):
        assert acl.rt.reset_device(0) == 0
    assert "tasks on" in caplog.text and "found" in caplog.text
    assert acl.rt.set_device(0) == 0


def test_nothing_is_looked_for_unasked(start: Start) -> None:
    start()
    pipeline(event=False)
    assert acl.findings() == ()


def test_what_the_host_waits_for_is_in_order() -> None:
    """An overwritten input: sound after a synchronisation with the stream, or with an event."""
    for wait in ("stream", "event", "query", ""):
        watcher = StreamSanitizer("program", [])
        with Device("ascend910a", observer=watcher) as device:
            first, second = device.stream(), device.stream()
            a, host = device.malloc(N), device.malloc_host(N)
            out, done = device.malloc_host(N), device.event()
            device.memcpy(a, host, N)
            device.memcpy_async(out, a, N, first)
            done.record(first)
            if wait == "stream":
                first.synchronize()
            elif wait == "event":
                done.synchronize()
            elif wait == "query":
                while not done.complete:
                    device.call("query_event")
            device.memcpy_async(a, host, N, second)
            device.synchronize()
            device.free(a)
            for memory in (host, out):
                device.free_host(memory)
        kinds = [f.kind for f in watcher.findings]
        assert kinds == ([] if wait else [FindingKind.WAR]), wait


def test_models_have_no_findings() -> None:
    """Weights count as written, models on several streams as ordered."""
    from npusim import api
    from npusim.chip import load_chip
    from npusim.compiler import CompileOptions

    chip = load_chip("ascend910a")
    options = CompileOptions("fp16", streams=4)
    exe = api.compile_graph(api.load_model("bert-tiny").graph, chip, options=options)
    assert len({t.stream for t in exe.tasks}) > 1
    watcher = StreamSanitizer("program", [])
    with Device(chip, observer=watcher) as device:
        model = device.load(exe)
        rng = np.random.default_rng(0)
        places = []
        for buffer in model.inputs:
            place = device.malloc(buffer.nbytes)
            value = rng.integers(0, 2, buffer.shape).astype(buffer.dtype.np)
            device.memcpy(place, value, buffer.nbytes)
            places.append(place)
        targets = [device.malloc(buffer.nbytes) for buffer in model.outputs]
        stream = device.stream()
        for _ in range(2):
            model.execute_async(places, targets, stream)
        stream.synchronize()
        model.unload()
        for place in (*places, *targets):
            place.free()
    assert watcher.findings == []
