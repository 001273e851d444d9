"""Random launches of the library's row kernels, as `random_launches` has them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from npusim.ir import DType
from npusim.program.kernel import KernelArgs, OperandSpec

F16, F32 = DType.FLOAT16, DType.FLOAT32


def _rows(rng: Random, size: int) -> tuple[tuple[int, int], DType]:
    return (rng.randint(1, 8 * size), rng.randint(1, 30 * size)), rng.choice([F16, F32])


def rms_norm(rng: Random, size: int) -> KernelArgs:
    """RmsNorm or AddRmsNorm."""
    shape, dtype = _rows(rng, size)
    x, gamma = OperandSpec(shape, dtype), OperandSpec(shape[1:], dtype)
    rstd = OperandSpec((shape[0], 1), F32)
    if rng.random() < 0.5:
        return KernelArgs("RmsNorm", (x, gamma), (x, rstd))
    return KernelArgs("AddRmsNorm", (x, x, gamma), (x, rstd, x))


def rms_norm_grad(rng: Random, size: int) -> KernelArgs:
    """Rows on either side of what a tile merges."""
    shape, dtype = _rows(rng, size)
    x, gamma = OperandSpec(shape, dtype), OperandSpec(shape[1:], dtype)
    rstd, dgamma = OperandSpec((shape[0], 1), F32), OperandSpec(shape[1:], F32)
    return KernelArgs("RmsNormGrad", (x, x, rstd, gamma), (x, dgamma))


def layer_norm_grad(rng: Random, size: int) -> KernelArgs:
    """dy, x, two statistics a row, scale."""
    shape, dtype = _rows(rng, size)
    x, gamma = OperandSpec(shape, dtype), OperandSpec(shape[1:], dtype)
    row, column = OperandSpec((shape[0], 1), F32), OperandSpec(shape[1:], F32)
    return KernelArgs("LayerNormGradV3", (x, x, row, row, gamma), (x, column, column))


def gated(rng: Random, size: int) -> KernelArgs:
    """SwiGlu, or its gradient."""
    (m, n), dtype = _rows(rng, size)
    half, pair = OperandSpec((m, n), dtype), OperandSpec((m, 2 * n), dtype)
    if rng.random() < 0.5:
        return KernelArgs("SwiGlu", (pair,), (half,))
    return KernelArgs("SwiGluGrad", (half, pair), (pair,))


def rotary(rng: Random, size: int) -> KernelArgs:
    """Heads inside or outside the positions."""
    dtype, s, n = rng.choice([F16, F32]), rng.randint(1, 8 * size), rng.randint(1, 5)
    d = rng.choice([32, 64])
    shape, table = ((s, n, d), (s, 1, d)) if rng.random() < 0.5 else ((n, s, d), (1, s, d))
    x, t = OperandSpec(shape, dtype), OperandSpec(table, dtype)
    op = rng.choice(["RotaryPositionEmbedding", "RotaryPositionEmbeddingGrad"])
    return KernelArgs(op, (x, t, t), (x,))


def arg_value(rng: Random, size: int) -> KernelArgs:
    """The largest of each row."""
    shape, dtype = _rows(rng, size)
    index, value = OperandSpec(shape[:1], DType.INT32), OperandSpec(shape[:1], dtype)
    return KernelArgs("ArgMaxWithValue", (OperandSpec(shape, dtype),), (index, value))


MAKERS: dict[str, Callable[[Random, int], KernelArgs]] = {
    "RmsNorm": rms_norm,
    "RmsNormGrad": rms_norm_grad,
    "LayerNormGrad": layer_norm_grad,
    "Gated": gated,
    "Rotary": rotary,
    "ArgValue": arg_value,
}
