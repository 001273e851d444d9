"""Small pieces of text that the reports are made of."""

from __future__ import annotations

import math


def shorten(text: str, width: int) -> str:
    """`text` in at most `width` characters, its middle left out."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def percent(value: float) -> str:
    """0.1234 → "12.3 %"."""
    return f"{100 * value:.1f} %"


def signed(value: float) -> str:
    """0.1234 → "+12.3 %", 5.35 → "+535 %"."""
    return f"{100 * value:+.{1 if abs(value) < 1 else 0}f} %"


def bar(value: float, width: int) -> str:
    """A share as a bar of `width` characters; anything above nothing shows."""
    filled = min(width, math.ceil(value * width - 0.5)) if value > 0 else 0
    return "█" * max(filled, 1 if value > 0 else 0) + "·" * (width - max(filled, value > 0))


def resource(name: str) -> str:
    """A pipe or bound as the field writes it: "MTE2", "FIXP", "AI CPU", "cube"."""
    if name == "aicpu":
        return "AI CPU"
    return name.upper() if name.startswith(("mte", "fixp")) else name


def duration(us: float) -> str:
    """A time with the unit that suits it, from µs: "812.3 µs", "12.35 ms", "1.204 s"."""
    if us < 1000:
        return f"{us:.{2 if us < 10 else 1}f} µs"
    if us < 1_000_000:
        return f"{us / 1e3:.2f} ms"
    return f"{us / 1e6:,.3f} s"


def size(nbytes: float) -> str:
    """Bytes with a binary unit, three digits: "25.6 MiB"."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} GiB"


def quantity(value: float) -> str:
    """A rate or a count in about four digits: "1,234", "96.24", "0.0413"."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = 3 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(0, min(digits, 6))}f}"


def value_text(value: object) -> str:
    """An option's value: "on", "off", "a, b", "x=1, y=2", or as it is."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return ", ".join(f"{key}={value_text(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value))
    return str(value)
