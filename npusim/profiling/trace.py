"""A run as a Chrome/Perfetto trace: streams and tasks, and chosen ops down to the core's pipes.

Rules of the viewers: slices of a thread must not overlap (Perfetto drops them), a thread id equal
to a process id or to 0 is taken for the main thread, times are microseconds. Both ends of a slice
are rounded to whole ns, so that neighbours stay neighbours at clocks that are no divisor of 1 GHz.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from npusim.errors import AccountingError
from npusim.timeline import OpRecord, RunResult, Span, Timeline

HOST_PID = 500
DEVICE_PID = 1000
_FIRST_CORE_PID = 2000
_LANES = ("scalar", "mte2", "mte1", "cube", "fixp", "vector", "mte3")  #: as data flows

Event = dict[str, object]


def write_trace(result: RunResult, path: str | Path) -> None:
    """Write the trace of a run for ui.perfetto.dev or chrome://tracing.

    Raises:
        AccountingError: slices of one track overlap, or a span lies outside its op.
        OSError: the file cannot be written.
    """
    trace = {
        "displayTimeUnit": "ns",
        "otherData": {
            "workload": result.model,
            "chip": result.chip,
            "precision": result.precision,
            "batch": result.batch,
        },
        "traceEvents": trace_events(result.timeline),
    }
    text = json.dumps(trace, ensure_ascii=False, separators=(",", ":"))
    Path(path).write_text(text, encoding="utf-8")


def trace_events(timeline: Timeline) -> list[Event]:
    """All events of the trace: names, tasks, counters, then the pipes of ops that have spans."""
    traced = [op for op in timeline.ops if op.spans]
    events = [*_host(timeline), *_streams(timeline), *_arrows(timeline), *_counters(timeline)]
    for i, op in enumerate(traced):
        events += _pipes(timeline, op, _FIRST_CORE_PID + 100 * i, i + 1)
    return events


def _host(timeline: Timeline) -> Iterator[Event]:
    """The host: one thread."""
    if timeline.host is None:
        return
    yield from _name("process", HOST_PID, "Host", 0)
    yield from _name("thread", HOST_PID, "main thread", 0, 1)
    for s in timeline.host.spans:
        yield _slice(timeline, HOST_PID, 1, s.name, s.start, s.end, {})


def _streams(timeline: Timeline) -> Iterator[Event]:
    """The device: a thread per stream, a slice per task."""
    yield from _name("process", DEVICE_PID, f"Device ({timeline.chip})", 0)
    for stream in sorted({op.stream for op in timeline.ops}):
        ops = sorted((o for o in timeline.ops if o.stream == stream), key=lambda o: o.start)
        track = f"Stream {stream}"
        tid = stream + 1
        yield from _name("thread", DEVICE_PID, track, stream, tid)
        slices = [part for op in ops for part in (*_waits(op), (op.name, op.start, op.end))]
        _check_order(track, slices)
        for op in ops:
            for name, start, end in _waits(op):
                yield _slice(timeline, DEVICE_PID, tid, name, start, end, {"before": op.name})
            args = _task_args(timeline, op)
            yield _slice(timeline, DEVICE_PID, tid, op.name, op.start, op.end, args)


def _waits(op: OpRecord) -> Iterator[tuple[str, int, int]]:
    """What a stream waits for before an op: (name, start, end), the events first."""
    if op.waited:
        yield "EVENT_WAIT", op.start - op.queued - op.waited, op.start - op.queued
    if op.queued:
        yield "wait for cores", op.start - op.queued, op.start


def _arrows(timeline: Timeline) -> Iterator[Event]:
    """From each op that recorded an event to those of other streams that waited for it."""
    by_name = {(op.step, op.name): op for op in timeline.ops}
    number = 0
    for op in timeline.ops:
        makers = (by_name.get((op.step, name)) for name in op.after)
        for maker in (m for m in makers if m is not None):  # all of them, in a partial timeline
            number += 1
            # A viewer binds an end to the slice that it lies in: just before the end of the first.
            last = max(_ns(timeline, maker.start), _ns(timeline, maker.end) - 1) / 1000
            ends = (("s", maker, last), ("f", op, _us(timeline, op.start)))
            for phase, at, ts in ends:
                yield {
                    "name": "event", "cat": "event", "ph": phase, "id": number, "bp": "e",
                    "pid": DEVICE_PID, "tid": at.stream + 1, "ts": ts,
                }  # fmt: skip


def _task_args(timeline: Timeline, op: OpRecord) -> Event:
    return {
        "op_type": op.op_type,
        "kernel": op.kernel,
        "core_type": op.core_type,
        "block_dim": op.block_dim,
        "bound": op.bound,
        "bound_share": round(op.bound_share, 4),
        "roofline_us": _us(timeline, op.roofline),
        "launch_us": _us(timeline, op.launch),
        "flops": op.flops,
        "bytes_hbm": op.bytes_hbm,
        "bytes_l2": op.bytes_l2,
        "replayed": op.replayed,
        "cycles": op.cycles,
        "busy_us": {pipe: _us(timeline, time.busy) for pipe, time in op.pipes.items()},
    }


def _counters(timeline: Timeline) -> Iterator[Event]:
    """HBM GB/s and TFLOP/s: the mean of each task over its time, summed over what runs."""
    changes: dict[int, list[tuple[float, float]]] = {}
    for op in timeline.ops:
        seconds = timeline.us(op.cycles) * 1e-6
        if seconds:
            gbps, tflops = op.bytes_hbm / seconds / 1e9, op.flops / seconds / 1e12
            changes.setdefault(op.start, []).append((gbps, tflops))
            changes.setdefault(op.end, []).append((-gbps, -tflops))
    gbps = tflops = 0.0
    for cycle in sorted(changes):
        gbps += sum(change[0] for change in changes[cycle])
        tflops += sum(change[1] for change in changes[cycle])
        for name, unit, value in (("HBM", "GB/s", gbps), ("Compute", "TFLOP/s", tflops)):
            yield {
                "name": name,
                "ph": "C",
                "pid": DEVICE_PID,
                "ts": _us(timeline, cycle),
                "args": {unit: abs(round(value, 3))},
            }


def _pipes(timeline: Timeline, op: OpRecord, pid: int, order: int) -> Iterator[Event]:
    """A representative core while it runs `op`: a thread per pipe, a slice per instruction."""
    yield from _name("process", pid, f"AI Core ({op.name})", order)
    tracks: dict[str, list[Span]] = {}
    for span in op.spans:
        tracks.setdefault(span.track, []).append(span)
    for tid, track in enumerate(sorted(tracks, key=_lane), start=1):
        spans = sorted(tracks[track], key=lambda s: (s.start, s.end))
        yield from _name("thread", pid, track, tid, tid)
        _check_inside(op, spans)
        _check_order(f"{op.name}: {track}", ((s.name, s.start, s.end) for s in spans))
        for s in spans:
            yield _slice(timeline, pid, tid, s.name, s.start, s.end, {"cycles": s.end - s.start})


def _lane(track: str) -> tuple[str, int, str]:
    """Order of tracks: by core ("core1 cube"), then as data flows through the pipes."""
    core, _, pipe = track.rpartition(" ")
    return core, _LANES.index(pipe) if pipe in _LANES else len(_LANES), pipe


def _slice(
    timeline: Timeline, pid: int, tid: int, name: str, start: int, end: int, args: Event
) -> Event:
    ts = _ns(timeline, start)
    return {
        "name": name,
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": ts / 1000,
        "dur": (_ns(timeline, end) - ts) / 1000,
        "args": args,
    }


def _name(kind: str, pid: int, name: str, order: int, tid: int = 0) -> Iterator[Event]:
    """The name of a process or thread, and its place in the viewer."""
    for key, args in (("name", {"name": name}), ("sort_index", {"sort_index": order})):
        yield {"name": f"{kind}_{key}", "ph": "M", "pid": pid, "tid": tid, "args": args}


def _ns(timeline: Timeline, cycles: int) -> int:
    return round(timeline.us(cycles) * 1000)


def _us(timeline: Timeline, cycles: int) -> float:
    """µs, rounded to whole ns."""
    return _ns(timeline, cycles) / 1000


def _check_inside(op: OpRecord, spans: Iterable[Span]) -> None:
    for span in spans:
        if span.start < op.start or span.end > op.end:
            raise AccountingError(
                f"{op.name}: {span.name} on {span.track} lasts from {span.start} to {span.end}, "
                f"the op from {op.start} to {op.end}",
                "spans in cycles of the run, within their op",
                "this is a defect of the simulator: please report it",
            )


def _check_order(track: str, slices: Iterable[tuple[str, int, int]]) -> None:
    """Refuse slices, sorted by start, that overlap."""
    free = 0
    for name, start, end in slices:
        if start < free:
            raise AccountingError(
                f"{track}: {name} starts at {start}, before its track is free at {free}",
                "slices of a track one after the other",
                "this is a defect of the simulator: please report it",
            )
        free = end
