"""Callbacks: subscribed threads, turns, codes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import npusim.acl as acl
from npusim.acl import reports

Start = Callable[..., None]


class Reporter:
    """A thread that processes reports, as pyACL's samples have it."""

    def __init__(self) -> None:
        self.context, _ = acl.rt.get_context()
        self.codes: list[int] = []
        self.go_on = True
        self.thread, ret = acl.util.start_thread(self._loop, [self.context, 20])
        assert ret == 0

    def _loop(self, args: list[object]) -> None:
        context, timeout = args
        acl.rt.set_context(context)  # type: ignore[arg-type]
        while self.go_on:
            self.codes.append(acl.rt.process_report(timeout))  # type: ignore[arg-type]

    def stop(self) -> None:
        """End the thread."""
        self.go_on = False
        assert acl.util.stop_thread(self.thread) == 0


@pytest.fixture
def reporter(start: Start) -> Iterator[Reporter]:
    """A device and a thread for its reports."""
    start()
    made = Reporter()
    yield made
    made.stop()


def stream_of(reporter: Reporter) -> int:
    """A stream whose callbacks the thread runs."""
    stream, _ = acl.rt.create_stream()
    assert acl.rt.subscribe_report(reporter.thread, stream) == 0
    return stream


def test_callbacks_run_in_their_turn_in_their_thread(reporter: Reporter) -> None:
    stream, seen = stream_of(reporter), []
    ptr, _ = acl.rt.malloc(64, 0)
    host = np.zeros(64, np.uint8)

    def look(args: list[str]) -> None:
        assert acl.rt.memcpy(host.ctypes.data, 64, ptr, 64, 2) == 0
        seen.append((args[0], int(host[0]), threading.get_ident()))

    for name, value in (("a", 5), ("b", 6)):
        assert acl.rt.memset_async(ptr, 64, value, 64, stream) == 0
        assert acl.rt.launch_callback(look, [name], 1, stream) == 0
    assert acl.rt.memset_async(ptr, 64, 7, 64, stream) == 0
    assert acl.rt.synchronize_stream(stream) == 0
    assert seen == [("a", 5, reporter.thread), ("b", 6, reporter.thread)]
    assert acl.rt.unsubscribe_report(reporter.thread, stream) == 0
    assert 0 in reporter.codes and 107012 in reporter.codes


def test_a_callback_that_does_not_block(reporter: Reporter) -> None:
    stream, seen = stream_of(reporter), []
    assert acl.rt.launch_callback(seen.append, ["x"], 0, stream) == 0
    assert acl.rt.synchronize_device() == 0
    while not seen:
        assert acl.rt.synchronize_device() == 0
    assert seen == [["x"]]
    acl.rt.unsubscribe_report(reporter.thread, stream)


def test_a_program_may_wait_for_a_callback_by_other_means(reporter: Reporter) -> None:
    """Nobody calls the runtime: the thread that asks for reports lets the device go on."""
    stream, done = stream_of(reporter), threading.Event()
    ptr, _ = acl.rt.malloc(1 << 20, 0)
    assert acl.rt.memset_async(ptr, 1 << 20, 1, 1 << 20, stream) == 0
    assert acl.rt.launch_callback(lambda args: done.set(), [], 1, stream) == 0
    assert done.wait(30)
    assert acl.rt.synchronize_stream(stream) == 0
    acl.rt.unsubscribe_report(reporter.thread, stream)


def test_times_do_not_depend_on_threads(start: Start) -> None:
    def run() -> object:
        start()
        reporter = Reporter()
        stream = stream_of(reporter)
        ptr, _ = acl.rt.malloc(4096, 0)
        host, _ = acl.rt.malloc_host(4096)
        for _ in range(5):
            acl.rt.memset_async(ptr, 4096, 1, 4096, stream)
            acl.rt.launch_callback(lambda a: acl.rt.memcpy(host, 64, ptr, 64, 2), [], 1, stream)
        acl.rt.synchronize_stream(stream)
        timeline = acl.timeline()
        acl.rt.unsubscribe_report(reporter.thread, stream)
        reporter.stop()
        acl.finalize()
        return timeline

    first = run()
    assert first is not None and first == run()


def test_a_callback_that_raises_is_logged(
    reporter: Reporter, caplog: pytest.LogCaptureFixture
) -> None:
    stream = stream_of(reporter)

    def bad(args: list[object]) -> None:
        raise ValueError("mine")

    assert acl.rt.launch_callback(bad, [], 1, stream) == 0
    assert acl.rt.synchronize_stream(stream) == 0
    assert "a callback failed" in caplog.text and "mine" in caplog.text
    acl.rt.unsubscribe_report(reporter.thread, stream)


def test_codes_of_subscriptions(reporter: Reporter) -> None:
    stream, _ = acl.rt.create_stream()
    assert acl.rt.launch_callback(print, [], 1, stream) == 107015
    assert acl.rt.unsubscribe_report(reporter.thread, stream) == 107012
    assert acl.rt.subscribe_report(reporter.thread, stream) == 0
    assert acl.rt.subscribe_report(reporter.thread, stream) == 107011
    assert acl.rt.launch_callback(print, [], 2, stream) == 107000
    assert acl.rt.unsubscribe_report(reporter.thread + 1, stream) == 107012
    assert acl.rt.process_report(1) == 107012  # of the main thread
    assert acl.rt.unsubscribe_report(reporter.thread, stream) == 0


def test_a_thread_without_reports_is_told_so(start: Start) -> None:
    start()
    stream, _ = acl.rt.create_stream()
    mine = threading.get_ident()
    assert acl.rt.subscribe_report(mine, stream) == 0
    assert acl.rt.process_report(1) == 507012
    seen: list[object] = []
    assert acl.rt.launch_callback(seen.append, ["y"], 1, stream) == 0
    assert acl.rt.process_report(1) == 0  # the device goes on for it
    assert seen == [["y"]]
    assert acl.rt.unsubscribe_report(mine, stream) == 0


def test_a_callback_that_nobody_can_run_is_told(start: Start) -> None:
    """The thread that should run it waits for it; or has ended; or does not ask."""
    start()
    streams = [acl.rt.create_stream()[0] for _ in range(2)]
    ended = threading.Thread(target=lambda: None)
    ended.start()
    ended.join()
    for stream, thread in zip(streams, (threading.get_ident(), ended.ident or 0), strict=True):
        assert acl.rt.subscribe_report(thread, stream) == 0
        assert acl.rt.launch_callback(print, [], 1, stream) == 0
        assert acl.rt.synchronize_stream(stream) == 107020
        assert "does not call process_report" in (acl.get_recent_err_msg() or "")
        assert acl.rt.unsubscribe_report(thread, stream) == 0


def test_a_thread_that_never_asks_is_not_waited_for_forever(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start()
    monkeypatch.setattr(reports, "_PATIENCE", 0.0)
    stream, _ = acl.rt.create_stream()
    over = threading.Event()
    idle = threading.Thread(target=over.wait)
    idle.start()
    assert acl.rt.subscribe_report(idle.ident or 0, stream) == 0
    assert acl.rt.launch_callback(print, [], 1, stream) == 0
    assert acl.rt.synchronize_stream(stream) == 107020
    over.set()
    idle.join()
    assert acl.rt.unsubscribe_report(idle.ident or 0, stream) == 0


def test_stopping_an_unknown_thread_fails() -> None:
    assert acl.util.stop_thread(12345) == 100000
