"""The vector unit's instructions: name, cost class, arithmetic.

Names follow the intrinsics (vadd, vmuls …) without the leading v; cost classes are the keys of
`core.vector.costs` in a chip's YAML.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.errors import KernelError, nearest
from npusim.program.region import Region

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class VectorSpec:
    """A vector instruction: its cost class, arithmetic, and whether it takes a scalar."""

    cost: str
    fn: Callable[..., Array]
    scalar: bool = False


def _select(mask: Array, a: Array, b: Array) -> Array:
    return np.where(mask != 0, a, b)


def _select_bits(mask: Array, a: Array) -> Array:
    bits = np.unpackbits(mask.reshape(-1), count=a.size, bitorder="little")
    return np.where(bits.reshape(a.shape), a, np.zeros((), a.dtype))


def _bits_of(bits: Array, like: Array) -> Array:
    return np.unpackbits(bits, axis=-1, bitorder="little").reshape(like.shape)


_SPECS: dict[str, VectorSpec] = {
    "add": VectorSpec("binary", np.add),
    "sub": VectorSpec("binary", np.subtract),
    "mul": VectorSpec("binary", np.multiply),
    "max": VectorSpec("binary", np.maximum),
    "min": VectorSpec("binary", np.minimum),
    "and": VectorSpec("binary", np.bitwise_and),
    "or": VectorSpec("binary", np.bitwise_or),
    "not": VectorSpec("unary", lambda x: np.bitwise_not(x)),
    "div": VectorSpec("div", np.divide),
    "axpy": VectorSpec("mla", lambda d, x, s: d + x * s, scalar=True),
    "mla": VectorSpec("mla", lambda d, x, y: d + x * y),
    "madd": VectorSpec("mla", lambda d, x, y: d * x + y),
    "adds": VectorSpec("unary", lambda x, s: x + s, scalar=True),
    "muls": VectorSpec("unary", lambda x, s: x * s, scalar=True),
    "maxs": VectorSpec("unary", lambda x, s: np.maximum(x, s), scalar=True),
    "mins": VectorSpec("unary", lambda x, s: np.minimum(x, s), scalar=True),
    "abs": VectorSpec("unary", np.abs),
    "relu": VectorSpec("unary", lambda x: np.maximum(x, np.zeros((), x.dtype))),
    "exp": VectorSpec("exp", np.exp),
    "ln": VectorSpec("ln", np.log),
    "rec": VectorSpec("rec", lambda x: np.ones((), x.dtype) / x),
    "sqrt": VectorSpec("sqrt", np.sqrt),
    "rsqrt": VectorSpec("rsqrt", lambda x: np.ones((), x.dtype) / np.sqrt(x)),
    "conv": VectorSpec("conv", lambda x: x),
    "floor": VectorSpec("conv", np.floor),
    "ceil": VectorSpec("conv", np.ceil),
    "round": VectorSpec("conv", np.rint),
    "dup": VectorSpec("dup", lambda s: s, scalar=True),
    "copy": VectorSpec("dup", lambda x: x),
    "eq": VectorSpec("compare", np.equal),
    "ne": VectorSpec("compare", np.not_equal),
    "lt": VectorSpec("compare", np.less),
    "le": VectorSpec("compare", np.less_equal),
    "gt": VectorSpec("compare", np.greater),
    "ge": VectorSpec("compare", np.greater_equal),
    "sel": VectorSpec("select", _select),
    "sel_bits": VectorSpec("select", _select_bits),
    "transpose": VectorSpec("transpose", lambda x: x),
    "brcb": VectorSpec("transpose", lambda x: x),  # one element into a 32 B block each
    "gather": VectorSpec("gather", lambda x: x),
    "cadd": VectorSpec("reduce", lambda x: x.sum(axis=-1)),
    "cmax": VectorSpec("reduce", lambda x: x.max(axis=-1)),
    "cmin": VectorSpec("reduce", lambda x: x.min(axis=-1)),
    "cpadd": VectorSpec("binary", lambda x: x[..., ::2] + x[..., 1::2]),  # neighbours in a repeat
    "cgadd": VectorSpec("group_reduce", lambda x: x.sum(axis=-1)),
    "cgmax": VectorSpec("group_reduce", lambda x: x.max(axis=-1)),
    # a whole repeat onto a destination that stays; a compare that packs its bits
    "accumulate": VectorSpec("binary", lambda x: x.sum(axis=0)),
    "pack_positive": VectorSpec("compare", lambda x: np.packbits(x > 0, bitorder="little")),
    "pack_equal": VectorSpec(
        "compare", lambda x, y: np.packbits(x == y, axis=-1, bitorder="little")
    ),
    "select_bits": VectorSpec("select", lambda x, bits: np.where(_bits_of(bits, x), x, 0)),
    "cgmin": VectorSpec("group_reduce", lambda x: x.min(axis=-1)),
}


def get(op: str) -> VectorSpec:
    """The instruction of that name.

    Raises:
        KernelError: no such instruction.
    """
    spec = _SPECS.get(op)
    if spec is None:
        raise KernelError(
            f"vector instruction {op!r}",
            ", ".join(_SPECS),
            f"use {nearest(op, _SPECS) or 'one of these'}",
        )
    return spec


def bind(spec: VectorSpec, scalar: Any, dst: Region) -> Callable[..., Array]:
    """The arithmetic with its scalar operand in place."""
    if not spec.scalar:
        return spec.fn
    if spec.cost == "dup":
        return lambda: np.broadcast_to(np.asarray(scalar), dst.shape)
    kind = np.float32 if dst.dtype.kind in "fV" else dst.dtype
    value = np.asarray(scalar, kind)
    return lambda *x: spec.fn(*x, value)
