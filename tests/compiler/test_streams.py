"""Parallel branches on several streams: where it pays, right numbers, memory in a partial order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from compiling import CHIPS, graph_of
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import random_graph

from npusim import api
from npusim.compiler import CompileOptions, compile_graph, compile_watched, streams
from npusim.compiler.memory import Slot
from npusim.compiler.stream_model import Step, makespan, waits_needed
from npusim.compiler.streams import regions
from npusim.errors import GraphError, UnsupportedError
from npusim.frontends.reference import evaluate
from npusim.ir import Graph
from npusim.machine.arena import Arena
from npusim.machine.functional import FunctionalExecutor
from npusim.machine.run import run_executable
from npusim.models import build_model, random_inputs
from npusim.models.builder import GraphBuilder
from npusim.program.executable import Executable, verify_executable
from npusim.program.order import ordered_before

CHIP = CHIPS["ascend910a"]


def conv(g: GraphBuilder, name: str, x: str, channels: int, kernel: int) -> str:
    """Convolution of the same size, bias, ReLU."""
    fan_in = g.shape(x)[1] * kernel**2
    w = g.weight(f"{name}.w", (channels, g.shape(x)[1], kernel, kernel), fan_in**-0.5)
    y = g.node("Conv", name, x, w, g.weight(f"{name}.b", (channels,), 0.1),
               kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4)  # fmt: skip
    return g.node("Relu", f"{name}.relu", y)


def inception(size: int = 7, channels: int = 128, blocks: int = 2) -> Graph:
    """Blocks of four branches that a concatenation joins, as GoogLeNet's."""

    def write(g: GraphBuilder) -> str:
        x = g.input("x", (1, channels, size, size))
        for i in range(blocks):
            at = f"block{i}"
            pool = g.node("MaxPool", f"{at}.pool", x, kernel_shape=[3, 3], pads=[1] * 4,
                          strides=[1, 1])  # fmt: skip
            branches = (
                conv(g, f"{at}.1x1", x, 64, 1),
                conv(g, f"{at}.3x3", conv(g, f"{at}.3x3.reduce", x, 64, 1), 128, 3),
                conv(g, f"{at}.5x5", conv(g, f"{at}.5x5.reduce", x, 16, 1), 32, 5),
                conv(g, f"{at}.projection", pool, 32, 1),
            )
            x = g.node("Concat", f"{at}.concat", *branches, axis=1)
        return x

    return graph_of(write)


def compiled(graph: Graph, count: int, chip: str = "ascend910a", fp: str = "fp16") -> Executable:
    return api.compile_graph(graph, CHIPS[chip], options=CompileOptions(fp, streams=count))


@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])
def test_inception_is_quicker_and_computes_the_same(chip: str) -> None:
    graph = inception()
    inputs = random_inputs(graph)
    one, several = compiled(graph, 1, chip), compiled(graph, 4, chip)
    assert all(t.stream == 0 and not t.waits and t.records is None for t in one.tasks)
    assert len({t.stream for t in several.tasks}) > 1
    assert any("2 of 2 parallel regions" in note for note in several.notes)
    a, b = (api.run(exe, CHIPS[chip], inputs=inputs) for exe in (one, several))
    for name, value in a.outputs.items():
        np.testing.assert_array_equal(b.outputs[name], value)
    assert b.timeline.total_cycles < 0.85 * a.timeline.total_cycles
    full = api.run(several, CHIPS[chip], timing_only=True, detail="full").timeline
    assert b.timeline.total_cycles == pytest.approx(full.total_cycles, rel=0.02)


def test_tiles_compute_the_same_on_several_streams() -> None:
    graph = inception(5, 32, 1)
    inputs = random_inputs(graph)
    exe = compiled(graph, 4)
    assert len({t.stream for t in exe.tasks}) > 1
    a, b = (api.run(exe, CHIP, inputs=inputs, tile_level=tile).outputs for tile in (False, True))
    for name, value in a.items():
        assert api.compare(b[name], value).cosine > 0.999


