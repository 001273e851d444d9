"""Quantities with units: read, refused, written back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

from npusim.chip import units
from npusim.chip.units import Quantity


@pytest.mark.parametrize(
    ("quantity", "text", "value"),
    [
        (units.BYTES, "64 KiB", 65536),
        (units.BYTES, "512KiB", 524288),
        (units.BYTES, "24 GB", 24_000_000_000),
        (units.BYTES, "64 kB", 64_000),
        (units.BYTES, 253952, 253952),
        (units.BYTES, "1.5 KiB", 1536),
        (units.HERTZ, "1 GHz", 1e9),
        (units.HERTZ, "1.22GHz", 1.22e9),
        (units.BANDWIDTH, "1.2 TB/s", 1.2e12),
        (units.BANDWIDTH, "2.4TB/s", 2.4e12),
        (units.BANDWIDTH, "1 GiB/s", 2.0**30),
        (units.BANDWIDTH, "1e12", 1e12),
        (units.RATE, "256 B/cycle", 256.0),
        (units.RATE, "71 B/cyc", 71.0),
        (units.CYCLES, "10 cycles", 10),
        (units.CYCLES, 0, 0),
        (units.SECONDS, "0.07 us", 7e-8),
        (units.SECONDS, "15 µs", 1.5e-5),
        (units.SECONDS, 0, 0.0),
        (units.PICOJOULES, "0.39 pJ", 0.39),
        (units.WATTS, "300 W", 300.0),
    ],
)
def test_parse(quantity: Quantity, text: object, value: float) -> None:
    parsed = quantity.parse(text)
    assert parsed == value
    assert isinstance(parsed, int) == quantity.whole


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        (units.BYTES, "64 KB"),
        (units.BYTES, "64 GHz"),
        (units.BYTES, "0.3 B"),
        (units.BYTES, 0),
        (units.BYTES, -1),
        (units.BYTES, True),
        (units.BYTES, None),
        (units.BYTES, [1]),
        (units.HERTZ, "fast"),
        (units.HERTZ, float("nan")),
        (units.BANDWIDTH, float("inf")),
        (units.BANDWIDTH, "-1 TB/s"),
        (units.CYCLES, 1.5),
        (units.CYCLES, -1),
        (units.SECONDS, "3 parsec"),
        (units.RATE, ""),
    ],
)
def test_refused(quantity: Quantity, text: object) -> None:
    with pytest.raises(PydanticCustomError) as error:
        quantity.parse(text)
    assert all(unit in str(error.value) for unit in quantity.units)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.format_bytes(65536), "64 KiB"),
        (units.format_bytes(24e9), "24 GB"),
        (units.format_bytes(253952), "248 KiB"),
        (units.format_bandwidth(1.2e12), "1.2 TB/s"),
        (units.format_hertz(1.06e9), "1.06 GHz"),
        (units.format_seconds(5.8e-7), "580 ns"),
        (units.format_seconds(0), "0 s"),
        (units.RATE.format(110.0), "110 B/cycle"),
    ],
)
def test_format(text: str, expected: str) -> None:
    assert text == expected


@given(st.integers(1, 2**45))
def test_bytes_round_trip(size: int) -> None:
    assert units.BYTES.parse(units.BYTES.format(size)) == pytest.approx(size, rel=1e-8)


@given(st.floats(1e-9, 1e6))
def test_seconds_round_trip(time: float) -> None:
    assert units.SECONDS.parse(units.SECONDS.format(time)) == pytest.approx(time, rel=1e-8)
