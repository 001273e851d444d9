"""`RunResult`: a Timeline with what it was a run of, what it computed and how that compares."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from npusim.timeline.timeline import MemoryUse, SimulatorSpeed, Timeline


@dataclass(frozen=True)
class TensorCheck:
    """How one tensor compares with its reference.

    `max_rel_err` is the largest absolute difference over the reference's largest magnitude.
    """

    max_abs_err: float
    max_rel_err: float
    cosine: float


@dataclass
class RunResult:
    """Everything a run gives.

    Attributes:
        timeline: when each task ran; memory: device memory; speed: the simulator's own.
        batch: samples per execution of the model; `timeline.steps` tells how many those were.
        flops: of all operators of all steps; peak_flops: of the chip in this precision.
        peak_hbm: bytes/s.
        outputs: graph outputs (empty when timing only); tensors: intermediate ones kept.
        check: tensor → comparison with the reference (empty when not asked for).
        check_reference: what the tensors were compared with ("onnxruntime 1.32", …).
        sanitizer: what it checked and found, as plain data; None when it was not asked for.
    """

    model: str
    chip: str
    precision: str
    batch: int
    options: dict[str, object]
    timeline: Timeline
    memory: MemoryUse
    speed: SimulatorSpeed
    flops: int
    peak_flops: float
    peak_hbm: float
    outputs: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    tensors: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    check: dict[str, TensorCheck] = field(default_factory=dict)
    check_reference: str = ""
    notes: list[str] = field(default_factory=list)
    sanitizer: dict[str, object] | None = None

    @property
    def seconds(self) -> float:
        """Simulated time, at least one cycle."""
        return max(1, self.timeline.total_cycles) / self.timeline.clock

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return self.batch * self.timeline.steps / self.seconds

    @property
    def achieved_tflops(self) -> float:
        """FLOPs of all ops over the total time, in TFLOP/s."""
        return self.flops / self.seconds / 1e12

    @property
    def achieved_gbps(self) -> float:
        """HBM bytes of all ops over the total time, in GB/s."""
        return self.timeline.bytes_hbm / self.seconds / 1e9

    def __repr__(self) -> str:
        return (
            f"RunResult({self.model}, batch {self.batch}, {self.precision} on {self.chip}: "
            f"{self.timeline.total_us:.1f} µs, {self.throughput:.0f}/s, "
            f"{self.achieved_tflops:.2f} TFLOP/s, {self.timeline.tasks} ops)"
        )
