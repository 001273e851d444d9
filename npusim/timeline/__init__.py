"""The Timeline waist."""

from npusim.timeline.checks import check_timeline
from npusim.timeline.result import RunResult, TensorCheck
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
    "RunResult",
    "SimulatorSpeed",
    "Span",
    "TensorCheck",
    "Timeline",
    "check_timeline",
]
