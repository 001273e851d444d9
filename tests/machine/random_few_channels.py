"""Random launches on images of at most 4 channels, as `random_launches` has them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from npusim.ir import DType, Layout
from npusim.ir.layout import C04
from npusim.program.kernel import KernelArgs, OperandSpec

F16, F32 = DType.FLOAT16, DType.FLOAT32


def transdata(rng: Random, size: int) -> KernelArgs:
    """An image that goes into blocks of 4 channels."""
    shape = (rng.randint(1, 3), rng.randint(1, C04), rng.randint(1, size), rng.randint(1, size))
    image = OperandSpec(shape, F16, Layout.NC1HWC0_C04)
    return KernelArgs("TransData", (OperandSpec(shape, rng.choice([F16, F32])),), (image,))


def in_blocks_of_four(args: KernelArgs) -> KernelArgs:
    """A convolution with its image and weights in the C04 layouts, where they have such."""
    x, w = args.operands[:2]
    if x.dtype is not F16 or x.shape[1] > C04:
        return args
    pair = replace(x, layout=Layout.NC1HWC0_C04), replace(w, layout=Layout.FRACTAL_Z_C04)
    return replace(args, inputs=(*pair, *args.inputs[2:]))


MAKERS = {"TransDataC04": transdata}
