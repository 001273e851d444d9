"""Which units did the work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npusim.profiling.json_export import result_json
from npusim.profiling.report import report_text
from npusim.profiling.units import AI_CORE, AI_CPU, COPIES, OTHER, unit_line, unit_of, unit_use
from npusim.timeline import OpTotals


def test_shares_add_up(make_result) -> None:
    result = make_result()
    found = {u.unit: u for u in unit_use(result.timeline)}
    assert list(found) == [AI_CORE, AI_CPU, COPIES, OTHER]
    assert sum(u.tasks for u in found.values()) == len(result.timeline.ops)
    for key in ("time", "flops"):
        assert sum(getattr(u, key) for u in found.values()) == pytest.approx(1)
    on_cpu = [op for op in result.timeline.ops if op.core_type == "AI_CPU"]
    total = sum(op.cycles for op in result.timeline.ops)
    assert found[AI_CPU].time == sum(op.cycles for op in on_cpu) / total > 0
    line = unit_line(result.timeline)
    assert "AI Core kernels" in line and "AI CPU" in line and OTHER not in line
    assert f"run by         {line[:60]}" in report_text(result)
    data = result_json(result)["run_by"]
    assert data["ai_cpu"]["time_share"] == found[AI_CPU].time


def test_units(make_result) -> None:
    op = make_result().timeline.ops[0]
    kinds = {
        ("AIV", "Elementwise"): AI_CORE,
        ("AI_CORE", "Conv2D"): AI_CORE,
        ("AIV", "TransData"): COPIES,
        ("AI_CORE", "Move"): COPIES,
        ("SDMA", "MEMCPY_D2D"): COPIES,
        ("AI_CPU", "AICPU"): AI_CPU,
        ("DVPP", "JPEGD"): OTHER,
        ("HOST", "CALLBACK"): OTHER,
    }
    for (core_type, kernel), unit in kinds.items():
        assert unit_of(replace(op, core_type=core_type, kernel=kernel)) == unit


def test_totals_count_all_their_ops(make_result) -> None:
    timeline = replace(
        make_result().timeline,
        ops=[],
        totals=[
            OpTotals("Conv", "Conv2D", "AI_CORE", count=3, cycles=300, flops=9),
            OpTotals("TransData", "TransData", "AI_CORE", count=1, cycles=100),
        ],
    )
    core, _, copies, _ = unit_use(timeline)
    assert (core.tasks, core.time, core.flops) == (3, 0.75, 1.0)
    assert (copies.tasks, copies.time, copies.flops) == (1, 0.25, 0.0)