def test_query_key_and_value_of_bert() -> None:
    """Kernels of all cores: what overlaps is their launches and gaps, a few per cent.

    In steps, as a compiler leaves them that neither joins the products nor fuses attention.
    """
    graph = build_model("bert-base", seq=128)
    fusions = frozenset({"AttentionQKVFusionPass", "FlashAttentionFusionPass"})
    options = CompileOptions(streams=3, disabled=fusions)
    found = compile_watched(graph, CHIP, options)
    exe = found.executable
    taken = [d for d in found.decisions if d.rewrite == streams.REWRITE and d.taken]
    second = [n for d in taken for n in d.nodes if "layer.1." in n]
    assert second and all(any(p in n for p in ("query", "key", "value")) for n in second)
    one = compile_graph(graph, CHIP, replace(options, streams=1))
    before = api.run(one, CHIP, timing_only=True).timeline.total_cycles
    after = api.run(exe, CHIP, timing_only=True).timeline.total_cycles
    assert 0.9 * before < after < 0.97 * before
    tasks = {t.name: t for t in exe.tasks}
    scores = next(t for n, t in tasks.items() if n.endswith("layer.0.attention.self.scores"))
    assert scores.waits


def test_it_is_left_where_it_does_not_pay() -> None:
    """Two branches of one large convolution each: the chip is full with one of them."""

    def write(g: GraphBuilder) -> str:
        x = conv(g, "first", g.input("x", (4, 128, 56, 56)), 128, 1)
        return g.node("Concat", "join", conv(g, "a", x, 128, 3), conv(g, "b", x, 128, 3), axis=1)

    found = compile_watched(graph_of(write), CHIP, CompileOptions(streams=4))
    assert {t.stream for t in found.executable.tasks} == {0}
    (refused,) = [d for d in found.decisions if d.rewrite == streams.REWRITE]
    assert not refused.taken and refused.reason
    assert all(t.records is None for t in found.executable.tasks)


@pytest.mark.parametrize("count", [0, 1025])
def test_streams_that_the_chip_does_not_have(count: int) -> None:
    with pytest.raises(UnsupportedError, match=rf"{count} streams on ascend910a"):
        compiled(inception(), count)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([6, 14]), st.integers(2, 4))
def test_random_graphs_spread_over_streams_at_any_price(seed: int, steps: int, count: int) -> None:
    """Every chain on a stream where that is possible: numbers as numpy's, freed memory poisoned."""
    rng = random.Random(seed)
    graph = random_graph(rng.choice, steps)
    chip = rng.choice(list(CHIPS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "WORTHWHILE", -1e9)
        exe = compiled(graph, count, chip, "fp32")
    inputs = random_inputs(graph)
    want = evaluate(graph, inputs)
    for name, value in poisoned(exe, inputs, chip).items():
        found = api.compare(value, want[name])
        assert found.max_rel_err < 1e-4 or found.max_abs_err < 1e-6, (name, found)


# -- memory in a partial order -------------------------------------------------------------


class Poison(FunctionalExecutor):
    """Fills memory with NaN patterns as soon as all the tasks that touch it are over."""

    def begin(self, exe: Executable) -> None:
        last = len(exe.tasks) - 1
        index = {t.name: i for i, t in enumerate(exe.tasks)}
        keep = {exe.buffers[n].address for n in (*exe.inputs, *exe.outputs)}
        self._left = [
            (life, set(life.users)) for life in exe.memory.lifetimes
            if life.users and life.address not in keep and life.last <= last
        ]  # fmt: skip
        self._index = index

    def execute(self, task, seen=None) -> None:  # type: ignore[no-untyped-def]
        super().execute(task, seen)
        for life, users in self._left:
            if self._index[task.name] in users:
                users.discard(self._index[task.name])
                if not users:
                    self._arena.fill(life.address, life.nbytes, 0xFF)


def poisoned(exe: Executable, inputs: dict[str, np.ndarray], chip: str) -> dict[str, np.ndarray]:
    arena = Arena(exe)
    arena.load_constants()
    arena.load_inputs(inputs)
    executor = Poison(exe, CHIPS[chip], arena)
    executor.begin(exe)
    run_executable(exe, CHIPS[chip], executor)
    return arena.outputs()


def test_freed_memory_is_not_needed_and_it_would_tell() -> None:
    graph = inception()
    inputs = random_inputs(graph)
    exe = compiled(graph, 4)
    want = api.run(exe, CHIP, inputs=inputs).outputs
    got = poisoned(exe, inputs, "ascend910a")
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value)
    joins = {t.name for t in exe.tasks if t.op_type == "Concat"}
    exe.tasks = [replace(t, waits=()) if t.name in joins else t for t in exe.tasks]
    with pytest.raises(GraphError, match="in no order"):
        verify_executable(exe)
    for name, value in api.run(exe, CHIP, inputs=inputs).outputs.items():
        assert not np.array_equal(want[name], value)


