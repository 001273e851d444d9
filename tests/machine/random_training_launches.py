"""Random launches of the kernels that training profiles need, as `random_launches` has them."""

from __future__ import annotations

from random import Random

from npusim.ir import DType, Layout
from npusim.program.kernel import KernelArgs, OperandSpec

F16, F32 = DType.FLOAT16, DType.FLOAT32
NZ, NC = Layout.FRACTAL_NZ, Layout.NC1HWC0


def batch_norm(rng: Random, size: int) -> KernelArgs:
    """BNTrainingUpdateGrad: dy, x, mean, variance → two sums per channel."""
    n, c1, h, w = rng.randint(1, 4), rng.randint(1, 4), rng.randint(1, 9), rng.randint(1, 9)
    x = OperandSpec((n, 16 * c1, h, w), F16, NC)
    s = OperandSpec((1, 16 * c1, 1, 1), F32, NC)
    return KernelArgs("BNTrainingUpdateGrad", (x, x, s, s), (s, s))


def row_tiles(rng: Random, size: int) -> KernelArgs:
    """SoftmaxV2 over the rows of a FRACTAL_NZ tensor."""
    x = OperandSpec((rng.randint(1, 6), 16 * rng.randint(1, 8), 16 * rng.randint(1, 8)), F16, NZ)
    return KernelArgs("SoftmaxV2", (x,), (x,))


def column_sums(rng: Random, size: int) -> KernelArgs:
    """LayerNormBetaGammaBackpropV2: dy, standardised x → sums over the rows."""
    width = 16 * rng.randint(1, 24)
    x = OperandSpec((rng.randint(1, 4), rng.randint(1, 40), width), F32)
    s = OperandSpec((width,), F32)
    return KernelArgs("LayerNormBetaGammaBackpropV2", (x, x), (s, s))


def pool_argmax(rng: Random, size: int) -> KernelArgs:
    """MaxPoolWithArgmax 3×3, stride 2: maxima and a bit per tap and output."""
    n, c1, h = rng.randint(1, 3), rng.randint(1, 3), rng.randint(5, 17)
    out = (h - 3) // 2 + 1
    x, y = OperandSpec((n, 16 * c1, h, h), F16, NC), OperandSpec((n, 16 * c1, out, out), F16, NC)
    mask = OperandSpec((n, c1, 9, (-(-out * out // 16) + 1) * 16), DType.UINT16)
    attrs = (("kernel_shape", (3, 3)), ("pads", (0, 0, 0, 0)), ("strides", (2, 2)))
    return KernelArgs("MaxPoolWithArgmax", (x,), (y, mask), attrs)


def segment_sum(rng: Random, size: int) -> KernelArgs:
    """UnsortedSegmentSum: rows added into segments."""
    rows, width, segments = rng.randint(1, 60), 8 * rng.randint(1, 12), rng.randint(1, 50)
    data, out = OperandSpec((rows, width), F32), OperandSpec((segments, width), F32)
    indices = OperandSpec((rows,), DType.INT32)
    attrs = (("num_segments", segments),)
    return KernelArgs("UnsortedSegmentSum", (data, indices), (out,), attrs)


def atomic_clean(rng: Random, size: int) -> KernelArgs:
    """MemSet to zero of up to a few pieces a block."""
    return KernelArgs("MemSet", (), (OperandSpec((rng.randint(1, 1 << 20),), F32),))


def float_status(rng: Random, size: int) -> KernelArgs:
    """NPUGetFloatStatus."""
    status = OperandSpec((8,), F32)
    return KernelArgs("NPUGetFloatStatus", (status,), (status,))


MAKERS = {
    "AtomicClean": atomic_clean,
    "BatchNorm": batch_norm,
    "ColumnSums": column_sums,
    "FloatStatus": float_status,
    "PoolArgmax": pool_argmax,
    "RowTiles": row_tiles,
    "SegmentSum": segment_sum,
}
