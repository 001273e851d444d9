"""DVPP: the JPEG decoder and the image unit (VPC), beside the cores.

Each unit works on as many images at a time as it has channels. What it reads and writes is HBM's,
past L2, which forgets what is written; beside kernels it takes its share like one of them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

from npusim.chip.spec import ChipSpec, Dvpp, DvppUnit
from npusim.errors import UnsupportedError
from npusim.machine.entries import UnitEntry
from npusim.machine.record import UnitWork, unit_record
from npusim.machine.sharing import Shared
from npusim.machine.stream import Stream, turn
from npusim.timeline import OpRecord

JPEGD, VPC = "JPEGD", "VPC"


def dvpp_of(chip: ChipSpec) -> Dvpp:
    """The chip's DVPP.

    Raises:
        UnsupportedError: the chip's description has none.
    """
    if chip.dvpp is None:
        raise UnsupportedError(
            f"DVPP of {chip.name}: its description has none",
            "a chip with a section dvpp (ascend910a, ascend910b1, ascend310 and others have one)",
            "add dvpp.jpegd and dvpp.vpc to the chip, or preprocess on the host",
        )
    return chip.dvpp


def decode_cycles(chip: ChipSpec, pixels: int) -> int:
    """How long a channel of JPEGD decodes an image."""
    return _cycles(chip, dvpp_of(chip).jpegd, pixels)


def resize_cycles(chip: ChipSpec, pixels_in: int, pixels_out: int) -> int:
    """How long a channel of VPC crops and resizes an image: the larger side sets the pace."""
    return _cycles(chip, dvpp_of(chip).vpc, max(pixels_in, pixels_out))


def _cycles(chip: ChipSpec, unit: DvppUnit, pixels: int) -> int:
    return chip.cycles(unit.latency + pixels / unit.rate)


class DvppRunner:
    """Runs work of DVPP. Life cycle: construct, `run` entries."""

    def __init__(self, env: simpy.Environment, chip: ChipSpec, shared: Shared) -> None:
        self._env, self._chip, self._shared = env, chip, shared
        units = {} if chip.dvpp is None else {JPEGD: chip.dvpp.jpegd, VPC: chip.dvpp.vpc}
        self._units = {
            name: simpy.PriorityResource(env, capacity=unit.channels)
            for name, unit in units.items()
        }

    def _unit(self, entry: UnitEntry) -> simpy.PriorityResource:
        dvpp_of(self._chip)
        return self._units[entry.unit]

    def run(self, entry: UnitEntry, stream: Stream) -> Generator[simpy.Event, Any, OpRecord]:
        """Run work of a DVPP unit to its end; gives its record."""
        with (yield from turn(self._env, self._unit(entry), stream)):
            start = int(self._env.now)
            if entry.effect is not None:
                entry.effect.begin()
            moved = sum(n for _, n in (*entry.reads, *entry.writes))
            stored = sum(n for _, n in entry.writes)
            for address, n in entry.writes:
                self._shared.l2.drop(address, address + n)
            part = stored / moved if moved else 0.0
            yield self._shared.kernels.run(entry.cycles, 1, moved, moved, part)
            if entry.effect is not None:
                entry.effect.finish()
        work = UnitWork(
            entry.name, entry.op_type, entry.unit, "DVPP", "DVPP",
            bytes_hbm=moved, bytes_l2=moved, least=entry.cycles,
        )  # fmt: skip
        return unit_record(work, stream, start, int(self._env.now))
