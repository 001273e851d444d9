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


def segment_sum(rng: Random, size: int) -> KernelArgs:
    """UnsortedSegmentSum: rows added into segments."""
    rows, width, segments = rng.randint(1, 60), 8 * rng.randint(1, 12), rng.randint(1, 50)
    data, out = OperandSpec((rows, width), F32), OperandSpec((segments, width), F32)
    indices = OperandSpec((rows,), DType.INT32)
    attrs = (("num_segments", segments),)
    return KernelArgs("UnsortedSegmentSum", (data, indices), (out,), attrs)


def row_by_row(rng: Random, size: int) -> KernelArgs:
    """SoftmaxV2 of ragged rows, or SoftmaxCrossEntropyWithLogits."""
    m, n, dtype = rng.randint(1, 60), rng.randint(1, 12 * size), rng.choice([F16, F32])
    x, loss = OperandSpec((m, n), dtype), OperandSpec((m,), dtype)
    if rng.random() < 0.5:
        return KernelArgs("SoftmaxV2", (x,), (x,))
    return KernelArgs("SoftmaxCrossEntropyWithLogits", (x, x), (loss, x))


def long_rows(rng: Random, size: int) -> KernelArgs:
    """LogSoftmaxV2 or LogSoftmaxGrad of rows in pieces."""
    x = OperandSpec((rng.randint(1, 20), rng.randint(1, 30000)), F32)
    if rng.random() < 0.5:
        return KernelArgs("LogSoftmaxV2", (x,), (x,))
    return KernelArgs("LogSoftmaxGrad", (x, x), (x,))


def bias_grad(rng: Random, size: int) -> KernelArgs:
    """The sum of a matrix over its rows, plain or in blocks of 16 columns."""
    dtype = rng.choice([F16, F32])
    if rng.random() < 0.5:
        shape, out = (rng.randint(1, 9), 16 * rng.randint(1, 40), 16), (0, 2)
    else:
        shape, out = (rng.randint(1, 400), rng.randint(2, 12 * size)), (1,)
    x, y = OperandSpec(shape, dtype), OperandSpec(tuple(shape[i] for i in out), dtype)
    return KernelArgs("ReduceSum", (x,), (y,), (("axes", (len(shape) - 2,)), ("keepdims", 0)))


def library_reduce(rng: Random, size: int) -> KernelArgs:
    """ReduceSum or ReduceMean of rows, matrices, or one wide matrix."""
    dtype, kind = rng.choice([F16, F32]), rng.choice(["ReduceSum", "ReduceMean"])
    shape, axis = rng.choice([
        ((rng.randint(8, 200), rng.randint(1, 20 * size)), 1),
        ((rng.randint(8, 60), rng.randint(1, 50), rng.randint(2, 100)), 1),
        ((rng.randint(1, 40), rng.randint(2, 30000)), 0),
    ])  # fmt: skip
    out = shape[:axis] + shape[axis + 1 :]
    attrs = (("axes", (axis,)), ("keepdims", 0))
    return KernelArgs(kind, (OperandSpec(shape, dtype),), (OperandSpec(out, dtype),), attrs)


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
    "BiasGrad": bias_grad,
    "ColumnSums": column_sums,
    "LibraryReduce": library_reduce,
    "LongRows": long_rows,
    "RowByRow": row_by_row,
    "FloatStatus": float_status,
    "RowTiles": row_tiles,
    "SegmentSum": segment_sum,
}
