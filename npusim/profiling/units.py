"""What did the work: kernels on AI Cores, the AI CPU, and plain copies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from npusim.profiling.text import percent
from npusim.timeline import OpRecord, OpTotals, Timeline

AI_CORE, AI_CPU, COPIES, OTHER = "AI Core kernels", "AI CPU", "copies", "other units"
#: Core types, and what they count for; kernels that only move elements are copies.
UNITS = {
    **dict.fromkeys(("AI_CORE", "AIC", "AIV", "MIX"), AI_CORE),
    "AI_CPU": AI_CPU,
    **dict.fromkeys(("PCIE", "SDMA"), COPIES),
}
COPYING = ("Move", "TransData", "Transpose")


@dataclass(frozen=True)
class UnitUse:
    """The tasks of one unit; shares of all tasks' time, launches included, and of all FLOPs."""

    unit: str
    tasks: int
    time: float
    flops: float


def unit_of(op: OpRecord | OpTotals) -> str:
    """What ran it."""
    return COPIES if op.kernel in COPYING else UNITS.get(op.core_type, OTHER)


def unit_use(timeline: Timeline) -> list[UnitUse]:
    """AI Core kernels, AI CPU, copies and other units; empty for a run without tasks."""
    found: Iterable[OpRecord | OpTotals] = timeline.totals or timeline.ops
    sums = {unit: [0, 0, 0] for unit in (AI_CORE, AI_CPU, COPIES, OTHER)}
    for op in found:
        total = sums[unit_of(op)]
        for i, n in enumerate((op.count if isinstance(op, OpTotals) else 1, op.cycles, op.flops)):
            total[i] += n
    tasks, cycles, flops = (sum(column) for column in zip(*sums.values(), strict=True))
    if not tasks:
        return []
    return [
        UnitUse(unit, n, t / (cycles or 1), f / (flops or 1)) for unit, (n, t, f) in sums.items()
    ]


def unit_line(timeline: Timeline) -> str:
    """The same in one line; units without tasks are left out."""
    parts = []
    for u in unit_use(timeline):
        if u.tasks:
            flops = f", {percent(u.flops)} of FLOPs" if u.flops else ""
            parts.append(f"{u.unit} {percent(u.time)} of the time{flops}")
    return "; ".join(parts)
