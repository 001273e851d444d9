"""What a search for better tilings found: plain data for the reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TiledKernel:
    """A kernel with its arguments, and the tiling that was chosen for it.

    Attributes:
        shapes: of the operands, as text; launches: how often the model launches it.
        before, after: cycles of all its launches, their overhead included, with the compiler's
            tiling and with the one chosen.
        blocks_before, blocks_after: block dims of the two.
        simulated: launches that the search timed for it, this time or when it was cached.
        cached: it was found on disk.
    """

    kernel: str
    op_type: str
    shapes: str
    launches: int
    before: int
    after: int
    blocks_before: int
    blocks_after: int
    simulated: int
    cached: bool


@dataclass(frozen=True)
class TilingGain:
    """What a search gained.

    Attributes:
        clock: Hz, to turn cycles into seconds.
        total_before, total_after: cycles of the model's run.
        seconds: the search took, on this computer.
        notes: what the user should know, such as a cache that cannot be written.
    """

    chip: str
    clock: float
    kernels: tuple[TiledKernel, ...]
    total_before: int
    total_after: int
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def saved(self) -> float:
        """Share of the run's time that is gone."""
        return 1 - self.total_after / self.total_before if self.total_before else 0.0

    def us(self, cycles: float) -> float:
        """Cycles in microseconds."""
        return cycles / self.clock * 1e6
