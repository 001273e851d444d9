"""Finds what is wrong before it shows in numbers: races, flags, memory; in kernels and streams."""

from npusim.sanitize.findings import Finding, FindingKind, Side
from npusim.sanitize.kernel_level import SanitizeReport, sanitize_executable, sanitize_launch
from npusim.sanitize.stream_races import StreamSanitizer

__all__ = [
    "Finding",
    "FindingKind",
    "SanitizeReport",
    "Side",
    "StreamSanitizer",
    "sanitize_executable",
    "sanitize_launch",
]
