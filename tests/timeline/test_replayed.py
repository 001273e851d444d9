"""Accuracy over replayed rows, by hand-made numbers."""

from __future__ import annotations

import pytest

from npusim.timeline.replayed import ReplayedOp, accuracy, grouped


def row(measured: float, predicted: float | None, count: int = 1, net: str = "a") -> ReplayedOp:
    return ReplayedOp(net, "n", "Add", count, measured, predicted, "", "HBM", 1.0, 1, 5.0)


def test_errors() -> None:
    found = accuracy([row(100, 150, count=2), row(100, 50), row(1, 4), row(99, None)])
    assert (found.rows, found.covered) == (4, 3)
    assert found.coverage == pytest.approx(301 / 400)
    assert found.weighted == pytest.approx((100 + 50 + 3) / 301)
    assert found.sum_error == pytest.approx(354 / 301 - 1)
    assert found.median_ape == pytest.approx(0.5)  # the row of 1 µs does not count
    assert found.bias == pytest.approx((1.5 * 0.5 * 4) ** (1 / 3) - 1)


def test_another_time_and_nothing_covered() -> None:
    assert accuracy([row(10, 10)], lambda op: op.roofline_us).weighted == pytest.approx(0.5)
    nothing = accuracy([row(10, None)])
    assert (nothing.coverage, nothing.median_ape, nothing.weighted) == (0.0, None, 0.0)


def test_groups_with_the_most_time_first() -> None:
    ops = [row(1, 1, net="a"), row(5, 5, net="b"), row(2, 2, net="a", count=4)]
    assert {k: len(v) for k, v in grouped(ops, lambda op: op.net).items()} == {"a": 2, "b": 1}
    assert list(grouped(ops, lambda op: op.net)) == ["a", "b"]
