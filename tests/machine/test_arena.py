"""Device memory: views at planned addresses, conversions on the way in, errors."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.errors import ModelError
from npusim.ir import Constant, DType, Layout
from npusim.machine.arena import Arena
from npusim.program.executable import Buffer, Executable, MemoryPlan


def _arena() -> Arena:
    buffers = {
        "x": Buffer("x", 0, (2, 3), DType.FLOAT32),
        "blocked": Buffer("blocked", 512, (1, 3, 2, 2), DType.FLOAT16, Layout.NC1HWC0),
        "w": Buffer("w", 1024, (4,), DType.FLOAT16),
        "view": Buffer("view", 0, (6,), DType.FLOAT32),
    }
    constants = {"w": Constant.of(np.array([1, 2, 3, 1e9], np.float32))}
    plan = MemoryPlan(2048, 512, 1536, 2048)
    return Arena(Executable("tiny", "toy", "fp16", [], buffers, constants, ["x"], ["view"], plan))


def test_inputs_and_views_share_bytes() -> None:
    arena = _arena()
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    arena.load_inputs({"x": x})
    np.testing.assert_array_equal(arena.read("view"), x.ravel())
    arena.storage("x")[1, 2] = 70
    assert arena.outputs()["view"][5] == 70
    copy = arena.outputs()["view"]
    arena.storage("x")[1, 2] = 71
    assert copy[5] == 70  # outputs are copies


def test_layouts_pack_and_pad_with_zeros() -> None:
    arena = _arena()
    value = np.random.default_rng(0).standard_normal((1, 3, 2, 2)).astype(np.float16)
    arena.storage("blocked")[...] = 9
    arena.write("blocked", value)
    np.testing.assert_array_equal(arena.read("blocked"), value)
    assert arena.storage("blocked").shape == (1, 1, 2, 2, 16)
    assert not arena.storage("blocked")[..., 3:].any()


def test_constants_are_converted() -> None:
    arena = _arena()
    arena.load_constants()
    np.testing.assert_array_equal(arena.read("w"), np.array([1, 2, 3, 65504], np.float16))


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, ["'x' is missing", "float32 of shape (2, 3)"]),
        ({"x": np.zeros((3, 2), np.float32)}, ["'x' is float32 of shape (3, 2)"]),
        ({"x": np.zeros((2, 3), np.int64)}, ["'x' is int64 of shape (2, 3)"]),
        ({"x": np.zeros((2, 3), np.float32), "z": np.zeros(1)}, ["'z' is not an input", "x"]),
    ],
)
def test_wrong_inputs(inputs: dict[str, np.ndarray], words: list[str]) -> None:
    with pytest.raises(ModelError) as error:
        _arena().load_inputs(inputs)
    assert len(str(error.value).splitlines()) == 3
    assert all(w in str(error.value) for w in words)


def test_channels_last_is_seen_in_raw_bytes_only() -> None:
    plain = _arena()
    exe = plain._exe
    value = np.random.default_rng(0).standard_normal((1, 3, 2, 2)).astype(np.float16)
    for arena in (Arena(exe, channels_last=True), Arena(exe, channels_last=True).at({})):
        for one in (plain, arena):
            one.write("blocked", value)
        np.testing.assert_array_equal(arena.storage("blocked"), plain.storage("blocked"))
        np.testing.assert_array_equal(arena.read("blocked"), value)
        assert arena.storage("blocked").transpose(0, 2, 3, 1, 4).flags.c_contiguous
        assert arena.raw("blocked").nbytes == plain.raw("blocked").nbytes
