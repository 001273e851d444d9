"""`ChipSpec`: the validated description of one chip.

Units after loading: sizes in bytes (int), clock in Hz, core paths in bytes per core cycle,
chip-level bandwidths in bytes per second, times in seconds, core latencies in cycles.
YAML may write any of them with a unit ("64 KiB", "1.2 TB/s", "0.7 us"); see `units`.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator

from npusim.chip.checks import problems
from npusim.chip.units import (
    Bandwidth,
    Bytes,
    Cycles,
    Hertz,
    Picojoules,
    Pixels,
    Rate,
    Seconds,
    Watts,
)
from npusim.errors import ChipError


class Part(BaseModel):
    """Base of every part: unknown keys are errors, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Cores(Part):
    """How many cores. On split chips (910B) `count` is AICs and `vector_count` AIVs."""

    count: int
    vector_count: int
    split: bool = False


class Cube(Part):
    """The matrix unit: one `m × k × n` block per cycle; `k` depends on the input dtype.

    An Mmad of Mb·Kb·Nb blocks occupies the pipe for Mb·Kb·Nb + `head` cycles and its result
    is visible `tail` cycles later. `odd_penalty` adds Kb cycles when Mb and Nb are both odd.
    Operands lie in fractals of 16 rows and columns whatever `m` and `n` are: a cube of 32 × 32
    takes four fractals of the result a cycle, one of 8 × 8 four cycles for one.
    """

    m: int
    n: int
    k: dict[str, int]
    head: Cycles
    tail: Cycles
    odd_penalty: bool = False

    def blocks(self, rows: int, columns: int) -> int:
        """Blocks of m × n that cover a result of so many fractals; those at its edge count."""
        return -(-16 * rows // self.m) * -(-16 * columns // self.n)


class VectorCost(Part):
    """Cycles per 256 B repeat, by element width in bits."""

    b16: float | None = None
    b32: float | None = None


class Vector(Part):
    """The vector unit on UB: `repeat_bytes` per repeat, at most `max_repeat` per instruction."""

    repeat_bytes: Bytes
    max_repeat: int
    lanes: dict[str, int]
    head: Cycles
    tail: Cycles
    dtypes: list[str]
    costs: dict[str, VectorCost]
    l0c_rate: Rate | None = None


class Scalar(Part):
    """The scalar unit: issue cost of an instruction, queue depth of a pipe, cost of a flag."""

    issue: Cycles
    queue_depth: int
    flag: Cycles
    load3d_interval: Cycles


class Buffer(Part):
    """An on-chip buffer."""

    size: Bytes


class UnifiedBuffer(Buffer):
    """UB: `block` is the 32 B granule; banks are kept for conflict studies."""

    block: Bytes
    banks: int
    bank_groups: int


class Mte1(Part):
    """L1→L0A / L0B. `load3d_cycles`: cycles per 512 B fractal of img2col (times stride_w)."""

    l0a_rate: Rate
    l0b_rate: Rate
    ub_rate: Rate | None = None
    head: Cycles
    tail: Cycles
    load3d_head: Cycles
    load3d_cycles: float


class Mte2(Part):
    """GM→L1 / UB. `rate` is the port to L1, `ub_rate` to UB; `burst` is cycles per burst.

    `cold_rate`: bytes that a core gets from HBM into L1 at most, what hits L2 comes beside it.
    """

    rate: Rate
    ub_rate: Rate
    cold_rate: Rate | None = None
    head: Cycles
    burst: float
    min_burst: Bytes


class Mte3(Part):
    """UB→GM and UB→L1 (`l1_rate`)."""

    rate: Rate
    l1_rate: Rate | None = None
    head: Cycles
    burst: float
    min_burst: Bytes


class Fixp(Part):
    """L0C→GM / L1 with cast, bias and ReLU on the way (910B and later)."""

    rate: Rate
    l1_rate: Rate
    elements: float  #: per cycle: narrow types do not fill the rate
    head: Cycles
    tail: Cycles
    burst: float


class Core(Part):
    """One AI Core (or an AIC with its AIVs' common parameters, on split chips)."""

    cube: Cube
    vector: Vector
    scalar: Scalar
    l0a: Buffer
    l0b: Buffer
    l0c: Buffer
    l1: Buffer
    ub: UnifiedBuffer
    mte1: Mte1
    mte2: Mte2
    mte3: Mte3
    fixp: Fixp | None = None


class L2(Part):
    """The last-level cache shared by all cores. Achievable rate = bandwidth × efficiency."""

    size: Bytes
    bandwidth: Bandwidth
    efficiency: float
    read_latency: Cycles
    write_latency: Cycles


class Hbm(Part):
    """Device memory. Achievable rate = bandwidth × efficiency; `latency` adds to an L2 miss.

    Where reads and writes alternate, at least a third of the bytes each, the rate is that by
    1 + `turnaround` (None: the rate is the same).
    """

    size: Bytes
    bandwidth: Bandwidth
    efficiency: float
    latency: Cycles
    turnaround: float | None = None


class Tlb(Part):
    """The device's translation of addresses: `entries` pages are known, whatever their size.

    A launch that touches more pages walks the page table for those beyond, `walkers` at a time,
    each in `walk`. Pages are of 2 MiB (huge) or 4 KiB.
    """

    entries: int
    walk: Seconds
    walkers: int


class Noc(Part):
    """The on-chip network (described; its limit is contained in l2.bandwidth)."""

    rows: int | None = None
    columns: int | None = None
    link_bandwidth: Bandwidth | None = None


class Pcie(Part):
    """Host link, each way. Achievable rate = bandwidth × efficiency.

    A copy from pageable host memory passes a pinned buffer, `staging` bytes at a time.
    """

    bandwidth: Bandwidth
    efficiency: float
    latency: Seconds
    staging: Bytes


class Sdma(Part):
    """The engine that copies from device memory to device memory; `channels` copies at a time."""

    bandwidth: Bandwidth
    latency: Seconds
    channels: int


class Links(Part):
    """Card-to-card links (HCCS): `bandwidth` of one link, each way."""

    count: int
    bandwidth: Bandwidth
    latency: Seconds


class DvppUnit(Part):
    """A unit of DVPP: `channels` images at a time, each at `rate` after `latency`."""

    channels: int
    rate: Pixels
    latency: Seconds


class Dvpp(Part):
    """Image preprocessing beside the AI Cores.

    `jpegd` decodes JPEG, by the pixels of the image. `vpc` crops and resizes, by the pixels of the
    larger of what it reads and what it writes.
    """

    jpegd: DvppUnit
    vpc: DvppUnit


class HostPreprocessing(Part):
    """Image preprocessing on the host: `workers` CPU cores per chip.

    Rates are of one worker: `decode` by the pixels of the image, `resize` by those it reads,
    `normalize` (to floats, in planes) by those it writes.
    """

    workers: int
    decode: Pixels
    resize: Pixels
    normalize: Pixels


class Host(Part):
    """What the host spends.

    `enqueue` one task in eager mode (dispatch, tiling, launch); `graph_launch` for a whole graph,
    or several steps of it; `sync` to notice that a stream is over; `call` for any other call of
    the runtime. `memcpy` is the rate of a copy within host memory.
    """

    enqueue: Seconds
    graph_launch: Seconds
    sync: Seconds
    call: Seconds
    memcpy: Bandwidth
    preprocessing: HostPreprocessing


class Scheduler(Part):
    """Task scheduler: kernel time = `launch` + `per_block` × block dim + the slowest block.

    `gap` separates consecutive tasks of one stream; `event` is what recording an event, or waiting
    for one that is recorded, costs its stream. `queue_depth` entries fit in the queue of one
    stream: a host that is further ahead waits.
    """

    launch: Seconds
    per_block: Seconds
    gap: Seconds
    event: Seconds
    max_streams: int
    max_events: int
    queue_depth: int


class AiCpu(Part):
    """Control cores that run what has no AI Core kernel; `rate` is bytes touched per second."""

    count: int
    launch: Seconds
    rate: Bandwidth


class Energy(Part):
    """Energy per operation and per byte; power of the whole chip."""

    cube_pj_per_flop: Picojoules
    vector_pj_per_flop: Picojoules
    hbm_pj_per_byte: Picojoules | None = None
    tdp: Watts


class Provenance(BaseModel):
    """Where a number comes from."""

    model_config = ConfigDict(frozen=True)
    grade: str
    source: str


class ChipSpec(Part):
    """A whole chip. `sources` maps a dotted key ("core.l0a.size") to its provenance."""

    name: str
    description: str = ""
    clock: Hertz
    cores: Cores
    core: Core
    l2: L2
    hbm: Hbm
    tlb: Tlb
    noc: Noc
    pcie: Pcie
    sdma: Sdma
    links: Links
    host: Host
    scheduler: Scheduler
    aicpu: AiCpu
    dvpp: Dvpp | None = None
    energy: Energy
    sources: dict[str, Provenance] = {}

    @model_validator(mode="after")
    def _possible(self, info: ValidationInfo) -> ChipSpec:
        """Refuse impossible combinations; the loader's context says which file holds a key."""
        for problem in problems(self):
            where = info.context["where"](problem.key) if info.context else f"chip {self.name}"
            shown = "missing" if problem.value is None else problem.value
            what = f"{where}: {problem.key} = {shown} is impossible"
            raise ChipError(what, problem.allowed, problem.fix)
        return self

    # -- derived rates, used by every floor above ------------------------------------------

    def cycles(self, seconds: float) -> int:
        """`seconds` in whole core cycles, rounded up."""
        exact = seconds * self.clock
        whole = int(exact)
        return whole if whole >= exact - 1e-9 else whole + 1

    def ai_cpu_cycles(self, nbytes: int) -> tuple[int, int]:
        """Cycles of an AI CPU kernel that touches `nbytes`: its launch, its work."""
        return self.cycles(self.aicpu.launch), self.cycles(nbytes / self.aicpu.rate)

    def seconds(self, cycles: float) -> float:
        """`cycles` of the core clock in seconds."""
        return cycles / self.clock

    @property
    def hbm_rate(self) -> float:
        """Achievable HBM bytes per core cycle, whole chip."""
        return self.hbm.bandwidth * self.hbm.efficiency / self.clock

    @property
    def l2_rate(self) -> float:
        """Achievable L2 bytes per core cycle, whole chip."""
        return self.l2.bandwidth * self.l2.efficiency / self.clock

    def with_cores(self, count: int) -> ChipSpec:
        """The chip with `count` of its cores, vector cores in proportion."""
        vector = max(1, self.cores.vector_count * count // self.cores.count)
        fewer = self.cores.model_copy(update={"count": count, "vector_count": vector})
        return self.model_copy(update={"cores": fewer})

    def without_hand_out(self) -> ChipSpec:
        """The chip with a scheduler that hands blocks out in no time."""
        scheduler = self.scheduler.model_copy(update={"per_block": 0.0})
        return self.model_copy(update={"scheduler": scheduler})

    def with_all_in_l2(self) -> ChipSpec:
        """The chip with HBM as quick as L2: times of what is in L2 already."""
        rates = {"bandwidth": self.l2.bandwidth, "efficiency": self.l2.efficiency}
        return self.model_copy(update={"hbm": self.hbm.model_copy(update=rates)})

    def vector_cores(self) -> int:
        """Cores that run vector kernels: AIVs on split chips, AI Cores otherwise."""
        return self.cores.vector_count if self.cores.split else self.cores.count

    def cube_flops(self, dtype: str) -> float:
        """Peak cube FLOP/s (2 per MAC) for an input dtype; 0 when the cube cannot take it."""
        k = self.core.cube.k.get(dtype, 0)
        return 2.0 * self.core.cube.m * self.core.cube.n * k * self.cores.count * self.clock

    def vector_flops(self, dtype: str) -> float:
        """Peak vector FLOP/s for a dtype: a multiply-accumulate per lane and cycle."""
        return 2.0 * self.core.vector.lanes.get(dtype, 0) * self.vector_cores() * self.clock
