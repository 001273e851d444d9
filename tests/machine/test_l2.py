"""L2 residency: bytes close, nothing leaves while there is room, old ranges fade as a whole."""

from __future__ import annotations

from math import exp, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.machine.l2 import L2Cache

RANGES = st.tuples(st.integers(0, 60), st.integers(0, 40)).map(lambda r: (r[0], r[0] + r[1]))


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 80), st.lists(RANGES, max_size=25))
def test_bytes_close(size: int, touches: list[tuple[int, int]]) -> None:
    """What is there is what was there and what came, less what left; never above the size."""
    cache = L2Cache(size)
    held = 0.0
    for start, end in touches:
        touched = cache.touch([(start, end)])
        (missing,) = touched.missing
        now = cache.resident(0, 100)
        assert 0 <= touched.evicted <= missing + 1e-9
        assert missing <= end - start + 1e-9
        assert now <= size + 1e-9
        assert now <= held + missing - touched.evicted + 0.11  # ranges under 0.1 % are forgotten
        held = now
        parts = sum(cache.resident(lo, lo + 10) for lo in range(0, 100, 10))
        assert parts == pytest.approx(now)


@settings(max_examples=100, deadline=None)
@given(st.lists(RANGES, max_size=25))
def test_all_stays_where_there_is_room(touches: list[tuple[int, int]]) -> None:
    cache = L2Cache(100)
    seen: set[int] = set()
    for start, end in touches:
        touched = cache.touch([(start, end)])
        assert touched.evicted == 0
        assert sum(touched.missing) == pytest.approx(len(set(range(start, end)) - seen))
        seen |= set(range(start, end))
        assert cache.resident(0, 100) == pytest.approx(len(seen))


def test_a_full_cache_fades_evenly() -> None:
    cache = L2Cache(100)
    cache.touch([(0, 60), (60, 100)])
    assert cache.touch([(200, 250)]).evicted == 50
    assert cache.resident(0, 60) == pytest.approx(60 * exp(-0.5))
    assert cache.resident(60, 100) == pytest.approx(40 * exp(-0.5))
    assert cache.resident(200, 250) == pytest.approx(100 - 100 * exp(-0.5))


def test_a_tensor_larger_than_the_cache_pushes_out_its_own_end_before_it_is_read_again() -> None:
    cache = L2Cache(100)
    assert cache.touch([(0, 200)]).evicted == 100
    assert cache.resident(0, 200) == pytest.approx(100)
    came = 100 * log(0.5 + 0.5 * exp(2))  # p = 1/2 of it resident, N / C = 2
    again = cache.touch([(0, 200)])
    assert again.missing == (pytest.approx(came),)
    assert again.evicted == pytest.approx(came)


def test_what_is_read_beside_others_is_pushed_out_by_them() -> None:
    alone, beside = L2Cache(100), L2Cache(100)
    for cache in (alone, beside):
        cache.touch([(0, 50), (1000, 1050)])
    assert alone.touch([(0, 50)]).missing == (0,)
    there, new = beside.touch([(0, 50), (500, 800)]).missing
    assert 0 < there < 50
    assert new == 300


def test_a_flood_leaves_nothing_and_overflows_nothing() -> None:
    cache = L2Cache(100)
    cache.touch([(0, 100)])
    assert cache.touch([(1000, 10**9)]).missing == (10**9 - 1000,)
    assert cache.resident(0, 100) == 0
