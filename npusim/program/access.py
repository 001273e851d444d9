"""What an instruction touches: regions it reads, writes, or adds to.

Every effect (`npusim.program.effects`) states its accesses, in bytes that it really touches: what
the sanitizer (`npusim.sanitize`) finds races and uninitialised reads by.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from npusim.program.region import Region


class Mode(IntEnum):
    """READ when the instruction starts, WRITE when it completes; ADD does both on completion."""

    READ = 0
    WRITE = 1
    ADD = 2


class Access(NamedTuple):
    """One region, and what is done to it."""

    region: Region
    mode: Mode


def reads(*regions: Region) -> list[Access]:
    """Accesses that read."""
    return [Access(r, Mode.READ) for r in regions]


def writes(*regions: Region) -> list[Access]:
    """Accesses that write."""
    return [Access(r, Mode.WRITE) for r in regions]


def adds(*regions: Region) -> list[Access]:
    """Accesses that add to what is there."""
    return [Access(r, Mode.ADD) for r in regions]
