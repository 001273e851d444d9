"""What a run's Timeline and check say, summed up as plain data for the reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from npusim.timeline import PIPES, OpRecord, OpTotals, RunResult, Timeline

MIN_COSINE = 0.999  #: of an output with its reference, in fp16 and bf16
MAX_REL_ERR = 1e-4  #: of an output against its reference, in fp32


@dataclass(frozen=True)
class PipeUse:
    """One kind of pipe over the whole run, as shares of the run's time.

    Attributes:
        busy: share of the time it works, on the slowest core of each task (where streams run
            side by side for more than the run's time, of the tasks' time).
        stalled: share of the time it holds an instruction that cannot start.
        reason, reason_share: what it waits for most, and for how long.
    """

    pipe: str
    busy: float
    stalled: float
    reason: str
    reason_share: float


@dataclass(frozen=True)
class TypeUse:
    """All tasks of one operator type together; `share` of the run's time, `bound` of most of it."""

    op_type: str
    count: int
    cycles: int
    share: float
    flops: int
    bytes_hbm: int
    bound: str


@dataclass(frozen=True)
class StreamUse:
    """One stream: its tasks, and shares of the run's time.

    Attributes:
        busy: tasks run, launches included; alone: no other stream runs one meanwhile.
        waited, queued: it stands still for events, for free cores.
    """

    stream: int
    tasks: int
    busy: float
    alone: float
    waited: float
    queued: float


def share(part: float, whole: float) -> float:
    """`part / whole`; 0 of nothing is 0."""
    return part / whole if whole else 0.0


def slowest(timeline: Timeline, count: int) -> list[OpRecord]:
    """The `count` longest tasks, longest first; the earlier first among equals."""
    return sorted(timeline.ops, key=lambda op: (-op.cycles, op.start))[:count]


def pipe_use(timeline: Timeline) -> list[PipeUse]:
    """Each pipe that the run uses, in the order of `PIPES`."""
    elapsed = max(timeline.total_cycles, sum(op.cycles for op in timeline.ops))
    rows = []
    for pipe in PIPES:
        times = [op.pipes[pipe] for op in timeline.ops if pipe in op.pipes]
        if not times:
            continue
        reasons: Counter[str] = Counter()
        for time in times:
            reasons.update(time.stalls)
        reason, cycles = max(reasons.items(), key=lambda item: item[1], default=("", 0))
        rows.append(
            PipeUse(
                pipe,
                share(sum(time.busy for time in times), elapsed),
                share(reasons.total(), elapsed),
                reason if cycles else "",
                share(cycles, elapsed),
            )
        )
    return rows


def stream_use(timeline: Timeline) -> list[StreamUse]:
    """Each stream, by number."""
    changes: list[tuple[int, int, int]] = []
    streams: dict[int, list[OpRecord]] = {}
    for op in timeline.ops:
        streams.setdefault(op.stream, []).append(op)
        changes += [(op.start, 1, op.stream), (op.end, 0, op.stream)]
    alone: Counter[int] = Counter()
    running: Counter[int] = Counter()
    before = 0
    for cycle, starts, stream in sorted(changes):
        busy = [s for s, n in running.items() if n]
        if len(busy) == 1:
            alone[busy[0]] += cycle - before
        running[stream] += 1 if starts else -1
        before = cycle
    total = timeline.total_cycles
    return [
        StreamUse(
            stream,
            len(ops),
            share(sum(op.cycles for op in ops), total),
            share(alone[stream], total),
            share(sum(op.waited for op in ops), total),
            share(sum(op.queued for op in ops), total),
        )
        for stream, ops in sorted(streams.items())
    ]


def type_use(timeline: Timeline) -> list[TypeUse]:
    """One row per operator type, the most time first; from sums where ops are not kept."""
    groups: dict[str, list[OpTotals]] = {}
    for totals in timeline.totals or _sums(timeline.ops):
        groups.setdefault(totals.op_type, []).append(totals)
    rows = [
        TypeUse(
            op_type,
            sum(t.count for t in group),
            cycles := sum(t.cycles for t in group),
            share(cycles, timeline.total_cycles),
            sum(t.flops for t in group),
            sum(t.bytes_hbm for t in group),
            next(iter(_bound_shares(group))),
        )
        for op_type, group in groups.items()
    ]
    return sorted(rows, key=lambda row: -row.cycles)


def _sums(ops: Iterable[OpRecord]) -> list[OpTotals]:
    """Ops of one type together, in the order of their first."""
    found: dict[str, OpTotals] = {}
    for op in ops:
        found.setdefault(op.op_type, OpTotals(op.op_type, "", "")).add(op)
    return list(found.values())


def bound_use(timeline: Timeline) -> dict[str, float]:
    """Bound → its share of the tasks' time, the largest first."""
    return _bound_shares(timeline.totals or _sums(timeline.ops))


def _bound_shares(totals: Iterable[OpTotals]) -> dict[str, float]:
    cycles: Counter[str] = Counter()
    for t in totals:
        cycles.update(t.bounds)
    return {bound: share(n, cycles.total()) for bound, n in cycles.most_common()}


def within_limits(result: RunResult, name: str) -> bool:
    """True when a checked tensor is as near its reference as its type promises (NaN never is).

    Two-byte tensors are judged by their cosine, also in an fp32 run (of an fp16 model).
    """
    check = result.check[name]
    value = result.outputs.get(name, result.tensors.get(name))
    if result.precision == "fp32" and (value is None or value.dtype.itemsize != 2):
        return check.max_rel_err <= MAX_REL_ERR
    return check.cosine >= MIN_COSINE


def limit_text(precision: str) -> str:
    """The limit of `within_limits` in words."""
    if precision == "fp32":
        return f"relative error at most {MAX_REL_ERR:g}"
    return f"cosine at least {MIN_COSINE:g}"


def failed_outputs(result: RunResult) -> list[str]:
    """Outputs that the check refuses, or did not compare; [] when no check was asked for."""
    if not result.check:
        return []
    return [
        name
        for name in result.outputs
        if name not in result.check or not within_limits(result, name)
    ]
