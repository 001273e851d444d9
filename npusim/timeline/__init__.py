"""The Timeline waist."""

from npusim.timeline.checks import check_timeline
from npusim.timeline.timeline import (
    BOUNDS,
    PIPES,
    MemoryUse,
    OpRecord,
    PipeTime,
    SimulatorSpeed,
    Span,
    Timeline,
)

__all__ = [
    "BOUNDS",
    "PIPES",
    "MemoryUse",
    "OpRecord",
    "PipeTime",
    "SimulatorSpeed",
    "Span",
    "Timeline",
    "check_timeline",
]
