"""The memory plan: live buffers apart, aligned, views where their root is, within the HBM."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from compiling import CHIPS, check_run, compiled, graph_of
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import random_graph

from npusim import api
from npusim.chip import load_chip
from npusim.compiler import CompileOptions
from npusim.compiler.memory import Slot, align, lower_bound, place
from npusim.errors import UnsupportedError
from npusim.machine.arena import Arena
from npusim.machine.functional import FunctionalExecutor
from npusim.models import build_model, random_inputs
from npusim.models.builder import GraphBuilder
from npusim.program.executable import GM_ALIGN, Buffer, Executable
from npusim.program.kernel import get_kernel


def check_plan(exe: Executable) -> None:
    """Walk the tasks: whoever reads a buffer finds it whole, as its maker wrote it.

    A buffer that no task makes is a view: it finds one whole buffer of its size.
    """
    for b in exe.buffers.values():
        assert b.address % GM_ALIGN == 0 and b.address + b.nbytes <= exe.memory.peak_bytes
    m = exe.memory
    assert m.peak_bytes == m.weight_bytes + m.activation_bytes == m.arena_bytes
    made = {o for t in exe.tasks for o in t.outputs} | {*exe.inputs, *exe.constants}
    there: dict[str, Buffer] = {}  # whole buffers in memory, by name

    def write(name: str) -> None:
        b = exe.buffers[name]
        for other, o in list(there.items()):
            if b.address < o.address + o.nbytes and o.address < b.address + b.nbytes:
                assert not {other, name} <= exe.constants.keys(), (other, name)
                del there[other]
        there[name] = b

    def read(name: str) -> None:
        b = exe.buffers[name]
        found = [n for n, o in there.items() if (o.address, o.nbytes) == (b.address, b.nbytes)]
        assert found and (name not in made or found == [name]), (name, found)

    for name in (*exe.constants, *exe.inputs):
        write(name)
    for task in exe.tasks:
        for name in filter(None, task.inputs):
            read(name)
        for name in filter(None, task.outputs):
            write(name)
        over = get_kernel(task.call.kernel).replaceable(task.call.args) if task.call else ()
        for i, name in enumerate(task.inputs):
            at = {exe.buffers[o].address for o in task.outputs}
            assert not name or i in over or exe.buffers[name].address not in at
    for name in (*exe.outputs, *exe.constants):
        read(name)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([4, 10, 20]))
def test_live_buffers_do_not_overlap(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng.choice, steps)
    check_plan(compiled(graph, rng.choice(list(CHIPS)), "fp16"))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.integers(0, 20), st.integers(0, 8)).map(
            lambda t: Slot(t[0] * GM_ALIGN, t[1], t[1] + t[2])
        ),
        max_size=30,
    )
)
def test_placed_slots_do_not_meet(slots: list[Slot]) -> None:
    top = place(slots)
    assert lower_bound(slots) <= top == max((s.offset + s.size for s in slots), default=0)
    for i, a in enumerate(slots):
        for b in slots[:i]:
            apart = a.offset + a.size <= b.offset or b.offset + b.size <= a.offset
            assert apart or not a.meets(b)
    live = [sum(s.size for s in slots if s.first <= t <= s.last) for t in range(30)]
    assert lower_bound(slots) == max(live)


MODELS = [
    ("resnet50", {"height": 64, "width": 64}), ("resnet18", {}), ("bert-base", {"seq": 16}),
    ("bert-tiny", {}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "sizes"), MODELS)
def test_within_5_percent_of_the_lower_bound(model: str, sizes: dict[str, int]) -> None:
    graph = build_model(model, **sizes)
    for chip in ("ascend910a", "ascend910b2"):
        plan = api.compile_graph(graph, CHIPS[chip]).memory
        assert plan.lower_bound <= plan.activation_bytes <= 1.05 * plan.lower_bound


@pytest.mark.parametrize("model", ["resnet50", "bert-base"])
def test_reuse_saves_60_percent(model: str) -> None:
    graph, chip = build_model(model), CHIPS["ascend910a"]
    exe = api.compile_graph(graph, chip)
    separate = api.compile_graph(graph, chip, options=CompileOptions(reuse_memory=False))
    assert exe.memory.activation_bytes <= 0.4 * separate.memory.activation_bytes
    check_plan(separate)


@pytest.mark.parametrize(("model", "sizes"), MODELS[1:])
def test_freed_memory_is_not_needed(model: str, sizes: dict[str, int]) -> None:
    """Every range is poisoned as soon as nobody is in it: the outputs stay what they are."""
    if model == "resnet18":
        sizes = {"height": 32, "width": 32}
    graph, chip = build_model(model, **sizes), CHIPS["ascend910a"]
    exe = api.compile_graph(graph, chip)
    inputs = random_inputs(graph)
    want = api.run(exe, chip, inputs=inputs).outputs
    got = poisoned(exe, inputs)
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value)
    # And it would tell: a life that ends too early changes the numbers.
    life = max(exe.memory.lifetimes, key=lambda x: x.last - x.first)
    early = replace(life, last=life.last - 1)
    lives = tuple(early if x is life else x for x in exe.memory.lifetimes)
    exe.memory = replace(exe.memory, lifetimes=lives)
    bad = poisoned(exe, inputs)
    assert any(not np.array_equal(bad[n], v, equal_nan=False) for n, v in want.items())


def poisoned(exe: Executable, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of a run that fills all that is free with NaN patterns after every task."""
    arena = Arena(exe)
    arena.load_constants()
    arena.load_inputs(inputs)
    executor = FunctionalExecutor(exe, CHIPS["ascend910a"], arena)
    for i, task in enumerate(exe.tasks):
        executor.execute(task)
        keep = [(x.address, x.nbytes) for x in exe.memory.alive(i + 1)]
        for dead in exe.memory.lifetimes:
            if dead.last == i < len(exe.tasks) - 1:
                arena.fill(dead.address, dead.nbytes, 0xFF, keep)
    return arena.outputs()