def test_a_plan_for_one_stream_is_refused_on_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer that is free in the order of the list need not be free in that of the streams."""
    monkeypatch.setattr("npusim.compiler.memory._order", lambda lowered: None)
    with pytest.raises(GraphError, match=r"both touch .* in no order"):
        compiled(inception(14, 512, 2), 4)


def test_memory_of_branches_is_apart() -> None:
    """Tasks 0 → (1, 2 beside 3) → 4: what 1 makes for 2 meets what 3 makes, in any list order."""
    tasks = [(0, (), 0), (0, (), None), (0, (), None), (1, (0,), 1), (0, (1,), None)]
    items = [_Item(str(i), *t) for i, t in enumerate(tasks)]
    before = ordered_before(items)
    inner = Slot(512, 1, 2, users=0b00110, before=before[1])
    other = Slot(512, 3, 4, users=0b11000, before=before[3])
    after = Slot(512, 4, 4, users=0b10000, before=before[4])
    assert inner.meets(other) and other.meets(inner)
    assert not inner.meets(after) and not after.meets(inner)
    assert not replace(inner, before=None).meets(other)  # by list order


class _Item:
    def __init__(self, name: str, stream: int, waits: tuple[int, ...], records: int | None) -> None:
        self.name, self.stream, self.waits, self.records = name, stream, waits, records


# -- the parts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("needs", "found"),
    [
        ([[], [0], [1], [2]], []),  # a chain
        ([[], [0], [0], [1, 2]], [[0, 1, 2, 3]]),
        ([[], [0], [0, 1]], []),  # a shortcut past one task: nothing beside it
        ([[], [0], [1], [0], [2, 3], [4]], [[0, 1, 2, 3, 4]]),
        ([[], [], [0, 1], [2], [2], [3], [4]], [[0, 1, 2], [2, 3, 4, 5, 6]]),
    ],
)
def test_regions(needs: list[list[int]], found: list[list[int]]) -> None:
    assert regions(needs) == found


def test_events_that_the_order_needs() -> None:
    # 0 → 1, 2 (stream 1) → 3, 4 (stream 1) → 5: task 4 knows 0 through task 2.
    needs = [[], [0], [0], [1, 2], [0, 2], [0, 3, 4]]
    assert waits_needed([0, 0, 1, 0, 1, 0], needs) == [[], [], [0], [2], [], [4]]
    assert waits_needed([0] * 6, needs) == [[]] * 6


def step(cores: int, body: float = 1000.0, **more: float) -> Step:
    return Step(100.0, 10.0, body, {"AI_CORE": cores}, **more)


@pytest.mark.parametrize(
    ("steps", "placed", "cycles"),
    [
        ([step(16), step(16)], [0, 0], 2 * 1110 + 500),  # one after the other, with a gap
        ([step(16), step(16)], [0, 1], 1110 + 10),  # blocks one at a time
        ([step(32), step(32)], [0, 1], 100 + 2 * 1010),  # cores one after the other
        ([step(16), step(16, l2_bytes=1e9)], [0, 1], None),  # more than L2 gives
    ],
)
def test_estimated_time(steps: Sequence[Step], placed: list[int], cycles: float | None) -> None:
    if cycles is None:
        cycles = 100 + 20 + 1e9 / CHIP.l2_rate
    assert makespan(steps, placed, [[], []], CHIP) == pytest.approx(cycles)


def test_estimated_time_of_a_join() -> None:
    """Recording and waiting cost 500 cycles each."""
    steps = [step(8), step(8, 3000.0), step(8)]
    serial = makespan(steps, [0, 0, 0], [[], [], []], CHIP)
    assert serial == pytest.approx(3 * 110 + 5000 + 2 * 500)
    joined = makespan(steps, [0, 1, 0], [[], [], [1]], CHIP)
    assert joined == pytest.approx(100 + 20 + 3000 + 500 + 500 + 1110)
