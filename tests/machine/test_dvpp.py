"""DVPP: channels, times, and chips without it."""

from __future__ import annotations

import pytest

from npusim.chip import load_chip
from npusim.errors import UnsupportedError
from npusim.machine.device import Device
from npusim.machine.dvpp import JPEGD, VPC, decode_cycles, resize_cycles
from npusim.machine.entries import UnitEntry
from npusim.machine.recorder import KeepAll

HD = 1920 * 1080


@pytest.mark.parametrize(
    ("name", "decoded", "resized"),
    [
        ("ascend910a", 2048, 4320),
        ("ascend910b2", 14336, 14400),
        ("ascend310p3", 2048, 4320),
        ("ascend310", 256, 1440),
    ],
)
def test_published_frame_rates(name: str, decoded: int, resized: int) -> None:
    """At 1080p, all channels; the setup of an image costs at most 2 % of it."""
    chip = load_chip(name)
    assert chip.dvpp is not None
    for unit, cycles, published in (
        (chip.dvpp.jpegd, decode_cycles(chip, HD), decoded),
        (chip.dvpp.vpc, resize_cycles(chip, HD, 224 * 224), resized),
    ):
        assert unit.channels / chip.seconds(cycles) == pytest.approx(published, rel=0.02)


def test_the_larger_side_sets_the_pace_of_resizing() -> None:
    chip = load_chip("ascend910a")
    assert resize_cycles(chip, 1000, HD) == resize_cycles(chip, HD, 1000)


def test_as_many_images_as_channels() -> None:
    chip = load_chip("ascend310")  # 2 channels of JPEGD
    recorder = KeepAll()
    device = Device(chip, recorder)
    for stream in range(5):
        device.submit(stream, UnitEntry("i", "JpegDecode", JPEGD, 1000, ((0, 64),), ((64, 640),)))
    device.submit(5, UnitEntry("v", "CropResize", VPC, 300))
    device.run()
    ends = sorted(op.end for op in recorder.ops() if op.kernel == JPEGD)
    assert ends == [1000, 1000, 2000, 2000, 3000]
    (vpc,) = (op for op in recorder.ops() if op.kernel == VPC)
    assert (vpc.start, vpc.end, vpc.core_type, vpc.bound) == (0, 300, "DVPP", "DVPP")
    assert sorted(op.queued for op in recorder.ops()) == [0, 0, 0, 1000, 1000, 2000]


def test_a_chip_without_dvpp() -> None:
    toy = load_chip("toy")
    assert toy.dvpp is None
    with pytest.raises(UnsupportedError, match="DVPP of toy"):
        decode_cycles(toy, HD)
    device = Device(toy, KeepAll())
    device.submit(0, UnitEntry("i", "JpegDecode", JPEGD, 1000))
    with pytest.raises(UnsupportedError, match="DVPP of toy"):
        device.run()
