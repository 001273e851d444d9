"""What the argmax pools share: the launch's geometry, its operands as regions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.kernels.bands import window_of
from npusim.kernels.lang import Kernel
from npusim.ops.window import Window
from npusim.program.kernel import KernelArgs
from npusim.program.region import GM, Region

C0 = 16
BYTE = np.dtype(np.uint8)
BITS = np.dtype(np.uint16)  #: of a mask: 16 channels of one position and tap
FORWARD, BACKWARD = "MaxPoolWithArgmax", "MaxPoolGradWithArgmax"
OP_TYPES = (FORWARD, BACKWARD)


@dataclass(frozen=True)
class Job:
    """A launch: slices (n, c1), its window, its direction."""

    slices: int
    window: Window
    forward: bool

    @staticmethod
    def of(args: KernelArgs) -> Job:
        """From the launch's arguments."""
        n, c1 = args.operands[0].storage_shape[:2]
        window = window_of(args, tuple(args.attr("kernel_shape")))
        return Job(n * c1, window, args.op_type == FORWARD)


@dataclass(frozen=True)
class Band:
    """Outputs [first, first + outputs) of a slice, and what a program does with them.

    Attributes:
        first, outputs: rows of outputs that the band works on.
        low, high: rows of the result that it writes.
        loaded: rows of the tensor (forward: x, gradient: dy) that it loads.
    """

    first: int
    outputs: int
    low: int
    high: int
    loaded: int


class Operands:
    """A launch's operands in GM."""

    def __init__(self, k: Kernel, args: KernelArgs, job: Job) -> None:
        self.k, self.args, self.job, self.w = k, args, job, job.window
        self.kind = args.operands[0].dtype.np

    def image(self, index: int) -> Region:
        """An operand as (slices, H, W, 16)."""
        spec = self.args.operands[index]
        return Region.dense(GM, index, 0, (self.job.slices, *spec.storage_shape[2:]), self.kind)

    def mask(self, index: int) -> Region:
        """The mask as (slices, taps, positions)."""
        shape = (self.job.slices, *self.args.operands[index].shape[2:])
        return Region.dense(GM, index, 0, shape, BITS)


def packed(bits: Region) -> Region:
    """Bits (…) as the bytes (…, 2) that compares write and selects read."""
    return Region.dense(bits.space, -1, bits.offset, (*bits.shape, 2), BYTE)
