"""Scratch memory of a thread's work, and copies of runs: against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.ops.scratch import START, Scratch, copy_runs, framed, runs


@given(st.lists(st.integers(0, START), max_size=6))
def test_arrays_do_not_overlap_and_begin_on_cache_lines(sizes: list[int]) -> None:
    scratch = Scratch()
    arrays = [scratch.array((n,)) for n in sizes]
    for value, a in enumerate(arrays):
        a.fill(value)
    for value, a in enumerate(arrays):
        assert (a == value).all() and a.dtype == np.float32
    scratch.used = 0
    first = scratch.array((1,))
    second = scratch.array((1,))
    assert second.ctypes.data - first.ctypes.data == 64


def test_memory_is_used_again_from_where_it_is_given_up() -> None:
    scratch = Scratch()
    kept = scratch.array((100,))
    before = scratch.used
    given_up = scratch.array((50,))
    scratch.used = before
    again = scratch.array((20,))
    assert again.ctypes.data == given_up.ctypes.data
    assert not np.may_share_memory(kept, again)


@pytest.mark.parametrize("kind", ["contiguous", "blocks", "every second", "cut", "single"])
def test_runs_are_copied_as_elements_would_be(kind: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5, 16)).astype(np.float32)
    source = {
        "contiguous": x,
        "blocks": x.transpose(0, 2, 3, 1, 4),
        "every second": x[..., ::2],
        "cut": x[..., :3],
        "single": x[..., :1],
    }[kind]
    target = np.zeros(source.shape, np.float32)
    copy_runs(target, source)
    np.testing.assert_array_equal(target, source)


def test_runs_of_overlapping_windows() -> None:
    x = np.arange(24, dtype=np.float32)
    windows = runs(x, (5, 8), (16,))  # 8 elements, every 4
    out = np.zeros((5, 8), np.float32)
    out.view(windows.dtype)[:, 0] = windows
    np.testing.assert_array_equal(out, np.lib.stride_tricks.sliding_window_view(x, 8)[:17:4])


@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_a_frame_of_zeros(top: int, bottom: int, left: int, right: int) -> None:
    a = np.full((2, 4 + top + bottom, 5 + left + right, 3), np.nan)
    inside = framed(a, slice(top, top + 4), slice(left, left + 5))
    inside[...] = 1
    want = np.pad(np.ones((4, 5)), ((top, bottom), (left, right)))
    np.testing.assert_array_equal(a, np.broadcast_to(want[..., None], a.shape))
