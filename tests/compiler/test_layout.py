"""NC1HWC0 where it pays, TransData where layouts meet, and padding that harms nobody."""

from __future__ import annotations

import numpy as np
import pytest
from compiling import CHIPS, check_run, compiled, count, graph_of
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim import api
from npusim.ir import Graph, Layout
from npusim.models.builder import GraphBuilder
from npusim.program.executable import Executable

#: Elementwise operators of one tensor, also those that are infinite at 0.
FUNCTIONS = (
    "Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Reciprocal", "Softplus", "HardSigmoid", "Erf",
    "Gelu", "Elu", "Neg", "Abs", "LeakyRelu", "HardSwish",
)  # fmt: skip


def _image(g: GraphBuilder, c: int = 3) -> str:
    return g.input("x", (1, c, 7, 6))


def _conv(g: GraphBuilder, x: str, name: str, co: int) -> str:
    w = g.weight(f"{name}_w", (co, g.shape(x)[1], 3, 3), 0.3)
    return g.node("Conv", name, x, w, g.weight(f"{name}_b", (co,), 0.3), pads=[1] * 4)


def _layouts(exe: Executable) -> dict[str, Layout]:
    return {t.name: exe.buffers[t.outputs[0]].layout for t in exe.tasks}


def test_a_chain_of_convolutions_converts_twice() -> None:
    def write(g: GraphBuilder) -> str:
        x = _conv(g, _image(g), "a", 24)
        x = _conv(g, g.node("MaxPool", "pool", x, kernel_shape=[2, 2]), "b", 20)
        return g.node("GlobalAveragePool", "y", g.node("Tanh", "tanh", x))

    exe = check_run(graph_of(write))
    assert count(exe, "TransData") == 2  # the input's and the output's
    assert set(_layouts(exe).values()) == {Layout.ND, Layout.NC1HWC0}


def test_one_conversion_serves_all_readers() -> None:
    def write(g: GraphBuilder) -> str:
        x = _image(g)
        return g.node("Add", "y", _conv(g, x, "a", 8), _conv(g, x, "b", 8))

    assert count(check_run(graph_of(write)), "TransData") == 2


def test_per_channel_constants_and_scalars_join() -> None:
    def write(g: GraphBuilder) -> str:
        y = g.node("Mul", "m", _conv(g, _image(g), "a", 19), g.weight("s", (19, 1, 1), 1.0))
        y = g.node("Sub", "d", g.weight("t", (1, 19, 1, 1), 1.0), y)
        return g.node("Mul", "y", g.constant("half", 0.5), y)

    exe = check_run(graph_of(write), tile_level=True)
    assert count(exe, "TransData") == 2


def test_a_row_constant_does_not() -> None:
    def write(g: GraphBuilder) -> str:
        return g.node("Mul", "m", _conv(g, _image(g), "a", 19), g.weight("s", (6,), 1.0))

    exe = check_run(graph_of(write), tile_level=True)
    assert _layouts(exe)["m"] is Layout.ND


def test_channel_concat() -> None:
    def write(g: GraphBuilder, co: int) -> str:
        x = _image(g)
        return g.node("Concat", "y", _conv(g, x, "a", co), _conv(g, x, "b", 16), axis=1)

    for co, trans in ((32, 2), (24, 3)):  # ragged channels meet in ND
        exe = check_run(graph_of(lambda g, co=co: write(g, co)), tile_level=True)
        assert count(exe, "TransData") == trans


def test_an_output_inside() -> None:
    def write(g: GraphBuilder) -> str:
        a = _conv(g, _image(g), "a", 8)
        g.output(a)
        return _conv(g, a, "b", 8)

    exe = check_run(graph_of(write))
    assert all(exe.buffers[o].layout is Layout.ND for o in exe.outputs)


def test_one_value_is_no_block() -> None:
    """A 1 × 1 × 1 × 1 result broadcasts as one number, not as a block of 16 lanes."""

    def write(g: GraphBuilder) -> str:
        x = _image(g)
        one = g.node("GlobalAveragePool", "gap", _conv(g, x, "one", 1))
        return g.node("Mul", "y", _conv(g, x, "many", 21), g.node("Sigmoid", "gate", one))

    for tile_level in (False, True):
        check_run(graph_of(write), precision="fp32", chip="ascend910b2", tile_level=tile_level)


# -- padding --------------------------------------------------------------------------------------


def _padded(functions: list[str], channels: int, second: str) -> Graph:
    """Conv, functions of 1 + |x|, an operator of two tensors, Conv: padding meets weights."""

    def write(g: GraphBuilder) -> str:
        a = _conv(g, _image(g), "a", channels)
        b = g.node("Abs", "abs", a)
        for i, op_type in enumerate(functions):
            if op_type in ("Log", "Sqrt", "Reciprocal"):
                b = g.node("Add", f"one{i}", g.node("Abs", f"abs{i}", b), g.constant(f"c{i}", 1.0))
            b = g.node(op_type, f"f{i}", b)
        b = g.node("Tanh", "bounded", b)
        away = g.weight("d", (channels, 1, 1), 0.1, 2.0)
        divisor = g.node("Add", "away", g.node("Abs", "positive", b), away)
        return _conv(g, g.node(second, "two", a, divisor), "last", 5)

    return graph_of(write)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_padding_never_leaks(data: st.DataObject) -> None:
    functions = data.draw(st.lists(st.sampled_from(FUNCTIONS), max_size=3))
    channels = data.draw(st.integers(1, 40))
    second = data.draw(st.sampled_from(["Div", "Mul", "Add", "Sub", "Max", "Pow"]))
    if second == "Pow":  # of a positive number
        functions, second = [*functions, "Abs"], "Max"
    graph = _padded(functions, channels, second)
    tile_level = data.draw(st.booleans())
    check_run(graph, data.draw(st.sampled_from(["toy", "ascend910a"])), "fp16", tile_level)
    check_run(graph, "ascend910b2", "fp32", tile_level)


