"""Vector clocks: what is known, and that copies go their own way."""

from __future__ import annotations

from npusim.sanitize.clocks import VectorClock


def test_a_clock_learns_and_does_not_forget() -> None:
    clock = VectorClock()
    assert clock["stream 0"] == 0
    clock.advance("stream 0", 3)
    clock.advance("stream 0", 2)
    assert clock["stream 0"] == 3


def test_join_takes_the_later_of_each_actor() -> None:
    a, b = VectorClock({"x": 1, (0, "V"): 7}), VectorClock({"x": 4, "y": 2})
    a.join(b)
    assert a == VectorClock({"x": 4, (0, "V"): 7, "y": 2})
    assert b == VectorClock({"x": 4, "y": 2})


def test_a_copy_is_its_own() -> None:
    a = VectorClock({"x": 1})
    b = a.copy()
    b.advance("x", 5)
    assert (a["x"], b["x"]) == (1, 5)
