"""Accounting checks that every Timeline must pass; a violation is an exception."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from npusim.errors import AccountingError
from npusim.timeline.timeline import OpRecord, Timeline

_EXACT = 64  #: ops side by side of which all pairs of start and end are checked
_RUN = 32
_FIX = "this is a defect of the simulator: please report it"


def check_timeline(
    timeline: Timeline, hbm_rate: float = float("inf"), l2_rate: float = float("inf")
) -> Timeline:
    """Check every record, the order of each stream, and what all move together; return it.

    Args:
        hbm_rate, l2_rate: bytes per cycle that the memories achieve.

    Raises:
        AccountingError: time or bytes do not close.
    """
    last_end: dict[int, int] = {}
    for op in timeline.ops:
        check_op(op, last_end)
    _check_host(timeline)
    latest = max((op.end for op in timeline.ops), default=0)
    if latest > timeline.total_cycles:
        raise AccountingError(
            f"an op ends at {latest}, the run at {timeline.total_cycles}", "ends within", _FIX
        )
    for group in _side_by_side(timeline.ops):
        _check_rate(group, "HBM", [op.bytes_hbm for op in group], hbm_rate)
        _check_rate(group, "L2", [op.bytes_l2 for op in group], l2_rate)
    return timeline


def _side_by_side(ops: Sequence[OpRecord]) -> Iterator[list[OpRecord]]:
    """Ops that run at the same time as another of them, apart in time from all others."""
    group: list[OpRecord] = []
    end = 0
    for op in sorted(ops, key=lambda o: o.start + o.launch):
        if group and op.start + op.launch >= end:
            yield group
            group = []
        group.append(op)
        end = max(end, op.end)
    if group:
        yield group


def _check_rate(group: Sequence[OpRecord], what: str, nbytes: Sequence[int], rate: float) -> None:
    """Bytes of the ops that lie between the start of one and the end of another, launches apart.

    Bytes are rounded per op, and each ends at a whole cycle. In a large group only runs of up to
    `_RUN` ops, in order of start, are looked at: every pair of start and end would be too many.
    """
    if len(group) > _EXACT:
        _check_runs(group, what, nbytes, rate)
        return
    spans = sorted((op.end, op.start + op.launch, n) for op, n in zip(group, nbytes, strict=True))
    for start in {start for _, start, _ in spans}:
        moved = count = 0
        for end, began, n in spans:
            if began < start:
                continue
            moved, count = moved + n, count + 1
            if moved > rate * (end - start + count) + count:
                raise _too_fast(count, start, end, moved, what, rate)


def _check_runs(group: Sequence[OpRecord], what: str, nbytes: Sequence[int], rate: float) -> None:
    """As `_check_rate`, for runs of neighbours; the group is in order of start."""
    starts = np.array([op.start + op.launch for op in group])
    ends = np.array([op.end for op in group])
    moved, last = np.array(nbytes), ends
    for count in range(1, min(_RUN, len(group)) + 1):
        if count > 1:
            moved = moved[:-1] + np.array(nbytes)[count - 1 :]
            last = np.maximum(last[:-1], ends[count - 1 :])
        first = starts[: len(moved)]
        above = moved > rate * (last - first + count) + count
        if above.any():
            i = int(above.argmax())
            raise _too_fast(count, int(first[i]), int(last[i]), int(moved[i]), what, rate)


def _too_fast(
    count: int, start: int, end: int, moved: int, what: str, rate: float
) -> AccountingError:
    return AccountingError(
        f"{count} ops from {start} to {end} move {moved} B through {what}",
        f"at most {rate:.1f} B per cycle",
        _FIX,
    )


def _check_host(timeline: Timeline) -> None:
    host = timeline.host
    if host is not None and host.busy + host.queue_full + host.waiting != host.end:
        raise AccountingError(
            f"the host accounts for {host.busy} + {host.queue_full} + {host.waiting} "
            f"of {host.end} cycles",
            "busy + queue full + waiting = elapsed",
            _FIX,
        )


def check_op(op: OpRecord, last_end: dict[int, int]) -> None:
    """Check one record, and that it follows the one before it on its stream.

    Args:
        last_end: stream → end of its last record; updated.

    Raises:
        AccountingError: time does not close.
    """
    last = last_end.get(op.stream, 0)
    if op.start < last + op.starved + op.waited + op.queued:
        raise AccountingError(
            f"{op.name} starts at {op.start}; its stream was free at {last}, starved for "
            f"{op.starved}, waited for {op.waited}, queued for {op.queued}",
            "tasks of a stream in order; starved + waited + queued + gap = time between",
            _FIX,
        )
    last_end[op.stream] = op.end
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
