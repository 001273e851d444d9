"""What a precision gives, and what it can give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npusim import api
from npusim.chip import load_chip
from npusim.explore.precision_gain import precision_gain
from npusim.timeline.ablated import CUBE, FIXED, MOVES, VECTOR

CHIP = load_chip("ascend910b2")


@pytest.mark.parametrize(("name", "batch"), [("resnet18", 32), ("bert-tiny", 1)])
def test_shares_and_ceiling(name: str, batch: int) -> None:
    graph = api.load_model(name, batch=batch).graph
    found = precision_gain(graph, CHIP, name=name, batch=batch)
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.cube_gain == 4 and found.gain == found.slow_us / found.fast_us
    assert 1 < found.ceiling < 4
    if name == "resnet18":
        assert found.shares[CUBE] > 0.5 and found.gain > 2
    else:
        assert found.shares[FIXED] > 0.5 and found.gain < 2


def test_amdahl() -> None:
    graph = api.load_model("bert-tiny").graph
    found = precision_gain(graph, CHIP, name="bert-tiny", batch=1)
    half = replace(found, shares={CUBE: 0.5, FIXED: 0.5})
    assert half.ceiling == pytest.approx(1 / (0.5 / 4 + 0.5))
    for kind, most in ((CUBE, 4), (MOVES, 2), (VECTOR, 2), (FIXED, 1)):
        assert replace(found, shares={kind: 1.0}).ceiling == most
