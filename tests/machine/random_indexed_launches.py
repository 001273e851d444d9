"""Random launches of running sums, gathers and scatters, as `random_launches` has them."""

from __future__ import annotations

from random import Random

from npusim.ir import DType
from npusim.program.kernel import KernelArgs, OperandSpec

F16, F32, I32, I64 = DType.FLOAT16, DType.FLOAT32, DType.INT32, DType.INT64


def cumulative(rng: Random, size: int) -> KernelArgs:
    """CumSum or CumProd along any axis."""
    shape = tuple(rng.randint(1, rng.choice([3, 6 * size])) for _ in range(rng.randint(1, 3)))
    x = OperandSpec(shape, rng.choice([F16, F32, I32]))
    flags = [(name, rng.randint(0, 1)) for name in ("exclusive", "reverse")]
    attrs = (("axis", rng.randrange(len(shape))), *flags)
    return KernelArgs(rng.choice(["CumSum", "CumProd"]), (x,), (x,), attrs)


def gather_nd(rng: Random, size: int) -> KernelArgs:
    """Rows by tuples, or elements along an axis."""
    data = OperandSpec(tuple(rng.randint(2, 2 * size) for _ in range(3)), rng.choice([F16, F32]))
    if rng.random() < 0.5:
        axis = rng.randrange(3)
        shape = [*data.shape]
        shape[axis] = rng.randint(1, 2 * size)
        index, out = (OperandSpec(tuple(shape), kind) for kind in (I32, data.dtype))
        return KernelArgs("GatherElements", (data, index), (out,), (("axis", axis),))
    batch, k = rng.randint(0, 1), rng.randint(1, 2)
    chosen = (*data.shape[:batch], rng.randint(1, 8 * size))
    index = OperandSpec((*chosen, k), I64)
    out = OperandSpec((*chosen, *data.shape[batch + k :]), data.dtype)
    return KernelArgs("GatherND", (data, index), (out,), (("batch_dims", batch),))


def _scatter(rng: Random, size: int, widest: int) -> KernelArgs:
    """Rows of at most so many elements, overwritten or combined; a part of a cache."""
    data = OperandSpec(
        (rng.randint(2, 2 * size), rng.randint(2, 2 * size), rng.randint(1, widest)),
        rng.choice([F16, F32]),
    )
    if rng.random() < 0.3:
        shape = (data.shape[0], rng.randint(1, data.shape[1]), data.shape[2])
        update, starts = OperandSpec(shape, data.dtype), OperandSpec(data.shape[:1], I64)
        attrs = (("axis", 1), ("mode", rng.choice(["linear", "circular"])))
        return KernelArgs("TensorScatter", (data, update, starts), (data,), attrs)
    n, k = rng.randint(1, 8 * size), rng.randint(1, 2)
    updates = OperandSpec((n, *data.shape[k:]), data.dtype)
    inputs = (data, OperandSpec((n, k), I64), updates)
    return KernelArgs("ScatterND", inputs, (data,), (_reduction(rng),))


def _reduction(rng: Random) -> tuple[str, str]:
    return "reduction", rng.choice(["none", "none", "add", "mul", "max", "min"])


def scatter_rows(rng: Random, size: int) -> KernelArgs:
    """Rows of a block and more."""
    return _scatter(rng, size, 40 * size)


def scatter_elements(rng: Random, size: int) -> KernelArgs:
    """Elements along an axis, or narrow rows."""
    if rng.random() < 0.4:
        return _scatter(rng, size, 7)
    data = OperandSpec(tuple(rng.randint(2, 2 * size) for _ in range(3)), rng.choice([F16, F32]))
    axis, shape = rng.randrange(3), [*data.shape]
    shape[axis] = rng.randint(1, 2 * size)
    index, updates = (OperandSpec(tuple(shape), t) for t in (I32, data.dtype))
    attrs = (("axis", axis), _reduction(rng))
    return KernelArgs("ScatterElements", (data, index, updates), (data,), attrs)


MAKERS = {
    "Cumulative": cumulative,
    "GatherND": gather_nd,
    "ScatterRows": scatter_rows,
    "ScatterElements": scatter_elements,
}
