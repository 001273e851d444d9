"""The Timeline waist."""

from npusim.timeline.checks import check_op, check_timeline
from npusim.timeline.result import RunResult, TensorCheck
from npusim.timeline.timeline import (
    BOUNDS,
    PIPES,
    HostUse,
    MemoryUse,
    OpRecord,
    OpTotals,
    PipeTime,
    SimulatorSpeed,
    Span,
    Timeline,
)

__all__ = [
    "BOUNDS",
    "PIPES",
    "HostUse",
    "MemoryUse",
    "OpRecord",
    "OpTotals",
    "PipeTime",
    "RunResult",
    "SimulatorSpeed",
    "Span",
    "TensorCheck",
    "Timeline",
    "check_op",
    "check_timeline",
]
