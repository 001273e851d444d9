"""What a point is measured by. Each metric is a function of a finished run, registered by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from npusim.chip.spec import ChipSpec
from npusim.errors import UnsupportedError
from npusim.explore.sweep.area import area_of, cost_of
from npusim.program.executable import Executable
from npusim.timeline import Timeline


@dataclass(frozen=True)
class Measured:
    """A point that has run.

    Attributes:
        batch: samples per step.
    """

    chip: ChipSpec
    executable: Executable
    timeline: Timeline
    batch: int

    @property
    def seconds(self) -> float:
        """Simulated time, at least one cycle."""
        return max(1, self.timeline.total_cycles) / self.chip.clock

    @cached_property
    def cube_flops(self) -> int:
        """FLOPs of the cube, over all steps: two for each multiply-accumulate."""
        macs = sum(t.macs for t in self.executable.tasks if t.uses_cube)
        return 2 * macs * self.timeline.steps

    @cached_property
    def flops(self) -> int:
        """FLOPs of all operators, over all steps."""
        return sum(t.flops for t in self.executable.tasks) * self.timeline.steps

    @cached_property
    def energy(self) -> float:
        """Dynamic energy in joules: what the FLOPs and the bytes of HBM take by `chip.energy`.

        What leaks, and what L2 and the host take, is not published and not in it. A FLOP takes as
        much in every type.

        Raises:
            UnsupportedError: the chip does not say what a byte of HBM takes.
        """
        energy = self.chip.energy
        if energy.hbm_pj_per_byte is None:
            raise UnsupportedError(
                f"the energy of {self.chip.name}: energy.hbm_pj_per_byte is not known",
                "a chip with energy.hbm_pj_per_byte",
                "set it: sweep: {energy.hbm_pj_per_byte: [31 pJ]}",
            )
        cube = self.cube_flops * energy.cube_pj_per_flop
        vector = max(0, self.flops - self.cube_flops) * energy.vector_pj_per_flop
        return (cube + vector + self.timeline.bytes_hbm * energy.hbm_pj_per_byte) * 1e-12


@dataclass(frozen=True)
class Metric:
    """A metric: its unit, what it tells, and how it is computed."""

    name: str
    unit: str
    text: str
    compute: Callable[[Measured], float]


METRICS: dict[str, Metric] = {}
_Compute = Callable[[Measured], float]


def metric(name: str, unit: str, text: str) -> Callable[[_Compute], _Compute]:
    """Decorator: register a metric.

    Raises:
        ValueError: the name is taken.
    """

    def register(compute: _Compute) -> _Compute:
        if name in METRICS:
            raise ValueError(f"metric {name!r} is registered twice")
        METRICS[name] = Metric(name, unit, text, compute)
        return compute

    return register


@metric("latency_us", "µs", "simulated time of all steps")
def _latency(m: Measured) -> float:
    return m.timeline.total_us


@metric("cycles", "cycles", "the same in cycles of the core clock")
def _cycles(m: Measured) -> float:
    return m.timeline.total_cycles


@metric("throughput", "samples/s", "batch × steps over the time")
def _throughput(m: Measured) -> float:
    return m.batch * m.timeline.steps / m.seconds


@metric("us_per_sample", "µs", "time over samples")
def _per_sample(m: Measured) -> float:
    return m.timeline.total_us / (m.batch * m.timeline.steps)


@metric("tflops", "TFLOP/s", "FLOPs of all operators over the time")
def _tflops(m: Measured) -> float:
    return m.flops / m.seconds / 1e12


@metric("cube_utilisation", "", "cube FLOP/s over the chip's fp16 peak")
def _cube_utilisation(m: Measured) -> float:
    return m.cube_flops / m.seconds / m.chip.cube_flops("float16")


@metric("hbm_gbps", "GB/s", "bytes of HBM over the time")
def _hbm_gbps(m: Measured) -> float:
    return m.timeline.bytes_hbm / m.seconds / 1e9


@metric("hbm_mib", "MiB", "bytes of HBM")
def _hbm_mib(m: Measured) -> float:
    return m.timeline.bytes_hbm / 2**20


@metric("hbm_utilisation", "", "bytes of HBM over the time, over its bandwidth")
def _hbm_utilisation(m: Measured) -> float:
    return m.timeline.bytes_hbm / m.seconds / m.chip.hbm.bandwidth


@metric("memory_mib", "MiB", "peak device memory")
def _memory(m: Measured) -> float:
    return m.executable.memory.peak_bytes / 2**20


@metric("tasks", "", "tasks of one step")
def _tasks(m: Measured) -> float:
    return len(m.executable.tasks)


@metric("energy_mj", "mJ", "dynamic energy: FLOPs and bytes of HBM by the chip's pJ")
def _energy(m: Measured) -> float:
    return m.energy * 1e3


@metric("power_w", "W", "dynamic energy over the time")
def _power(m: Measured) -> float:
    return m.energy / m.seconds


@metric("power_of_tdp", "", "power_w over the chip's TDP")
def _power_of_tdp(m: Measured) -> float:
    return m.energy / m.seconds / m.chip.energy.tdp


@metric("area_mm2", "mm²", "area proxy of the die (configs/proxies.yaml)")
def _area(m: Measured) -> float:
    return area_of(m.chip)


@metric("cost_usd", "USD", "cost proxy of die and HBM (configs/proxies.yaml)")
def _cost(m: Measured) -> float:
    return cost_of(m.chip)
