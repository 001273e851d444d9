"""What convolutions on chips with FIXP share: HF32 products, fractals of any C0, ways out of L0C.

In fp32 such a chip stores blocks of C0 = 8 channels, so a fractal is 16 × 8 and 512 B as in fp16.
Convolutions in fp32 run in HF32 by default: the cube takes the upper 19 bits of an operand, at
twice the rate of fp32. Results are 16 columns wide all the same: two blocks of 8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import Layout
from npusim.kernels.lang import Kernel
from npusim.program import cost, effects
from npusim.program.isa import CoreMemory, Instr, Kind, Pipe
from npusim.program.kernel import KernelArgs
from npusim.program.region import Region

IMAGES = {Layout.NC1HWC0: Layout.FRACTAL_Z, Layout.NC1HWC0_8: Layout.FRACTAL_Z_8}
HF32 = "hfloat32"
#: How much longer load2d takes that transposes 32-bit elements: of dY, whose fractals come in
#: pairs, and of weights that are turned round, piece by piece. From MTE1's busy time in two
#: gradients of each kind on the 910B2.
TRANSPOSED, TURNED = 2.0, 3.5
_DROPPED = 13  #: lower bits of an fp32 that HF32 lacks


def cube_type(args: KernelArgs) -> str:
    """The key of `core.cube.k` that the launch's products run at."""
    dtype = args.operands[0].dtype.value
    return HF32 if dtype == "float32" and args.get("hf32") else dtype


def refuse_types(args: KernelArgs, chip: ChipSpec, images: tuple[int, ...], weights: int) -> str:
    """Why the operands' types or layouts do not fit; `images`, `weights`: operand indices."""
    if chip.core.fixp is None:
        return "L0C leaves through the vector unit"
    layout = args.operands[images[0]].layout
    if layout not in IMAGES or any(args.operands[i].layout is not layout for i in images):
        return "needs images in NC1HWC0, all with one C0"
    if args.operands[weights].layout is not IMAGES[layout]:
        return "needs weights in FRACTAL_Z, with the C0 of the images"
    dtype = args.operands[0].dtype
    if not dtype.is_float or cube_type(args) not in chip.core.cube.k:
        return f"the cube takes {', '.join(chip.core.cube.k)}, not {cube_type(args)}"
    if layout is Layout.NC1HWC0_8 and dtype.size != 4:
        return f"C0 = 8 of {dtype.value}: blocks are 32 B"
    if layout is Layout.NC1HWC0 and dtype.size != 2:
        return f"C0 = 16 of {dtype.value}: blocks are 32 B"
    if any(d != 1 for d in args.get("dilations") or ()) and "Backprop" in args.op_type:
        return "gradients of dilated windows"
    return ""


def _hf32(a: np.ndarray) -> np.ndarray:
    """fp32 values rounded to the 10 bits of mantissa that HF32 keeps."""
    bits = np.ascontiguousarray(a).view(np.uint32)
    half = np.uint32((1 << (_DROPPED - 1)) - 1)
    rounded = bits + half + ((bits >> np.uint32(_DROPPED)) & np.uint32(1))
    kept = (rounded >> np.uint32(_DROPPED)) << np.uint32(_DROPPED)
    return np.where(np.isfinite(a), kept.view(np.float32), a)


@dataclass(slots=True)
class HfMmad(effects.Mmad):
    """A product of operands rounded to HF32."""

    def read(self, memory: CoreMemory) -> np.ndarray:
        """The product in C's fractal order."""
        rounded = _Rounded(memory, (self.a, self.b))
        return effects.Mmad(self.c, self.a, self.b, self.accumulate).read(rounded)


class _Rounded:
    """A memory whose given regions read as HF32."""

    def __init__(self, memory: CoreMemory, regions: tuple[Region, ...]) -> None:
        self._memory, self._regions = memory, regions

    def view(self, region: Region) -> np.ndarray:
        """The values of a region."""
        values = self._memory.view(region)
        return _hf32(values) if any(region is r for r in self._regions) else values


def mmad(k: Kernel, kind: str, c: Region, a: Region, b: Region, accumulate: bool) -> Instr:
    """M: C (+)= A · B at the rate of a key of `core.cube.k`."""
    if kind != HF32:
        return k.mmad(c, a, b, accumulate)
    m1, k1, _, k0 = a.shape
    cycles = cost.mmad_cycles(k.chip, m1, k1 * k0, b.shape[1], kind)
    effect = HfMmad(c, a, b, accumulate) if k.functional else None
    cube, issue = k.chip.core.cube, k.chip.core.scalar.issue
    return Instr(Kind.LOCAL, Pipe.M, "mmad", issue, cycles, cube.tail, effect)


def load3d_rate(chip: ChipSpec, fractal_bytes: int, itemsize: int) -> float:
    """Cycles of a load3d per fractal and stride_w: by its bytes, whatever its element type."""
    return chip.core.mte1.load3d_cycles * fractal_bytes / 512 / max(1.0, itemsize / 2)


def by_channel_blocks(local: Region, c0: int) -> Region:
    """(N1, rows, 16) of L0C as (N1, blocks of C0, rows, C0)."""
    return local.split(2, c0).permute(0, 2, 1, 3)
