"""Which shipped chip a table's device is."""

from __future__ import annotations

import re

#: Words of the tables → chip; the first that matches counts. "Ascend910B" alone is ambiguous.
_CHIPS = (
    (re.compile(r"ascend910b([1-4])\b", re.I), r"ascend910b\1"),
    (re.compile(r"ascend310p3?\b", re.I), "ascend310p3"),
    (re.compile(r"ascend310\b(?!\S)", re.I), "ascend310"),
    (re.compile(r"ascend910-30c\b", re.I), "ascend910-30c"),
    (re.compile(r"ascend910 gen-1 \(30 AI cores\)", re.I), "ascend910-30c"),
)


def chip_of(device: str) -> str:
    """The shipped chip's name for a device; "" when the table does not say exactly which."""
    for pattern, chip in _CHIPS:
        if match := pattern.match(device):
            return match.expand(chip)
    return ""