@pytest.mark.parametrize("tile_level", [False, True])
@pytest.mark.parametrize("op_type", ["Div", "Reciprocal", "Log", "Exp"])
def test_infinities_stay_out(op_type: str, tile_level: bool) -> None:
    """Padding that would be inf or NaN at the second convolution."""

    def write(g: GraphBuilder) -> str:
        x = _conv(g, _image(g), "a", 5)
        positive = g.node("Add", "p", g.node("Abs", "abs", x), g.weight("one", (5, 1, 1), 0.1, 1.0))
        if op_type == "Exp":  # e^0 = 1 would be finite three times, e^(1000 · 1) is not
            x = g.node(
                "Mul",
                "k",
                g.node("Exp", "e", g.node("Neg", "n", positive)),
                g.constant("big", 200.0),
            )
            x = g.node("Exp", "ee", g.node("Min", "m", x, g.weight("c", (5, 1, 1), 0.1, 1.0)))
        elif op_type == "Div":
            x = g.node("Div", "d", x, positive)
        else:
            x = g.node(op_type, "f", positive)
        return _conv(g, x, "b", 4)

    check_run(graph_of(write), "ascend910b2", "fp32", tile_level)
    exe = check_run(graph_of(write), "ascend910a", "fp16", tile_level)
    assert op_type == "Exp" or count(exe, "TransData") > 2  # it ran in ND


def test_harmless_functions_stay_blocked() -> None:
    """Sigmoid makes 0.5 of the padding: no reason to leave NC1HWC0."""

    def write(g: GraphBuilder) -> str:
        a = _conv(g, _image(g), "a", 20)
        return _conv(g, g.node("Mul", "silu", a, g.node("Sigmoid", "s", a)), "b", 4)

    assert count(check_run(graph_of(write), tile_level=True), "TransData") == 2


def test_full_blocks_may_do_anything() -> None:
    def write(g: GraphBuilder) -> str:
        a = g.node("Exp", "e", _conv(g, _image(g), "a", 16))
        return _conv(g, g.node("Log", "log", a), "b", 4)

    assert count(check_run(graph_of(write)), "TransData") == 2


def test_padding_is_zero_or_finite_in_memory() -> None:
    """What the device memory itself holds in padded channels, after the whole run."""
    exe = compiled(_padded(["Sigmoid", "Exp"], 13, "Mul"), "toy")
    from npusim.machine.arena import Arena
    from npusim.machine.functional import FunctionalExecutor

    arena = Arena(exe)
    arena.load_constants()
    arena.load_inputs({"x": np.ones((1, 3, 7, 6), np.float32)})
    executor = FunctionalExecutor(exe, CHIPS["toy"], arena, tile_level=True)
    seen = 0
    for task in exe.tasks:
        executor.execute(task)
        if exe.buffers[task.outputs[0]].layout is Layout.NC1HWC0:
            seen += 1
            assert np.isfinite(arena.storage(task.outputs[0]).astype(np.float32)).all(), task.name
    assert seen > 3


def test_weights_in_fractals() -> None:
    def write(g: GraphBuilder) -> str:
        y = g.node("Flatten", "f", _conv(g, _image(g), "a", 8))
        return g.node("MatMul", "y", y, g.weight("w", (8 * 42, 10), 0.1))

    exe = check_run(graph_of(write))
    found = {b.layout for n, b in exe.buffers.items() if n in exe.constants}
    assert {Layout.FRACTAL_Z, Layout.FRACTAL_NZ} <= found


def test_transdata_round_trip() -> None:
    x = np.arange(2 * 19 * 5 * 3, dtype=np.float32).reshape(2, 19, 5, 3)
    graph = graph_of(lambda g: g.node("GlobalMaxPool", "y", g.input("x", x.shape)))
    for tile_level in (False, True):
        result = api.run(
            compiled(graph, "toy"), CHIPS["toy"], inputs={"x": x}, tile_level=tile_level
        )
        np.testing.assert_allclose(result.outputs["y"], x.max((2, 3), keepdims=True), rtol=1e-3)


def test_split_and_repeated_pixels_stay_blocked() -> None:
    def write(g: GraphBuilder) -> str:
        a, b = g.split("split", _conv(g, _image(g), "first", 48), [16, 32], axis=1)
        a = g.node("Concat", "joined", a, b, axis=1)
        sizes = g.ints("sizes", (1, 48, 14, 18))
        a = g.node("Resize", "up", a, "", "", sizes, mode="nearest")
        return _conv(g, a, "y", 8)

    exe = check_run(graph_of(write), tile_level=True)
    layouts = _layouts(exe)
    assert {layouts[n] for n in ("split", "joined", "up")} == {Layout.NC1HWC0}
    assert count(exe, "TransData") == 2


def test_a_split_through_a_block_of_channels_does_not() -> None:
    def write(g: GraphBuilder) -> str:
        a, b = g.split("split", _conv(g, _image(g), "first", 48), [8, 40], axis=1)
        return g.node("Concat", "y", _conv(g, a, "a", 8), _conv(g, b, "b", 8), axis=1)

    assert _layouts(check_run(graph_of(write)))["split"] is Layout.ND
