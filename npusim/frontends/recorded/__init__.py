"""Profiles recorded on real chips: what ran, on which shapes, for how long."""

from npusim.frontends.recorded.devices import chip_of
from npusim.frontends.recorded.op import RecordedOp, RecordedTensor
from npusim.frontends.recorded.read import read_profile

__all__ = ["RecordedOp", "RecordedTensor", "chip_of", "read_profile"]
