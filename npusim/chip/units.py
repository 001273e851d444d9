"""Quantities with units: what a chip YAML may write, and how a report writes it back.

Every type accepts a plain number in its base unit, or a string with a unit:
"64 KiB", "1.2TB/s", "0.07 us", "256 B/cycle", "1 GHz", "10 cycles".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from npusim.errors import nearest

_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s].*?)?\s*")


@dataclass(frozen=True)
class Quantity:
    """One kind of quantity: its units, base unit first, and the values it may take.

    Attributes:
        name: what it measures, for error messages.
        units: unit -> factor to the base unit; the first unit is the base (factor 1).
        whole: only whole multiples of the base unit (the parsed value is an int).
        positive: zero is refused too (negative values always are).
        aliases: further spellings that are read, but never printed.
    """

    name: str
    units: dict[str, Decimal]
    whole: bool = False
    positive: bool = True
    aliases: tuple[tuple[str, str], ...] = ()

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def allowed(self) -> str:
        """What may be written, e.g. for an error message."""
        kind = "whole" if self.whole else "plain"
        base = next(iter(self.units))
        return (
            f"{'a positive' if self.positive else 'a non-negative'} {self.name}: a {kind} number"
            f" ({base}) or a number with one of the units {', '.join(self.units)}"
        )

    def parse(self, value: object) -> int | float:
        """`value` in the base unit. Raises PydanticCustomError("unit") on a bad one."""
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise self._error("not a number with a unit")
        match = _NUMBER.fullmatch(str(value))
        if not match:
            raise self._error("not a number with a unit")
        unit = match[2] or next(iter(self.units))
        unit = dict(self.aliases).get(unit, unit)
        if unit not in self.units:
            close = nearest(unit, self.units)
            raise self._error(f"unknown unit '{unit}'", close and f"write {match[1]} {close}")
        exact = Decimal(match[1]) * self.units[unit]
        if exact < 0 or (self.positive and exact == 0):
            raise self._error("out of range")
        if not self.whole:
            return float(exact)
        if exact != exact.to_integral_value():
            raise self._error(f"not a whole number of {next(iter(self.units))}")
        return int(exact)

    def format(self, value: float) -> str:
        """`value` (base unit) with the unit that makes it shortest: 65536 -> "64 KiB"."""
        exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        digits = 15 if self.whole else 9
        smallest = min(self.units, key=self.units.__getitem__) if exact else next(iter(self.units))
        options = []
        for unit, scale in self.units.items():
            number = f"{float(exact / scale):.{digits}g}"
            if unit == smallest or (exact >= scale and "e" not in number):
                rounded = Decimal(number) * scale != exact
                options.append((rounded, len(number), -scale, f"{number} {unit}"))
        return min(options)[-1] if exact else f"0 {smallest}"

    def _error(self, problem: str, fix: str = "") -> PydanticCustomError:
        context = {"allowed": self.allowed, "fix": fix, "problem": problem}
        return PydanticCustomError("unit", "{problem}; allowed: {allowed}", context)


def _scaled(base: str, **prefixes: str) -> dict[str, Decimal]:
    return {base: Decimal(1)} | {unit: Decimal(scale) for unit, scale in prefixes.items()}


_BYTE_UNITS = _scaled("B", kB="1e3", MB="1e6", GB="1e9", TB="1e12") | {
    unit: Decimal(1024**power) for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), 1)
}

BYTES = Quantity("size in bytes", _BYTE_UNITS, whole=True)
HERTZ = Quantity("frequency", _scaled("Hz", kHz="1e3", MHz="1e6", GHz="1e9"))
BANDWIDTH = Quantity("bandwidth", {f"{unit}/s": scale for unit, scale in _BYTE_UNITS.items()})
RATE = Quantity(
    "rate in bytes per core cycle",
    {"B/cycle": Decimal(1)},
    aliases=(("B/cyc", "B/cycle"),),
)
PIXELS = Quantity("rate in pixels", _scaled("pixel/s", **{"Mpixel/s": "1e6", "Gpixel/s": "1e9"}))
CYCLES = Quantity(
    "number of core cycles",
    {"cycles": Decimal(1)},
    whole=True,
    positive=False,
    aliases=(("cycle", "cycles"), ("cyc", "cycles")),
)
SECONDS = Quantity(
    "time",
    _scaled("s", ms="1e-3", us="1e-6", ns="1e-9"),
    positive=False,
    aliases=(("µs", "us"), ("μs", "us")),
)
PICOJOULES = Quantity("energy", _scaled("pJ", nJ="1e3"), positive=False)
WATTS = Quantity("power", _scaled("W", mW="1e-3", kW="1e3"))

Bytes = Annotated[int, BeforeValidator(BYTES.parse), BYTES]
"""A size in bytes: "64 KiB"."""
Hertz = Annotated[float, BeforeValidator(HERTZ.parse), HERTZ]
"""A clock in Hz: "1 GHz"."""
Bandwidth = Annotated[float, BeforeValidator(BANDWIDTH.parse), BANDWIDTH]
"""Bytes per second: "1.2 TB/s"."""
Rate = Annotated[float, BeforeValidator(RATE.parse), RATE]
"""Bytes per core cycle: "512 B/cycle"."""
Pixels = Annotated[float, BeforeValidator(PIXELS.parse), PIXELS]
"""Pixels per second: "265.4 Mpixel/s"."""
Cycles = Annotated[int, BeforeValidator(CYCLES.parse), CYCLES]
"""Core cycles: 10 or "10 cycles"."""
Seconds = Annotated[float, BeforeValidator(SECONDS.parse), SECONDS]
"""A time in seconds: "0.07 us"."""
Picojoules = Annotated[float, BeforeValidator(PICOJOULES.parse), PICOJOULES]
"""An energy in picojoules: "0.39 pJ"."""
Watts = Annotated[float, BeforeValidator(WATTS.parse), WATTS]
"""A power in watts: "300 W"."""


def format_bytes(value: float) -> str:
    """65536 -> "64 KiB"."""
    return BYTES.format(value)


def format_bandwidth(value: float) -> str:
    """1.2e12 -> "1.2 TB/s"."""
    return BANDWIDTH.format(value)


def format_hertz(value: float) -> str:
    """1e9 -> "1 GHz"."""
    return HERTZ.format(value)


def format_seconds(value: float) -> str:
    """7e-8 -> "70 ns"."""
    return SECONDS.format(value)
