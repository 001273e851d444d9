"""What the operator families share: axes, static operands, errors, elementwise declarations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, signature
from typing import Any

import numpy as np

from npusim.errors import GraphError, NeedsValuesError, UnsupportedError
from npusim.ir import DType, TensorType
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator


def check(ok: bool, what: str, allowed: str, fix: str = "correct the shapes of the model") -> None:
    """Raise GraphError unless `ok`."""
    if not ok:
        raise GraphError(what, allowed, fix)


def supported(ok: bool, what: str, allowed: str, fix: str = "rewrite the model") -> None:
    """Raise UnsupportedError unless `ok`."""
    if not ok:
        raise UnsupportedError(what, allowed, fix)


def axis_of(axis: int, rank: int) -> int:
    """`axis` counted from the front.

    Raises:
        GraphError: it lies outside the rank.
    """
    check(-rank <= axis < rank, f"axis {axis} of a rank-{rank} tensor", f"{-rank} … {rank - 1}")
    return int(axis) % rank if rank else 0


def axes_of(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Several axes counted from the front, sorted; GraphError when one repeats."""
    found = sorted(axis_of(int(a), rank) for a in axes)
    check(len(set(found)) == len(found), f"axes {found} repeat one", "distinct axes")
    return tuple(found)


def ints(value: np.ndarray) -> tuple[int, ...]:
    """An integer array as a tuple of Python ints."""
    return tuple(int(v) for v in value.reshape(-1))


def static(x: Inputs, i: int, role: str) -> np.ndarray:
    """Value of operand `i`, which the output shape depends on.

    Raises:
        NeedsValuesError: the value is not known before the run.
    """
    value = x.value(i)
    if value is None:
        raise NeedsValuesError(
            f"operand {i} ({role}) is computed at run time, and the output shape depends on it",
            "constants, and what follows from shapes or from values given for the inputs",
            "load the model with values of its inputs, or make the operand an initializer",
        )
    return value


def static_ints(x: Inputs, i: int, role: str) -> tuple[int, ...]:
    """Integers of the shape-defining operand `i`."""
    return ints(static(x, i, role))


class Movement(Operator):
    """Base of operators that move data and compute nothing."""

    moves_data = True

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work()


def _arity(fn: Callable[..., Any], attrs: Mapping[str, Any]) -> tuple[int, int]:
    """Fewest and most inputs that a semantics function takes."""
    if isinstance(fn, np.ufunc):
        return fn.nin, fn.nin
    parameters = [p for p in signature(fn).parameters.values() if p.name not in attrs]
    return sum(p.default is Parameter.empty for p in parameters), len(parameters)


def elementwise(
    op_type: str,
    fn: Callable[..., np.ndarray],
    *,
    attrs: dict[str, Any] | None = None,
    passes: int = 1,
    dtype: DType | None = None,
) -> type[Operator]:
    """Declare an elementwise operator: `fn(*inputs, **attrs)`.

    Args:
        op_type: the operator's name.
        fn: numpy semantics; must not depend on the rank. Absent optional inputs are None.
        attrs: attributes and their defaults, passed to `fn` by keyword.
        passes: elementary vector operations per output element.
        dtype: element type of the result; that of the first input when None.
    """

    required, most = _arity(fn, attrs or {})

    class Elementwise(Operator):
        @staticmethod
        def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
            given = len(x.types)
            check(
                required <= given <= most, f"{given} inputs", f"{required} to {most}", "repair it"
            )
            (t,) = Operator.infer(x, attrs, 1)
            return [t if dtype is None else TensorType(t.shape, dtype)]

        @staticmethod
        def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
            return [fn(*x, **attrs)]

        @staticmethod
        def work(x: Types, out: Types, attrs: Attrs) -> Work:
            return Work(vector_ops=passes * out[0].size)

    Elementwise.__name__ = Elementwise.__qualname__ = op_type
    Elementwise.__module__ = str(getattr(fn, "__module__", __name__))
    Elementwise.__doc__ = f"{op_type}: {passes} vector operation(s) per element."
    Elementwise.attrs = attrs or {}
    Elementwise.elementwise = True
    return operator(op_type)(Elementwise)
