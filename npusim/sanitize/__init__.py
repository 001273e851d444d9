"""Finds what is wrong with kernels before it shows in numbers: races, flags, memory."""

from npusim.sanitize.findings import Finding, FindingKind, Side
from npusim.sanitize.kernel_level import SanitizeReport, sanitize_executable, sanitize_launch

__all__ = [
    "Finding",
    "FindingKind",
    "SanitizeReport",
    "Side",
    "sanitize_executable",
    "sanitize_launch",
]
