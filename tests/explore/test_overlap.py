"""The overlap study: what a claim needs, simulated and by arithmetic."""

from __future__ import annotations

import pytest

from npusim import api
from npusim.chip import load_chip
from npusim.explore.chunks import WAYS, ChunkWork
from npusim.explore.overlap import (
    HIDDEN,
    UTILISATION,
    claims_on_map,
    claims_on_study,
    overlap_map,
    overlap_study,
)
from npusim.timeline.overlapped import OverlapMap

CHIP = load_chip("ascend910a")


@pytest.fixture(scope="module")
def found() -> OverlapMap:
    exe = api.compile_graph(api.load_model("gemm-4096").graph, CHIP)
    return overlap_map(exe, CHIP, ratios=(0.25, 0.75, 1.5), counts=(4, 8, 32))


def test_the_map_follows_the_arithmetic(found: OverlapMap) -> None:
    """Overheads are small beside 700 µs of computing: the plain formulas hold within 2 %."""
    for cell in found.cells:
        r, n = cell.ratio, cell.chunks
        assert cell.hidden == pytest.approx((n - 1) / n / max(1, r), rel=0.02)
        run = 2 * r + 1 + (n - 1) * max(1, r)
        assert cell.utilisation == pytest.approx(n / run, rel=0.02)
        assert cell.closed_us == pytest.approx(cell.us, rel=0.001)


def test_where_the_claim_holds(found: OverlapMap) -> None:
    held = {(c.ratio, c.chunks) for c in found.cells if found.holds(c)}
    assert held == {(0.25, 8), (0.25, 32), (0.75, 32)}
    (claim,) = claims_on_map(found)
    assert "0.25: 8 chunks; 0.75: 32 chunks; 1.5: never" in claim.found
    assert claim.claim == "85 % overlap, NPU utilisation above 90 %"
    assert (found.target_hidden, found.target_utilisation) == (HIDDEN, UTILISATION)


def test_a_model() -> None:
    model = api.load_model("resnet18", batch=4)
    exe = api.compile_graph(model.graph, CHIP)
    study = overlap_study(ChunkWork.of_model(exe), CHIP, model="r", per_chunk=4, chunks=8)
    assert [r.way for r in study.rows] == [w.name for w in WAYS]
    slow, serial, blocked, ahead, best = study.rows
    assert slow.us > serial.us > best.us and blocked.us > ahead.us > best.us
    assert blocked.us > slow.us  # events on top, and the host waits all the same
    assert serial.hidden == blocked.hidden == 0 < ahead.hidden < 1
    assert best.hidden == pytest.approx(7 / 8, abs=0.04)
    assert abs(study.saved(serial)) < 0.05 < 0.85 < study.saved(best) < 1
    for row in study.rows:
        assert row.hidden_us <= row.copy_us and row.busy_us <= row.us
        assert row.closed_us == pytest.approx(row.us, rel=0.02)
        assert len(row.spans) == 3 * 8
    (claim,) = claims_on_study(study)
    assert "7 / 8 = 87.5 %" in claim.found and "From pageable memory three streams hide 0 %" in (
        claim.found
    )


def test_only_some_ways() -> None:
    exe = api.compile_graph(api.load_model("gemm-1024").graph, CHIP)
    work = ChunkWork.of_model(exe)
    one = overlap_study(work, CHIP, model="g", per_chunk=1, chunks=3, streams=1)
    assert [r.streams for r in one.rows] == [1, 1]
    assert claims_on_study(one) == []
    three = overlap_study(work, CHIP, model="g", per_chunk=1, chunks=3, streams=3)
    (claim,) = claims_on_study(three)
    assert "cannot be hidden" in claim.found  # 4 MiB in for 20 µs of computing
