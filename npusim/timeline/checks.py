"""Accounting checks that every Timeline must pass; a violation is an exception."""

from __future__ import annotations

from npusim.errors import AccountingError
from npusim.timeline.timeline import OpRecord, Timeline

_FIX = "this is a defect of the simulator: please report it"


def check_timeline(timeline: Timeline) -> Timeline:
    """Check every record and the order of each stream; return the timeline.

    Raises:
        AccountingError: time or bytes do not close.
    """
    last_end: dict[int, int] = {}
    for op in timeline.ops:
        _check_op(op)
        if op.start < last_end.get(op.stream, 0):
            raise AccountingError(
                f"{op.name} starts at {op.start} before its stream is free",
                "tasks of a stream in order",
                _FIX,
            )
        last_end[op.stream] = op.end
    latest = max((op.end for op in timeline.ops), default=0)
    if latest > timeline.total_cycles:
        raise AccountingError(
            f"an op ends at {latest}, the run at {timeline.total_cycles}", "ends within", _FIX
        )
    return timeline


def _check_op(op: OpRecord) -> None:
    if op.end < op.start or op.launch > op.cycles:
        raise AccountingError(f"{op.name} lasts {op.cycles} cycles", "launch ≤ duration", _FIX)
    if op.cycles < op.roofline:
        raise AccountingError(
            f"{op.name} took {op.cycles} cycles, below its roofline of {op.roofline}",
            "no time below the roofline",
            _FIX,
        )
    body = op.cycles - op.launch
    for pipe, t in op.pipes.items():
        total = t.busy + t.idle + sum(t.stalls.values())
        if total != body:
            raise AccountingError(
                f"{op.name}: {pipe} accounts for {total} of {body} cycles",
                "busy + stalled + idle = elapsed",
                _FIX,
            )
