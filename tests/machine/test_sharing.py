"""Streams side by side: cores in order of arrival, blocks in turn, memories shared, events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations_with_replacement
from math import ceil

import numpy as np
import pytest
import simpy

from npusim.api import compile_graph
from npusim.chip import load_chip
from npusim.chip.spec import ChipSpec
from npusim.compiler import CompileOptions
from npusim.errors import AccountingError, DeadlockError
from npusim.ir import DType
from npusim.machine.arena import Arena
from npusim.machine.functional import FunctionalExecutor
from npusim.machine.run import run_executable
from npusim.machine.sharing import CorePools, KernelServer
from npusim.machine.tasks import Detail
from npusim.models.builder import GraphBuilder
from npusim.profiling.trace import trace_events
from npusim.program.cores import core_pools, cores_held
from npusim.program.executable import Executable
from npusim.program.kernel import Plan
from npusim.timeline import Timeline, check_timeline

CHIPS = {n: load_chip(n) for n in ("ascend910a", "ascend910b2")}
#: Chips with half the cores: a kernel planned for one leaves the other half of the whole chip free.
HALVES = {
    "ascend910a": load_chip("ascend910a", ["cores.count=16"]),
    "ascend910b2": load_chip("ascend910b2", ["cores.count=12", "cores.vector_count=24"]),
}


def stored(g: GraphBuilder, name: str) -> None:
    """Reads and writes, bound by the memories."""
    x, y = (g.input(f"{name}.{i}", (4096, 2048)) for i in "xy")
    g.output(g.node("Add", name, x, y))


def loaded(g: GraphBuilder, name: str) -> None:
    """Reads a large weight once."""
    x = g.input(f"{name}.x", (16, 4096))
    g.output(g.node("MatMul", name, x, g.weight(f"{name}.w", (4096, 4096), 0.02)))


def computed(g: GraphBuilder, name: str) -> None:
    """Bound by the cube."""
    x = g.input(f"{name}.x", (1024, 1024))
    g.output(g.node("MatMul", name, x, g.weight(f"{name}.w", (1024, 1024), 0.03)))


def small(g: GraphBuilder, name: str) -> None:
    """Little of anything."""
    g.output(g.node("Softmax", name, g.input(f"{name}.x", (128, 128))))


Side = Callable[[GraphBuilder, str], None]


def pair(chip: ChipSpec, a: Side, b: Side) -> Executable:
    """Two kernels that need nothing of each other, on streams 0 and 1."""
    g = GraphBuilder("pair", DType.FLOAT16)
    a(g, "a")
    b(g, "b")
    exe = compile_graph(g.finish(), chip)
    exe.tasks = [replace(t, stream=int(t.name.startswith("b"))) for t in exe.tasks]
    return exe


def timed(exe: Executable, chip: ChipSpec, detail: Detail = "fast") -> Timeline:
    return run_executable(exe, chip, detail=detail).timeline


@pytest.mark.parametrize("name", list(CHIPS))
@pytest.mark.parametrize(
    ("a", "b"),
    list(combinations_with_replacement((stored, loaded, computed), 2)),
    ids=lambda f: f.__name__,
)
def test_kernels_side_by_side_in_fast_and_full_detail(name: str, a: Side, b: Side) -> None:
    """Fast detail, which knows mean rates only, is within 11 % of shared transfers, ops 18 %."""
    chip = CHIPS[name]
    exe = pair(HALVES[name], a, b)
    fast, full = timed(exe, chip), timed(exe, chip, "full")
    assert fast.total_cycles == pytest.approx(full.total_cycles, rel=0.11)
    exact = {op.name: op for op in full.ops}
    for op in fast.ops:
        assert op.cycles == pytest.approx(exact[op.name].cycles, rel=0.18)
        assert op.bytes_l2 == exact[op.name].bytes_l2
        assert op.bytes_hbm == pytest.approx(exact[op.name].bytes_hbm, rel=1e-6)
    assert timed(exe, chip) == fast
    # Never quicker than alone, and what others cost it is told.
    exe.tasks = [replace(t, stream=0) for t in exe.tasks]
    alone = {op.name: op for op in timed(exe, chip).ops}
    assert fast.total_cycles <= sum(op.cycles for op in alone.values()) + chip.cycles(1e-6)
    for op in fast.ops:
        longer = (op.cycles - op.launch) - (alone[op.name].cycles - alone[op.name].launch)
        assert longer >= 0
        assert op.pipes["mte2"].stalls.get("other kernels", 0) == longer


def test_kernels_wait_for_cores_in_order_of_arrival() -> None:
    """Two kernels of all cores: only the part of a launch that needs none lies beside the other."""
    chip = CHIPS["ascend910a"]
    exe = pair(chip, computed, computed)
    launch = chip.cycles(chip.scheduler.launch)
    first, second = timed(exe, chip).ops
    assert first.block_dim == second.block_dim == chip.cores.count
    assert second.start + launch == first.end
    assert second.queued == first.end - launch and second.waited == 0
    half = timed(pair(HALVES["ascend910a"], computed, small), chip).ops
    assert [op.start for op in half] == [0, 0]


def test_blocks_are_handed_out_one_at_a_time() -> None:
    chip = CHIPS["ascend910a"]
    first, second = timed(pair(HALVES["ascend910a"], small, small), chip).ops
    launch = chip.cycles(chip.scheduler.launch)
    blocks = [ceil(chip.scheduler.per_block * chip.clock * op.block_dim) for op in (first, second)]
    assert first.launch == launch + blocks[0]
    assert second.launch == launch + sum(blocks)


def test_cube_and_vector_kernels_of_split_chips_do_not_want_the_same_cores() -> None:
    chip = CHIPS["ascend910b2"]
    ops = timed(pair(chip, computed, stored), chip).ops
    assert {op.core_type for op in ops} == {"AIC", "AIV"}
    assert [op.start for op in ops] == [0, 0]
    assert core_pools(chip) == {"AIC": 24, "AIV": 48, "AI_CPU": chip.aicpu.count}
    plan = Plan({}, 10, {})
    assert cores_held("FlashAttentionScore", plan, chip) == {"AIC": 10, "AIV": 20}
    assert cores_held("MatMul", replace(plan, block_dim=99), chip) == {"AIC": 24}
    assert cores_held("Softmax", plan, CHIPS["ascend910a"]) == {"AI_CORE": 10}


def test_nobody_overtakes_who_wants_the_same_cores() -> None:
    env = simpy.Environment()
    pools = CorePools(env, CHIPS["ascend910b2"])
    first, wide, later, other = (
        pools.take(c) for c in ({"AIC": 20}, {"AIC": 10}, {"AIC": 1}, {"AIV": 48})
    )
    assert [e.triggered for e in (first, wide, later, other)] == [True, False, False, True]
    pools.give({"AIC": 20})
    assert wide.triggered and later.triggered


def test_demands_above_the_peak_stretch_those_who_want_much() -> None:
    """Max-min fair: 0.8 + 0.8 of L2 take 1.6 times as long; 0.1 beside 0.95 is not touched."""
    chip = CHIPS["ascend910a"]

    def ends(*shares: float) -> list[int]:
        env = simpy.Environment()
        server = KernelServer(env, chip)
        done: list[int] = []
        for share in shares:
            event = server.run(10_000, 16, share * chip.l2_rate * 10_000, 0.0, 0.0)
            event.callbacks.append(lambda _: done.append(int(env.now)))
        env.run()
        return done

    assert ends(0.95) == ends(1.0) == [10_000]
    assert ends(0.4, 0.6) == [10_000, 10_000]
    assert ends(0.8, 0.8) == [16_000, 16_000]
    assert ends(0.1, 0.95) == [10_000, 10_527]  # 9474 of 10_000 by then
    assert ends(0.0, 0.9) == [10_000, 10_000]


def test_spans_of_stretched_kernels_stay_in_their_op() -> None:
    """Traced instructions keep their places in the longer whole."""
    chip = CHIPS["ascend910a"]
    exe = pair(HALVES["ascend910a"], stored, stored)
    timeline = run_executable(exe, chip, trace=("a", "b")).timeline
    for op in timeline.ops:
        assert op.pipes["mte2"].stalls["other kernels"] > 0
        assert max(s.end for s in op.spans) > op.end - 0.1 * op.cycles
    assert trace_events(timeline)  # refuses spans outside


def test_ai_cpu_tasks_have_their_own_cores() -> None:
    """An integer Neg beside a kernel, in either detail as long as alone."""

    def counted(g: GraphBuilder, name: str) -> None:
        g.output(g.node("Neg", name, g.input(f"{name}.x", (512, 64), DType.INT64)))

    chip = CHIPS["ascend910a"]
    exe = pair(chip, counted, computed)
    for detail in ("fast", "full"):
        first, second = timed(exe, chip, detail).ops
        assert first.core_type == "AI_CPU" and first.start == second.start == 0
        nbytes = sum(exe.buffers[n].nbytes for n in ("a.x", "a"))
        alone = chip.cycles(chip.aicpu.launch) + chip.cycles(nbytes / chip.aicpu.rate)
        assert abs(first.cycles - alone) <= 1


def test_memories_above_their_rate_are_refused() -> None:
    chip = CHIPS["ascend910a"]
    found = timed(pair(HALVES["ascend910a"], loaded, loaded), chip)
    assert check_timeline(found, chip.hbm_rate, chip.l2_rate) is found
    with pytest.raises(AccountingError, match=r"2 ops from \d+ to \d+ move \d+ B through HBM"):
        check_timeline(found, chip.hbm_rate * 0.8, chip.l2_rate)


# -- events --------------------------------------------------------------------------------


def joined() -> Executable:
    """slow and quick on streams 0 and 1, on half of the cores each, joined on stream 1."""
    g = GraphBuilder("joined", DType.FLOAT16)
    x, y = g.input("x", (512, 512)), g.input("y", (512, 512))
    slow = g.node("Softmax", "slow1", g.node("MatMul", "slow0", x, x), axis=-1)
    g.output(g.node("MatMul", "join", slow, g.node("Softmax", "quick", y)))
    exe = compile_graph(
        g.finish(), HALVES["ascend910a"], options=CompileOptions(reuse_memory=False)
    )
    changes = {
        "slow1": {"records": 7}, "quick": {"stream": 1}, "join": {"stream": 1, "waits": (7,)},
    }  # fmt: skip
    exe.tasks = [replace(t, **changes.get(t.name, {})) for t in exe.tasks]
    return exe


@pytest.mark.parametrize("detail", ["fast", "full"])
def test_a_task_waits_for_events(detail: Detail) -> None:
    """Recording and waiting cost their streams `scheduler.event` each."""
    chip = CHIPS["ascend910a"]
    ops = {op.name: op for op in timed(joined(), chip, detail).ops}
    event = chip.cycles(chip.scheduler.event)
    join, slow = ops["join"], ops["slow1"]
    assert join.start == slow.end + 2 * event
    assert join.waited == join.start - ops["quick"].end - chip.cycles(chip.scheduler.gap)
    assert join.after == ("slow1",) and join.queued == 0


def outputs(exe: Executable, chip: ChipSpec) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arena = Arena(exe)
    arena.load_constants()
    arena.load_inputs(
        {n: rng.standard_normal(exe.buffers[n].shape).astype(np.float16) for n in exe.inputs}
    )
    run_executable(exe, chip, FunctionalExecutor(exe, chip, arena))
    return arena.outputs()


def test_without_its_event_a_task_computes_from_what_is_not_there_yet() -> None:
    chip = CHIPS["ascend910a"]
    exe = joined()
    right = outputs(exe, chip)["join"]
    serial = joined()
    serial.tasks = [replace(t, stream=0, waits=(), records=None) for t in serial.tasks]
    np.testing.assert_array_equal(right, outputs(serial, chip)["join"])
    exe.tasks = [replace(t, waits=()) for t in exe.tasks]
    assert not np.array_equal(outputs(exe, chip)["join"], right)


@pytest.mark.parametrize("detail", ["fast", "full"])
def test_an_event_that_is_never_recorded_is_named(detail: Detail) -> None:
    chip = CHIPS["ascend910a"]
    exe = joined()
    exe.tasks = [replace(t, records=None) for t in exe.tasks]
    with pytest.raises(DeadlockError, match="'join' on stream 1 waits for event 7, no task"):
        timed(exe, chip, detail)
    exe = joined()
    exe.tasks = [replace(t, waits=(8,)) if t.name == "slow0" else t for t in exe.tasks]
    exe.tasks = [replace(t, records=8) if t.name == "join" else t for t in exe.tasks]
    with pytest.raises(
        DeadlockError, match=r"'slow0'.* 8, 'join' on stream 1 has not recorded it; .* event 7"
    ):
        timed(exe, chip, detail)