def test_results_lie_in_place_of_operands_only_where_that_is_legal() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (64, 64))
        a = g.node("Transpose", "a", x)
        b = g.node("Exp", "b", a)  # over a
        c = g.node("Add", "c", b, g.node("Transpose", "s", b))  # over b or s
        d = g.node("Mul", "d", c, g.node("Transpose", "t", g.node("Exp", "e", c)))
        return g.node("MatMul", "m", d, d)  # no kernel that works in place

    exe = check_run(graph_of(write), precision="fp32")
    at = {n: b.address for n, b in exe.buffers.items()}
    assert at["b"] == at["a"]
    assert at["c"] in (at["b"], at["s"])
    assert at["e"] != at["c"]  # c is read later
    assert at["m"] != at["d"] and at["a"] != at["x"]  # the caller's input stays
    check_plan(exe)


def test_a_residual_gives_way_to_the_result() -> None:
    """Where vector cores add it tile by tile; the image, of the same shape, does not."""

    def write(g: GraphBuilder) -> str:
        x = g.node("Tanh", "x", g.input("in", (2, 32, 9, 9)))
        r = g.node("Neg", "r", x)
        y = g.node("Conv", "c", x, g.weight("w", (32, 32, 1, 1), 0.2))
        return g.node("Tanh", "y", g.node("Add", "sum", y, r))

    exe = check_run(graph_of(write), "ascend910b2", "fp16", tile_level=True)
    (conv,) = (t for t in exe.tasks if t.op_type == "Conv")
    result, (image, *_, residual) = conv.outputs[0], conv.inputs
    assert exe.buffers[result].address == exe.buffers[residual].address
    assert exe.buffers[result].address != exe.buffers[image].address
    check_plan(exe)


def test_alignment() -> None:
    assert [align(n) for n in (0, 1, 512, 513)] == [512, 512, 512, 1024]


def test_memory_is_reused() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (64, 64))
        for i in range(12):
            x = g.node("Softmax", f"s{i}", x)
        return x

    exe = check_run(graph_of(write), precision="fp32")
    assert exe.memory.activation_bytes <= 3 * 64 * 64 * 4
    check_plan(exe)


def test_views_share_their_roots_memory() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.node("Relu", "relu", g.input("x", (4, 6)))
        y = g.node("Reshape", "r", x, g.ints("shape", [2, 12]))
        z = g.node("Softmax", "z", g.node("Unsqueeze", "u", y, g.ints("axes", [0])))
        g.output(z, g.node("Softmax", "of_r", y))
        return g.node("Softmax", "y", x)

    exe = check_run(graph_of(write), precision="fp32")
    assert exe.buffers["r"].address == exe.buffers["u"].address == exe.buffers["relu"].address
    assert [t.op_type for t in exe.tasks] == ["Relu", *["Softmax"] * 3]
    check_plan(exe)


@pytest.mark.parametrize("source", ["input", "constant"])
def test_a_view_that_is_an_output_has_its_own_memory(source: str) -> None:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (4, 6))
        root = x if source == "input" else g.weight("w", (4, 6), 1.0)
        g.output(g.node("Neg", "other", x))
        return g.node("Reshape", "y", root, g.ints("shape", [24]))

    for precision in ("fp32", "fp16"):
        check_run(graph_of(write), precision=precision)


def test_an_input_that_is_an_output() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (4, 6))
        for i in range(4):
            g.output(g.node("Neg", f"n{i}", x))
        return x

    for precision in ("fp32", "fp16"):
        check_run(graph_of(write), precision=precision)


def test_too_large_for_the_device() -> None:
    graph = graph_of(
        lambda g: g.node("MatMul", "y", g.input("x", (8, 4096)), g.weight("w", (4096, 4096), 1.0))
    )
    chip = load_chip("ascend910a", ["hbm.size=32MiB"])
    with pytest.raises(UnsupportedError) as error:
        api.compile_graph(graph, chip, precision="fp16")
    lines = str(error.value).splitlines()
    assert len(lines) == 3 and "MiB too much" in lines[0] and "hbm.size" in lines[2]
    assert api.compile_graph(graph, load_chip("ascend910a", ["hbm.size=34MiB"]))


def test_a_wrong_plan_gives_wrong_numbers() -> None:
    """The arena is real: two live buffers at one address destroy each other."""

    def write(g: GraphBuilder) -> str:
        x = g.input("x", (32, 32))
        a = g.node("Softmax", "a", x)
        return g.node("MatMul", "y", a, g.node("Softmax", "b", g.node("Neg", "n", x)))

    exe = compiled(graph_of(write), "ascend910b2", "fp32")
    chip, x = CHIPS["ascend910b2"], np.random.default_rng(0).standard_normal((32, 32), np.float32)
    right = api.run(exe, chip, inputs={"x": x}).outputs["y"]
    a, b = exe.buffers["a"], exe.buffers["b"]
    exe.buffers["b"] = Buffer("b", a.address, b.shape, b.dtype, b.layout)
    wrong = api.run(exe, chip, inputs={"x": x}).outputs["y"]
    assert np.abs(right - wrong).max() > 1e-3
