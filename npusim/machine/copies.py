"""Copies over PCIe and by SDMA, beside the cores.

Each way of the PCIe link carries one copy at a time, SDMA as many as it has channels. What a copy
writes goes to HBM past L2, which forgets it; what it reads comes from L2 as far as it is there.
Beside kernels it takes its share of L2 and HBM like one of them.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from math import ceil, floor
from typing import Any

import simpy

from npusim.chip.spec import ChipSpec
from npusim.machine.entries import CopyEntry, CopyKind, PrefetchEntry
from npusim.machine.record import UnitWork, unit_record
from npusim.machine.sharing import Shared
from npusim.machine.stream import Stream, turn
from npusim.timeline import OpRecord

_WAYS = {CopyKind.H2D: "H2D", CopyKind.D2H: "D2H", CopyKind.D2D: "D2D"}


@dataclass(frozen=True)
class CopyTime:
    """Cycles of a copy: before the first byte, and for the bytes."""

    latency: int
    body: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.latency + self.body


def copy_time(chip: ChipSpec, kind: CopyKind, nbytes: int, pageable: bool = False) -> CopyTime:
    """How long a copy takes alone.

    From pinned memory: latency + bytes over the link's achievable rate. From pageable memory the
    bytes pass a pinned buffer, `pcie.staging` at a time: the host fills one half while the link
    empties the other, so that the slower of the two sets the pace and the other adds one piece.
    On the device every byte is read and written: at most half of what HBM achieves.
    """
    if kind is CopyKind.D2D:
        rate = min(chip.sdma.bandwidth, chip.hbm.bandwidth * chip.hbm.efficiency / 2)
        return CopyTime(chip.cycles(chip.sdma.latency), chip.cycles(nbytes / rate))
    rate, latency = chip.pcie.bandwidth * chip.pcie.efficiency, chip.pcie.latency
    if not pageable or not nbytes:
        return CopyTime(chip.cycles(latency), chip.cycles(nbytes / rate))
    pieces = ceil(nbytes / chip.pcie.staging)
    piece = nbytes / pieces
    link, host = latency + piece / rate, piece / chip.host.memcpy
    seconds = link + host + (pieces - 1) * max(link, host)
    whole, first = chip.cycles(seconds), chip.cycles(latency)
    return CopyTime(first, whole - first)


class CopyRunner:
    """Runs copies. Life cycle: construct, `run` entries."""

    def __init__(self, env: simpy.Environment, chip: ChipSpec, shared: Shared) -> None:
        self._env, self._chip, self._shared = env, chip, shared
        channels = {"H2D": 1, "D2H": 1, "D2D": chip.sdma.channels}
        self._engines = {n: simpy.PriorityResource(env, capacity=c) for n, c in channels.items()}

    def run(self, entry: CopyEntry, stream: Stream) -> Generator[simpy.Event, Any, OpRecord]:
        """Run a copy to its end; gives its record."""
        way = _WAYS[entry.kind]
        with (yield from turn(self._env, self._engines[way], stream)):
            start = int(self._env.now)
            if entry.effect is not None:
                entry.effect.begin()
            time = copy_time(self._chip, entry.kind, entry.nbytes, entry.pageable)
            hbm, moved, written = self._traffic(entry)
            yield self._env.timeout(time.latency)
            if entry.nbytes:
                yield self._shared.kernels.run(time.body, 1, moved, hbm, written)
            if entry.effect is not None:
                entry.effect.finish()
        sdma = entry.kind is CopyKind.D2D
        peak = self._chip.sdma.bandwidth if sdma else self._chip.pcie.bandwidth
        work = UnitWork(
            entry.name, "MEMCPY_ASYNC", f"MEMCPY_{way}", "SDMA" if sdma else "PCIE",
            "SDMA" if sdma else "PCIe", time.latency, round(hbm), moved,
            least=floor(entry.nbytes / peak * self._chip.clock),
        )  # fmt: skip
        return unit_record(work, stream, start, int(self._env.now))

    def _traffic(self, entry: CopyEntry) -> tuple[float, int, float]:
        """HBM bytes, bytes in all, and the part of HBM's that is written; L2 follows."""
        n, l2 = entry.nbytes, self._shared.l2
        read = float(n) if entry.kind is not CopyKind.H2D else 0.0
        write = float(n) if entry.kind is not CopyKind.D2H else 0.0
        if read and entry.source is not None:
            read -= l2.resident(entry.source, entry.source + n)
        if write and entry.target is not None:
            l2.drop(entry.target, entry.target + n)
        fill = entry.kind is CopyKind.D2D and entry.source is None
        hbm = write if fill else max(0.0, read) + write
        moved = n * (2 if entry.kind is CopyKind.D2D and not fill else 1)
        return hbm, moved, write / hbm if hbm else 0.0

    def prefetch(
        self, entry: PrefetchEntry, stream: Stream
    ) -> Generator[simpy.Event, Any, OpRecord]:
        """Bring into L2 what is not there, at the pace of a copy; gives the record."""
        with (yield from turn(self._env, self._engines["D2D"], stream)):
            start, l2 = int(self._env.now), self._shared.l2
            where = (entry.source, entry.source + entry.nbytes)
            missing = max(0, round(entry.nbytes - l2.resident(*where)))
            time = copy_time(self._chip, CopyKind.D2D, missing)
            yield self._env.timeout(time.latency)
            if missing:
                yield self._shared.kernels.run(time.body, 1, missing, missing, 0.0)
            l2.touch([where])
        work = UnitWork(
            entry.name, "CMO_PREFETCH", "CMO_PREFETCH", "SDMA", "SDMA", time.latency,
            missing, missing, least=floor(missing / self._chip.sdma.bandwidth * self._chip.clock),
        )  # fmt: skip
        return unit_record(work, stream, start, int(self._env.now))
