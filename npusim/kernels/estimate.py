"""Quick cycle formulas that rank tilings; the machine decides the real time."""

from __future__ import annotations

from npusim.chip.spec import ChipSpec


def pipeline_cycles(
    chip: ChipSpec, vector: float, read: float, write: float, shared: float, tiles: int
) -> float:
    """Cycles of a double-buffered load–compute–store loop.

    Args:
        vector, read, write: busy cycles of the three pipes, over all tiles.
        shared: cycles that HBM needs for all blocks.
        tiles: tiles of a block; the first load and the last store are exposed.
    """
    latency = chip.l2.read_latency + chip.hbm.latency
    round_trip = (read + vector + tiles * latency) / 2  # a load waits for the last tile but one
    longest = max(vector, read, write, shared, round_trip)
    exposed = (vector + read + write - min(longest, vector + read + write)) / tiles
    return longest + exposed + latency + chip.l2.write_latency


def port_rate(chip: ChipSpec, rate: float, blocks: int) -> float:
    """Bytes per cycle of a core's port when `blocks` cores share HBM evenly."""
    return min(rate, chip.hbm_rate / blocks)
