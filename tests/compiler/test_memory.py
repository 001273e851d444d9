"""The memory plan: live buffers apart, aligned, views where their root is, within the HBM."""

from __future__ import annotations

import random

import numpy as np
import pytest
from compiling import CHIPS, check_run, compiled, graph_of
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import random_graph

from npusim import api
from npusim.chip import load_chip
from npusim.compiler.memory import _FreeList, align
from npusim.errors import UnsupportedError
from npusim.models.builder import GraphBuilder
from npusim.program.executable import GM_ALIGN, Buffer, Executable


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
        for name in filter(None, task.inputs):
            assert exe.buffers[name].address not in {exe.buffers[o].address for o in task.outputs}
    for name in (*exe.outputs, *exe.constants):
        read(name)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([4, 10, 20]))
def test_live_buffers_do_not_overlap(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng.choice, steps)
    check_plan(compiled(graph, rng.choice(list(CHIPS)), "fp16"))


@settings(max_examples=100)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=60), st.randoms())
def test_free_list(steps: list[tuple[bool, int]], rng: random.Random) -> None:
    free, taken = _FreeList(), dict[int, int]()
    for take, units in steps:
        if take or not taken:
            size = units * GM_ALIGN
            at = free.take(size)
            assert all(at + size <= lo or lo + n <= at for lo, n in taken.items())
            taken[at] = size
            assert at + size <= free.top
        else:
            at = rng.choice(list(taken))
            free.give(at, taken.pop(at))
    for at, size in list(taken.items()):
        free.give(at, size)
    assert free.take(free.top) == 0 if free.top else True  # the gaps have joined again


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
        g.output(z)
        return g.node("Softmax", "y", x)

    exe = check_run(graph_of(write), precision="fp32")
    assert exe.buffers["r"].address == exe.buffers["u"].address == exe.buffers["relu"].address
    assert [t.op_type for t in exe.tasks] == ["Relu", "Softmax", "Softmax"]
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
