"""A model compiled step by step, each step with what it costs and gains: plain data."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class AblationRow:
    """The model with the optimisations up to one.

    Attributes:
        step: what this row adds to the one before.
        twin: the row is beside the others: all of them but one.
        operators: nodes of the graph after the passes; kernels: launches.
        weight_bytes, activation_bytes: of device memory, planned as the row says.
        reused_bytes: of activations where tensors share memory, whatever the row says;
            least_bytes: the most that are alive at one time, below which no plan gets.
        hbm_bytes: moved in the run; us: the run.
        check: the largest relative error against the fp32 reference, as text; "" when not checked.
        failed: the check refuses an output.
        reason: why the row does not run; the numbers are 0 then.
    """

    step: str
    operators: int = 0
    kernels: int = 0
    weight_bytes: int = 0
    activation_bytes: int = 0
    reused_bytes: int = 0
    least_bytes: int = 0
    hbm_bytes: int = 0
    us: float = 0.0
    twin: bool = False
    check: str = ""
    failed: bool = False
    reason: str = ""

    @property
    def memory_bytes(self) -> int:
        """Device memory at the peak."""
        return self.weight_bytes + self.activation_bytes

    @property
    def memory_reused(self) -> int:
        """Device memory at the peak where tensors share memory."""
        return self.weight_bytes + self.reused_bytes


@dataclass(frozen=True)
class Ablation:
    """A model on a chip, step by step.

    Attributes:
        nodes: of the model as loaded; flops: of its matrix products and convolutions.
        precision: of the rows that are not fp32; reference: what checked the rows, or why none.
        peak_flops: of the chip's cube in that precision, per second (its vector unit, where the
            cube has no such type); fp32_cube_flops: in fp32, 0 where it has none.
        hbm_size: bytes; hbm_rate: peak bytes per second.
    """

    model: str
    batch: int
    chip: str
    precision: str
    nodes: int
    flops: int
    peak_flops: float
    fp32_cube_flops: float
    hbm_size: int
    hbm_rate: float
    reference: str
    rows: tuple[AblationRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def ladder(self) -> list[AblationRow]:
        """The rows that ran, each with one step more."""
        return [r for r in self.rows if not r.reason and not r.twin]

    @property
    def idle(self) -> list[AblationRow]:
        """Rows that are as the row before in every figure: their step does nothing here."""
        pairs = zip(self.rows, self.rows[1:], strict=False)
        return [r for before, r in pairs if replace(r, step=before.step) == before]

    @property
    def telling(self) -> list[AblationRow]:
        """The other rows."""
        idle = {r.step for r in self.idle}
        return [r for r in self.rows if r.step not in idle]

    def row(self, step: str) -> AblationRow | None:
        """The row of a step, if it ran."""
        return next((r for r in self.rows if r.step == step and not r.reason), None)


@dataclass(frozen=True)
class Claim:
    """A published claim beside what npusim finds."""

    topic: str
    claim: str
    found: str


#: What binds a stretch of a run, as a lower precision sees it.
CUBE, MOVES, VECTOR, FIXED = "cube", "transfers and memory", "vector", "launches"


@dataclass(frozen=True)
class PrecisionGain:
    """A model in fp32 beside a precision of 16 bits, with the same passes.

    Attributes:
        slow_us, fast_us: the runs; slow_tasks, fast_tasks: their launches.
        cube_gain: peak of the cube in the precision over its peak in fp32.
        shares: what binds → share of the run in fp32.
    """

    model: str
    batch: int
    chip: str
    precision: str
    slow_us: float
    fast_us: float
    slow_tasks: int
    fast_tasks: int
    cube_gain: float
    shares: dict[str, float]

    @property
    def gain(self) -> float:
        """How many times faster the precision is."""
        return self.slow_us / self.fast_us

    @property
    def most(self) -> dict[str, float]:
        """What binds → how many times less it takes at most: bytes and lanes give 2."""
        return {CUBE: self.cube_gain, MOVES: 2.0, VECTOR: 2.0, FIXED: 1.0}

    @property
    def ceiling(self) -> float:
        """How many times faster it can be with the same kernels (Amdahl)."""
        return 1 / sum(share / self.most[what] for what, share in self.shares.items())
