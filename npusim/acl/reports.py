"""Callbacks of the host: queued on streams, run by the thread that is subscribed to the stream.

When a callback's turn comes in simulated time the simulation stands still until the thread has
run it (the thread's own calls of the runtime let it go on): results do not depend on how quick
threads are.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from npusim.acl.state import PROCESS, status
from npusim.machine.entries import CallbackEntry
from npusim.runtime import Code, Device, InvalidUseError, Stream, SyncTimeoutError

_log = logging.getLogger("npusim.acl")
_PATIENCE = 60.0  #: seconds that a thread may take to ask for its reports
_SPIN = 0.005  #: seconds that an unsubscribed thread waits, so that its loop leaves others room

Callback = Callable[[list[object]], object]


@dataclass(eq=False)
class _Report:
    """A callback whose turn has come."""

    call: Callback
    args: list[object]
    device: Device
    done: bool = False

    def run(self) -> None:
        """Call it; what it raises is logged, as the caller is the runtime."""
        try:
            self.call(self.args)
        except Exception:
            _log.exception("a callback failed")
        self.done = True


class Reports:
    """Who runs the callbacks of which stream, and what waits to be run."""

    def __init__(self) -> None:
        self.threads: dict[Stream, int] = {}
        self.waiting: dict[int, deque[_Report]] = {}
        self.inline: set[int] = set()  # threads that run the device themselves, to get reports
        self.run_inline = 0  # reports that these have run

    def deliver(self, thread: int, report: _Report) -> None:
        """Hand a report to its thread and wait until it is done. The caller holds the lock.

        Raises:
            SyncTimeoutError: the thread does not ask for it.
        """
        if thread in self.inline:
            report.run()
            self.run_inline += 1
            return
        self.waiting.setdefault(thread, deque()).append(report)
        PROCESS.turn.notify_all()
        end = time.monotonic() + _PATIENCE
        while not report.done:
            alive = any(t.ident == thread for t in threading.enumerate())
            if not alive or thread == threading.get_ident() or time.monotonic() > end:
                raise SyncTimeoutError(
                    Code.RT_TASK_TIMEOUT,
                    f"a callback waits for thread {thread}, which does not call process_report",
                    "a thread that calls acl.rt.process_report again and again",
                    "start it before, and stop it after, the stream is synchronized",
                )
            PROCESS.turn.wait(0.1)

    def due(self, thread: int) -> list[Stream]:
        """The thread's streams that have callbacks queued."""
        return [
            stream
            for stream, owner in self.threads.items()
            if owner == thread
            and any(isinstance(entry, CallbackEntry) for entry in stream.queue.pending)
        ]


_REPORTS = Reports()


@status
def subscribe_report(thread_id: int, stream: int) -> None:
    """Let a thread run the callbacks of a stream."""
    found = PROCESS.stream(stream)
    if found in _REPORTS.threads:
        raise InvalidUseError(
            Code.RT_STREAM_SUBSCRIBE,
            f"a second subscription to stream {found.number}",
            "one thread per stream",
            "call acl.rt.unsubscribe_report first",
        )
    _REPORTS.threads[found] = thread_id
    PROCESS.turn.notify_all()


@status
def unsubscribe_report(thread_id: int, stream: int) -> None:
    """The thread no longer runs the callbacks of the stream."""
    found = PROCESS.stream(stream)
    if _REPORTS.threads.get(found) != thread_id:
        raise InvalidUseError(
            Code.RT_THREAD_SUBSCRIBE,
            f"thread {thread_id} is not subscribed to stream {found.number}",
            "the thread of acl.rt.subscribe_report",
            "pass the same thread",
        )
    del _REPORTS.threads[found]


@status
def launch_callback(
    fn: Callback, user_data_list: list[object], block_type: int, stream: int
) -> None:
    """Queue a callback; block_type 1: what is behind it in the stream waits for its end."""
    found, device = PROCESS.stream(stream), PROCESS.device
    thread = _REPORTS.threads.get(found)
    if thread is None:
        raise InvalidUseError(
            Code.RT_STREAM_NO_CB_REG,
            f"a callback on stream {found.number}, to which no thread is subscribed",
            "streams with a subscribed thread",
            "call acl.rt.subscribe_report first",
        )
    if block_type not in (0, 1):
        raise InvalidUseError(
            Code.RT_PARAM_INVALID, f"block type {block_type}", "0 or 1", "use one of these"
        )
    report = _Report(fn, user_data_list, device)
    found.callback(lambda: _REPORTS.deliver(thread, report), blocks=block_type == 1)


@status
def process_report(timeout: int) -> None:
    """Run one callback of the thread's streams; wait for it at most so many milliseconds."""
    PROCESS.calls -= 1  # asking does not count
    thread = threading.get_ident()
    if thread not in _REPORTS.threads.values():
        PROCESS.turn.wait(_SPIN)
        raise InvalidUseError(
            Code.RT_THREAD_SUBSCRIBE,
            f"thread {thread} is not subscribed to any stream",
            "threads of acl.rt.subscribe_report",
            "call acl.rt.subscribe_report first",
        )
    queue, before = _REPORTS.waiting.setdefault(thread, deque()), PROCESS.calls
    if not PROCESS.turn.wait_for(lambda: bool(queue), max(0, timeout) / 1000):
        if PROCESS.calls != before or not _run_to_callback(thread):
            raise SyncTimeoutError(
                Code.RT_REPORT_TIMEOUT, f"no callback in {timeout} ms", "one in time", "ask again"
            )
        return
    report = queue.popleft()
    report.device.clock.wait(report.device.machine.now, "callback")
    _outside_lock(report.run)
    PROCESS.turn.notify_all()


def _run_to_callback(thread: int) -> bool:
    """No other thread calls the runtime: the device goes on until the next callback is run."""
    before = _REPORTS.run_inline
    for stream in _REPORTS.due(thread):
        device = stream.device
        _REPORTS.inline.add(thread)
        try:
            while _REPORTS.run_inline == before and device.machine.step():
                pass
        finally:
            _REPORTS.inline.discard(thread)
        device.clock.wait(device.machine.now, "callback")
        if _REPORTS.run_inline > before:
            return True
    return False


def _outside_lock(call: Callable[[], None]) -> None:
    """Call without the lock, so that other threads, and the callback itself, may take turns."""
    PROCESS.turn.release()
    try:
        call()
    finally:
        PROCESS.turn.acquire()
