"""Base of the kernels that only copy: Move, TransData, Transpose state their copies and no more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from npusim.chip.spec import ChipSpec
from npusim.errors import UnsupportedError
from npusim.kernels import strided, strided_program
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.strided import Job
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, Plan, Tiling


class StridedKernel(TileKernel):
    """A kernel made of strided copies (`strided`): subclasses give `jobs` and `refuse`."""

    core_type = "AIV"

    @staticmethod
    def jobs(args: KernelArgs) -> Sequence[Job]:
        """The copies that the launch consists of."""
        raise UnsupportedError("jobs of an abstract kernel", "-", "implement jobs")

    @classmethod
    def tilings(cls, args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Tile sizes."""
        return strided.tilings(cls.jobs(args), chip)

    @classmethod
    def estimate(cls, args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """Cycles of the busiest block."""
        return strided.estimate(cls.jobs(args), chip, tiling)

    @classmethod
    def plan(cls, args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Tiles dealt to blocks."""
        return strided.plan(cls.jobs(args), args, chip, tiling)

    @classmethod
    def body(cls, k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """The block's tiles."""
        return strided_program.body(k, cls.jobs(args), tiling, block)
