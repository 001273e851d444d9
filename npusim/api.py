"""The short Python API: load a chip, load a model, compile, run, look.

    import npusim
    chip = npusim.load_chip("ascend910a")
    graph = npusim.load_model("resnet50", batch=1)
    exe = npusim.compile_graph(graph, chip, precision="fp16")
    result = npusim.run(exe, chip)
    print(result)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from npusim.timeline import MemoryUse, SimulatorSpeed, Timeline

Progress = Callable[[str, int, int], None]  #: stage, done, total


@dataclass(frozen=True)
class TensorCheck:
    """How one tensor compares with its reference."""

    max_abs_err: float
    max_rel_err: float
    cosine: float


@dataclass
class RunResult:
    """Everything a run gives.

    Attributes:
        timeline: when each task ran; memory: device memory; speed: the simulator's own.
        outputs: graph outputs (empty when timing only).
        check: tensor → comparison with the reference (empty when not asked for).
        check_reference: what the tensors were compared with ("onnxruntime 1.32", …).
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
    check: dict[str, TensorCheck] = field(default_factory=dict)
    check_reference: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return self.batch / (self.timeline.total_us * 1e-6)

    @property
    def achieved_tflops(self) -> float:
        """FLOPs of all ops over the total time, in TFLOP/s."""
        return self.flops / (self.timeline.total_us * 1e-6) / 1e12

    @property
    def achieved_gbps(self) -> float:
        """HBM bytes of all ops over the total time, in GB/s."""
        return sum(o.bytes_hbm for o in self.timeline.ops) / (self.timeline.total_us * 1e-6) / 1e9
