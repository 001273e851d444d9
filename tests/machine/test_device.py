"""The device: streams, gaps and launches, L2 between kernels, replay, full against fast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import ceil

import pytest
from tiny import CHIPS

from npusim.api import compile_graph
from npusim.chip.spec import ChipSpec
from npusim.compiler import CompileOptions
from npusim.ir import DType
from npusim.machine.run import DeviceRun, run_executable
from npusim.machine.tasks import Detail
from npusim.models.builder import GraphBuilder
from npusim.program.executable import Executable


def chain(chip: ChipSpec, rows: int, columns: int, count: int = 3) -> Executable:
    """`count` Softmax kernels one after another, not fused."""
    g = GraphBuilder("chain", DType.FLOAT16)
    x = g.input("x", (rows, columns))
    for i in range(count):
        x = g.node("Softmax", f"s{i}", x, axis=-1)
    g.output(x)
    return compile_graph(g.finish(), chip, options=CompileOptions(level=1))


def product(chip: ChipSpec) -> Executable:
    """A MatMul and a Softmax of ragged sizes."""
    g = GraphBuilder("product", DType.FLOAT16)
    a, b = g.input("a", (333, 200)), g.weight("b", (200, 77), 1.0)
    g.output(g.node("Softmax", "softmax", g.node("MatMul", "mm", a, b), axis=-1))
    return compile_graph(g.finish(), chip)


def run(exe: Executable, chip: ChipSpec, detail: Detail = "fast") -> DeviceRun:
    """Time it."""
    return run_executable(exe, chip, detail=detail)


@pytest.mark.parametrize("name", list(CHIPS))
def test_tasks_follow_one_another(name: str) -> None:
    """Launch overhead by block dim, then the blocks, then the stream's gap."""
    chip = CHIPS[name]
    ops = run(chain(chip, 64, 100), chip).timeline.ops
    gap = chip.cycles(chip.scheduler.gap)
    assert ops[0].start == 0
    for before, after in pairwise(ops):
        assert after.start == before.end + gap
    for op in ops:
        blocks = ceil(chip.scheduler.per_block * chip.clock * op.block_dim)
        assert op.launch == chip.cycles(chip.scheduler.launch) + blocks
        assert op.cycles == op.launch + op.pipes["mte2"].busy + op.pipes["mte2"].idle + sum(
            op.pipes["mte2"].stalls.values()
        )


def test_two_streams_run_side_by_side() -> None:
    chip = CHIPS["ascend910a"]
    exe = chain(chip, 64, 100, 2)
    alone = run(exe, chip).timeline
    exe.tasks[1] = replace(exe.tasks[1], stream=1)
    both = run(exe, chip).timeline
    assert {op.stream for op in both.ops} == {0, 1}
    assert all(op.start == 0 for op in both.ops)
    assert both.total_cycles < alone.total_cycles


def test_what_a_kernel_wrote_is_a_hit_for_the_next() -> None:
    """Small tensors stay in L2: only the first read goes to HBM; large ones go every time."""
    chip = CHIPS["ascend910a"]
    first, *rest = run(chain(chip, 256, 128), chip).timeline.ops
    assert first.bytes_hbm == 256 * 128 * 2
    assert [op.bytes_hbm for op in rest] == [0, 0]
    assert all(op.bytes_l2 == 2 * 256 * 128 * 2 for op in (first, *rest))
    assert rest[0].cycles < first.cycles
    size = 16384 * 2048 * 2  # 64 MiB in a cache of 32
    for op in run(chain(chip, 16384, 2048), chip).timeline.ops[1:]:
        assert op.bytes_hbm >= size


def test_identical_launches_are_replayed() -> None:
    chip = CHIPS["ascend910a"]
    ops = run(chain(chip, 256, 128, 4), chip).timeline.ops
    assert [op.replayed for op in ops] == [False, False, True, True]
    assert len({op.cycles for op in ops[1:]}) == 1


@pytest.mark.parametrize("name", list(CHIPS))
@pytest.mark.parametrize("make", [lambda c: chain(c, 100, 70), product], ids=["chain", "product"])
def test_full_detail_is_close_to_fast_and_every_run_is_the_same(
    name: str, make: Callable[[ChipSpec], Executable]
) -> None:
    chip = CHIPS[name]
    exe = make(chip)
    fast, full = run(exe, chip).timeline, run(exe, chip, "full").timeline
    assert fast == run(exe, chip).timeline
    assert full == run(exe, chip, "full").timeline
    assert fast.total_cycles == pytest.approx(full.total_cycles, rel=0.02)
    assert [o.bytes_l2 for o in fast.ops] == [o.bytes_l2 for o in full.ops]
    assert [o.bytes_hbm for o in fast.ops] == [o.bytes_hbm for o in full.ops]
