"""`Timeline`: when each thing happened. The third waist: plain data for every report.

Times are whole cycles of the chip's core clock; properties give microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PIPES = ("cube", "vector", "scalar", "mte1", "mte2", "mte3", "fixp")
#: What can bound an operator.
BOUNDS = (*PIPES, "L2", "HBM", "launch", "aicpu", "PCIe", "SDMA", "DVPP", "host")


@dataclass(frozen=True)
class Span:
    """A named interval on a track (a core's pipe, a stream), in cycles."""

    track: str
    name: str
    start: int
    end: int


@dataclass(frozen=True)
class PipeTime:
    """Cycles of one pipe, averaged over the cores that ran the task's blocks.

    busy + sum(stalls) + idle = the kernel's cycles, on the slowest class of cores.
    """

    busy: int
    idle: int
    stalls: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class OpRecord:
    """One task on the timeline.

    Attributes:
        start, end: cycles, launch overhead included; launch: cycles of overhead in them.
        pipes: pipe name → its time on the slowest class of cores (empty on the AI CPU).
        bytes_hbm, bytes_l2: bytes moved by all cores (every GM byte passes L2).
        bound: the resource with the largest share of the duration; bound_share: that share.
        roofline: cycles below which no schedule on this chip can do the same work and traffic.
        limits: resource → share of the duration, for every candidate bound.
        spans: pipe intervals of a representative core, when they were asked for.
        replayed: True when the timing was taken from an identical launch before.
        waited: cycles before `start` in which its stream waited for events.
        queued: cycles before `start` in which it waited for free cores, or another unit.
        starved: cycles before `start` in which nothing was queued: the host was late.
        step: which execution of the model it belongs to, from 0.
        after: names of the ops of other streams whose events it waited for.
    """

    name: str
    op_type: str
    kernel: str
    core_type: str
    block_dim: int
    stream: int
    start: int
    end: int
    launch: int
    pipes: dict[str, PipeTime]
    bytes_hbm: int
    bytes_l2: int
    flops: int
    bound: str
    bound_share: float
    roofline: int
    limits: dict[str, float]
    spans: tuple[Span, ...] = ()
    replayed: bool = False
    waited: int = 0
    queued: int = 0
    after: tuple[str, ...] = ()
    starved: int = 0
    step: int = 0

    @property
    def cycles(self) -> int:
        """Duration in cycles."""
        return self.end - self.start


@dataclass
class OpTotals:
    """Sums over all ops of one kind (op type, kernel, core type), where ops are not kept.

    Attributes:
        count: ops; cycles: their durations, launches among them; start, end: of the first and
            the last. busy: pipe → cycles on the slowest class of cores.
    """

    op_type: str
    kernel: str
    core_type: str
    count: int = 0
    cycles: int = 0
    launch: int = 0
    bytes_hbm: int = 0
    bytes_l2: int = 0
    flops: int = 0
    roofline: int = 0
    waited: int = 0
    queued: int = 0
    starved: int = 0
    end: int = 0
    busy: dict[str, int] = field(default_factory=dict)
    bounds: dict[str, int] = field(default_factory=dict)

    def add(self, op: OpRecord) -> None:
        """Add an op of this kind."""
        self.count += 1
        self.cycles += op.cycles
        self.launch += op.launch
        self.bytes_hbm += op.bytes_hbm
        self.bytes_l2 += op.bytes_l2
        self.flops += op.flops
        self.roofline += op.roofline
        self.waited += op.waited
        self.queued += op.queued
        self.starved += op.starved
        self.end = max(self.end, op.end)
        for pipe, time in op.pipes.items():
            self.busy[pipe] = self.busy.get(pipe, 0) + time.busy
        self.bounds[op.bound] = self.bounds.get(op.bound, 0) + op.cycles


@dataclass(frozen=True)
class HostUse:
    """What the host did, in cycles of the device's clock.

    Attributes:
        exec: "eager" or "graph"; sink_size: steps per launch.
        end: when it was through; busy: it enqueued or launched; queue_full: it waited for room in
            a stream's queue; waiting: it waited for the device to end. They add up to `end`.
        spans: the same in order, where ops are kept.
    """

    exec: str
    sink_size: int
    end: int
    busy: int
    queue_full: int
    waiting: int
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True)
class MemoryUse:
    """Device memory of the run, in bytes."""

    peak_bytes: int
    weight_bytes: int
    activation_bytes: int


@dataclass(frozen=True)
class SimulatorSpeed:
    """The simulator's own speed.

    Attributes:
        wall_s: seconds that the run took.
        events: of the engine.
        computing_s: of `wall_s`, those in which numbers were computed.
    """

    wall_s: float
    events: int
    computing_s: float = 0.0

    @property
    def events_per_s(self) -> float:
        """Engine events per wall second."""
        return self.events / self.wall_s if self.wall_s > 0 else 0.0


@dataclass(frozen=True)
class Timeline:
    """All of a run's tasks, in order of start.

    Attributes:
        clock: Hz, to turn cycles into seconds.
        total_cycles: from the first launch to the last completion, the host's end among them.
        totals: sums by kind of op, where the ops themselves are not kept.
        host: what the host did, where one was simulated.
        steps: executions of the model.
        partial: the run was interrupted; what was over by then is here.
    """

    chip: str
    clock: float
    ops: tuple[OpRecord, ...]
    total_cycles: int
    totals: tuple[OpTotals, ...] = ()
    host: HostUse | None = None
    steps: int = 1
    partial: bool = False

    def us(self, cycles: float) -> float:
        """Cycles in microseconds."""
        return cycles / self.clock * 1e6

    @property
    def tasks(self) -> int:
        """Ops that ran, kept or not."""
        return len(self.ops) + sum(t.count for t in self.totals)

    @property
    def bytes_hbm(self) -> int:
        """Bytes that all ops moved through HBM."""
        return sum(o.bytes_hbm for o in self.ops) + sum(t.bytes_hbm for t in self.totals)

    @property
    def total_us(self) -> float:
        """Duration in microseconds."""
        return self.us(self.total_cycles)

    def to_frame(self) -> list[dict[str, object]]:
        """One flat row per op (for pandas.DataFrame or csv), times in µs."""
        return [
            {
                "name": o.name,
                "op_type": o.op_type,
                "kernel": o.kernel,
                "block_dim": o.block_dim,
                "stream": o.stream,
                "start_us": self.us(o.start),
                "duration_us": self.us(o.cycles),
                "bound": o.bound,
                "bound_share": o.bound_share,
                "roofline_us": self.us(o.roofline),
                "flops": o.flops,
                "bytes_hbm": o.bytes_hbm,
                "bytes_l2": o.bytes_l2,
                **{f"{p}_us": self.us(t.busy) for p, t in o.pipes.items()},
            }
            for o in self.ops
        ]

    def __repr__(self) -> str:
        return f"Timeline({self.chip}, {len(self.ops)} ops, {self.total_us:.1f} µs)"
