"""The host: eager and graph mode against closed forms; full queues; long runs in little memory."""

from __future__ import annotations

import pytest
from tiny import CHIPS

from npusim.api import compile_graph
from npusim.chip.spec import ChipSpec
from npusim.compiler import CompileOptions
from npusim.errors import UnsupportedError
from npusim.ir import DType
from npusim.machine.host import HostPlan
from npusim.machine.run import run_executable
from npusim.models.builder import GraphBuilder
from npusim.program.executable import Executable
from npusim.timeline import HostUse, Timeline

CHIP = CHIPS["ascend910a"]
COUNT = 6


def chain(chip: ChipSpec, count: int = COUNT) -> Executable:
    """Softmax kernels one after another, not fused."""
    g = GraphBuilder("chain", DType.FLOAT16)
    x = g.input("x", (64, 100))
    for i in range(count):
        x = g.node("Softmax", f"s{i}", x, axis=-1)
    g.output(x)
    return compile_graph(g.finish(), chip, options=CompileOptions(level=1))


def ran(plan: HostPlan | None, chip: ChipSpec = CHIP, exe: Executable | None = None) -> Timeline:
    return run_executable(exe or chain(chip), chip, host=plan).timeline


def changed(part: str, **values: float) -> ChipSpec:
    """The chip with other values in one part."""
    return CHIP.model_copy(update={part: getattr(CHIP, part).model_copy(update=values)})


def used(timeline: Timeline) -> HostUse:
    assert timeline.host is not None
    return timeline.host


def test_without_a_host_the_device_is_alone() -> None:
    timeline = ran(None)
    assert timeline == ran(HostPlan())
    assert timeline.host is None
    assert timeline.ops[0].start == 0
    assert not any(op.starved for op in timeline.ops)


def test_a_slow_host_sets_the_pace() -> None:
    """Every task starts when it is enqueued; the device starves between."""
    chip = changed("host", enqueue=100e-6)
    enqueue, sync = chip.cycles(chip.host.enqueue), chip.cycles(chip.host.sync)
    timeline = ran(HostPlan("eager"), chip)
    assert [op.start for op in timeline.ops] == [(i + 1) * enqueue for i in range(COUNT)]
    last = timeline.ops[-1]
    assert timeline.total_cycles == COUNT * enqueue + last.cycles + sync
    host = used(timeline)
    assert (host.busy, host.queue_full) == (COUNT * enqueue, 0)
    assert host.waiting == last.cycles + sync


def test_a_quick_host_is_ahead_and_the_device_sets_the_pace() -> None:
    chip = changed("host", enqueue=1e-9)
    alone = ran(None, chip)
    timeline = ran(HostPlan("eager"), chip)
    assert [op.cycles for op in timeline.ops] == [op.cycles for op in alone.ops]
    assert timeline.ops[0].starved == 1
    assert not any(op.starved for op in timeline.ops[1:])
    assert timeline.total_cycles == 1 + alone.total_cycles + chip.cycles(chip.host.sync)


def test_a_full_queue_stops_the_host() -> None:
    chip = changed("host", enqueue=1e-9)
    chip = chip.model_copy(
        update={"scheduler": chip.scheduler.model_copy(update={"queue_depth": 1})}
    )
    host = used(ran(HostPlan("eager"), chip))
    assert host.queue_full > 0
    assert host.busy + host.queue_full + host.waiting == host.end


@pytest.mark.parametrize(("steps", "sink"), [(1, 1), (4, 1), (4, 4), (5, 2)])
def test_a_graph_costs_one_launch_per_sink(steps: int, sink: int) -> None:
    launch, sync = CHIP.cycles(CHIP.host.graph_launch), CHIP.cycles(CHIP.host.sync)
    timeline = ran(HostPlan("graph", steps, sink))
    host, launches = used(timeline), -(-steps // sink)
    assert host.busy == launches * launch
    assert len(timeline.ops) == steps * COUNT
    assert [op.step for op in timeline.ops] == [i // COUNT for i in range(steps * COUNT)]
    starved = [op for op in timeline.ops if op.starved]
    assert [op.step for op in starved] == list(range(0, steps, sink))
    assert all(op.starved >= launch for op in starved)
    gap = CHIP.cycles(CHIP.scheduler.gap)
    device = sum(op.cycles for op in timeline.ops) + gap * (len(timeline.ops) - launches)
    assert timeline.total_cycles == device + launches * (launch + sync)


def test_sunk_steps_are_quicker_than_single_ones_and_those_than_eager() -> None:
    eager, single, sunk = (
        ran(plan).total_cycles
        for plan in (HostPlan("eager", 8), HostPlan("graph", 8), HostPlan("graph", 8, 8))
    )
    assert sunk < single < eager


def test_sums_are_those_of_the_ops() -> None:
    exe, plan = chain(CHIP), HostPlan("graph", 20, 20)
    full = run_executable(exe, CHIP, host=plan).timeline
    summed = run_executable(exe, CHIP, host=plan, keep="summary").timeline
    assert summed.ops == ()
    assert summed.total_cycles == full.total_cycles
    assert summed.tasks == full.tasks == 20 * COUNT
    assert summed.bytes_hbm == full.bytes_hbm
    (totals,) = summed.totals
    assert totals.cycles == sum(op.cycles for op in full.ops)
    assert totals.starved == sum(op.starved for op in full.ops)
    assert totals.busy["vector"] == sum(op.pipes["vector"].busy for op in full.ops)


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="sink size 4 without a graph"):
        HostPlan("eager", 4, 4)
    with pytest.raises(UnsupportedError, match="0 steps"):
        HostPlan("graph", 0)
