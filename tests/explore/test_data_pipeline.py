"""Feeding a model with images: closed forms, bounds, the claim."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from npusim import api
from npusim.chip import ChipSpec, load_chip
from npusim.errors import UnsupportedError
from npusim.explore.data_pipeline import claims_on, feed_study, feed_times
from npusim.explore.image_feed import (
    FeedWork,
    Images,
    image_input,
    normalize_graph,
    prepared_alone,
    worker_cycles,
)
from npusim.machine.dvpp import JPEGD, decode_cycles

TINY = str(Path(__file__).parents[1] / "data" / "resnet_torch_tiny.onnx")
SMALL = Images(500, 375, 45_000)
HD = Images(1920, 1080, 500_000)


def work_of(chip: ChipSpec, batch: int = 16, images: Images = HD, model: str = TINY) -> FeedWork:
    graph = api.load_model(model, batch=batch).graph
    assert image_input(graph)[0] == batch
    normalize = api.compile_graph(normalize_graph(graph), chip)
    return FeedWork(api.compile_graph(graph, chip), normalize, batch, images)


@pytest.mark.parametrize("images", [SMALL, HD], ids=["small", "HD"])
@pytest.mark.parametrize("name", ["ascend910a", "ascend310"])
def test_closed_forms(name: str, images: Images) -> None:
    """Serial sums without prefetch, the slowest stage with enough of it."""
    chip = load_chip(name)
    study = feed_study(work_of(chip, images=images), chip, model="tiny", prefetch=(0, 1, 3))
    assert [(r.path[:4], r.prefetch) for r in study.rows] == [
        *(("DVPP", p) for p in (0, 1, 3)), *(("CPU,", p) for p in (0, 1, 3)),
    ]  # fmt: skip
    for row in study.rows:
        assert row.closed_us == pytest.approx(row.step_us, rel=0.02), row
        assert all(0 <= share < 1.001 for share in row.busy.values())
    for path, times in (("DVPP", study.dvpp), ("CPU", study.cpu)):
        assert times is not None
        serial, deep = study.row(path, 0), study.row(path, 3)
        assert serial is not None and deep is not None
        parts = times.copy + times.prepare + times.compute
        assert serial.step_us == pytest.approx(parts, rel=0.05) and serial.bound == "in turn"
        best = max(times.compute, study.batch * max(times.per_image.values()))
        assert deep.step_us == pytest.approx(best, rel=0.02)
        assert deep.busy[deep.bound] > 0.97


def test_the_npu_binds_where_it_is_the_slowest() -> None:
    chip = load_chip("ascend910b2", ["dvpp.jpegd.channels=64", "dvpp.vpc.channels=64"])
    study = feed_study(
        work_of(chip, images=Images(64, 64, 1000)), chip, model="tiny", prefetch=(4,)
    )
    assert study.rows[0].bound == "NPU" and study.rows[0].busy["JPEGD"] < 0.1


@pytest.mark.parametrize(("batch", "waves"), [(1, 1), (16, 1), (17, 2), (40, 3)])
def test_a_batch_alone(batch: int, waves: int) -> None:
    chip = load_chip("ascend910a")
    work = work_of(chip, batch)
    decode = decode_cycles(chip, HD.pixels)
    assert waves * decode < prepared_alone(chip, work, None) < (waves + 1) * decode
    one = worker_cycles(work, chip)
    assert prepared_alone(chip, work, 8) == -(-batch // 8) * one


def test_the_claim() -> None:
    """2048 images/s of HD against 24 workers of 45 ms each: 3.9 ×."""
    chip = load_chip("ascend910a")
    study = feed_study(work_of(chip), chip, model="tiny", prefetch=(2,))
    (claim,) = claims_on(study)
    assert study.dvpp is not None
    assert study.dvpp.preprocessing_rate == pytest.approx(2048, rel=0.01)
    ratio = study.dvpp.preprocessing_rate / study.cpu.preprocessing_rate
    assert f"24 workers {study.cpu.preprocessing_rate:,.0f}, at" in claim.found
    assert f"{ratio:.1f}×" in claim.found and f"({JPEGD} is its slowest)" in claim.found
    fewer = feed_study(work_of(chip), chip, model="tiny", prefetch=(2,), workers=12)
    assert fewer.cpu.preprocessing_rate == pytest.approx(study.cpu.preprocessing_rate / 2)


def test_a_chip_without_dvpp() -> None:
    chip = load_chip("ascend910a", ["dvpp=null"])
    work = work_of(chip)
    study = feed_study(work, chip, model="tiny", prefetch=(0,))
    assert study.dvpp is None and [r.path for r in study.rows] == ["CPU, 24 workers"]
    (claim,) = claims_on(study)
    assert "not described" in claim.found
    with pytest.raises(UnsupportedError, match="DVPP of ascend910a"):
        feed_times(work, chip, None)


def test_models_of_no_images_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="bert-tiny takes"):
        image_input(api.load_model("bert-tiny").graph)


def test_more_bytes_take_longer_to_copy() -> None:
    chip = load_chip("ascend910a")
    work = work_of(chip)
    heavy = replace(work, images=replace(HD, nbytes=2 * HD.nbytes))
    light, full = feed_times(work, chip, None), feed_times(heavy, chip, None)
    assert full.copy - light.copy == pytest.approx(16 * HD.nbytes / 25.6e3, rel=0.01)
    assert full.prepare == light.prepare
