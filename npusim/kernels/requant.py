"""int32 sums made real, or bytes again, on their way out of L0C: AscendDequant, AscendRequant.

Each as the operator of that name computes it (see `quant_expressions`), in the same order and
types, so that a fused step gives what a kernel of its own would, bit for bit:

    dequant     fp32(sum) · scale                                           → fp16, fp32
    requant     round(fp32(sum) · scale) + offset, saturated                → int8, uint8

The scale is one value or one per column. On chips with FIXP it does this on the way; it keeps the
upper 19 bits of a scale (aclnnTransQuantParam: scale & 0xFFFFE000), and 9 bits of an offset.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, EpilogueStep, Layout
from npusim.ops.conv import BYTES
from npusim.ops.quantization import integer_range
from npusim.program.effects import Quantised
from npusim.program.kernel import KernelArgs

DEQUANT, REQUANT = "AscendDequant", "AscendRequant"
STEPS = (DEQUANT, REQUANT)
DROPPED = 0x1FFF  #: bits of a scale that FIXP does not keep


@dataclass(frozen=True)
class Quant:
    """The step of a launch. `operand`: of the scales, None where `scale` is the only one."""

    operand: int | None
    scale: float
    offset: int
    to: DType

    @property
    def narrows(self) -> bool:
        """The result is bytes."""
        return self.to in BYTES

    @property
    def limits(self) -> tuple[int, int]:
        """Least and largest value of the result, where it is bytes."""
        return integer_range(self.to)

    def on_fixp(self) -> Quantised:
        """What FIXP is told."""
        return Quantised(self.scale, self.offset, self.limits if self.narrows else None)


def quant_of(steps: tuple[EpilogueStep, ...]) -> Quant | None:
    """The quantisation that ends an epilogue."""
    if not steps or steps[-1].op_type not in STEPS:
        return None
    step, attrs = steps[-1], dict(steps[-1].attrs)
    scale = 1.0 if step.operand is not None else float(attrs["const1"])
    return Quant(step.operand, scale, int(attrs.get("offset", 0)), DType.of(attrs["to"]))


def fits_fixp(scale: np.ndarray, offset: int) -> bool:
    """Whether FIXP holds scales and an offset as they are."""
    bits = np.ascontiguousarray(scale, np.float32).view(np.uint32)
    return not (bits & DROPPED).any() and -256 <= offset < 256


def refuse_quant(args: KernelArgs, step: EpilogueStep, chip: ChipSpec) -> str:
    """'' when a cube result can leave so, else why not."""
    x, out, attrs = args.operands[0], args.outputs[0], dict(step.attrs)
    if x.dtype.is_float or args.epilogue != (step,):
        return f"{step.op_type} of other than plain int32 sums"
    narrow = step.op_type == REQUANT
    kinds = BYTES if narrow else (DType.FLOAT16, DType.FLOAT32)
    if out.dtype not in kinds or DType.of(attrs["to"]) is not out.dtype:
        return f"{step.op_type} to {out.dtype.value}"
    columns = 1 if out.layout is Layout.NC1HWC0 else len(out.shape) - 1
    if step.operand is not None:
        scales = args.operands[step.operand]
        if scales.nbytes != 4 * out.shape[columns] or scales.dtype is not DType.FLOAT32:
            return "scales that are not one fp32 value per column"
    elif "const1" not in attrs:
        return "scales that are not known"
    elif chip.core.fixp is not None and not fits_fixp(np.array(attrs["const1"]), 0):
        return "FIXP keeps 19 bits of a scale"
    if narrow and out.layout is Layout.FRACTAL_NZ:
        return "bytes leave in ND or NC1HWC0"
    pairs = narrow and out.layout is Layout.NC1HWC0
    if pairs and chip.core.fixp is not None and -(-out.shape[1] // 16) % 2:
        return "FIXP joins whole pairs of channel blocks"
    return ""
