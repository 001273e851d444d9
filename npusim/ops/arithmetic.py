"""Arithmetic of two or more tensors, with numpy broadcasting."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from npusim.ops.common import elementwise
from npusim.ops.registry import Arrays, Attrs, Operator, Types, Work, operator


def _div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Floats divide; integers divide and truncate towards zero, as ONNX has it."""
    if a.dtype.kind not in "iu":
        return a / b
    q = a // b
    return q if a.dtype.kind == "u" else q + ((a % b != 0) & ((a < 0) != (b < 0)))


def _mod(a: np.ndarray, b: np.ndarray, fmod: int) -> np.ndarray:
    """fmod=0: sign of the divisor; fmod=1: sign of the dividend (C's fmod)."""
    return np.fmod(a, b) if fmod else np.mod(a, b)


def _pow(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Powers in the base's type; squares and square roots without the general routine."""
    if b.size == 1 and a.dtype.kind == "f":
        exponent = float(b.reshape(-1)[0])
        if exponent == 2.0:
            return np.broadcast_to(a * a, np.broadcast_shapes(a.shape, b.shape))
    if a.dtype.kind in "iu" and b.dtype.kind == "f":
        a = a.astype(b.dtype)
    return np.power(a, b.astype(a.dtype) if a.dtype.kind == "f" else b)


elementwise("Add", np.add)
elementwise("Sub", np.subtract)
elementwise("Mul", np.multiply)
elementwise("Div", _div)
elementwise("Mod", _mod, attrs={"fmod": 0}, passes=4)
elementwise("Pow", _pow, passes=3)


class _Variadic(Operator):
    """Base of the operators that fold any number of tensors by `step`."""

    elementwise = True
    step: Any  # a binary numpy function

    @classmethod
    def compute(cls, x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [reduce(cls.step, (a for a in x if a is not None))]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=max(len(x) - 1, 0) * out[0].size)


@operator("Sum")
class Sum(_Variadic):
    step = staticmethod(np.add)


@operator("Max")
class Max(_Variadic):
    step = staticmethod(np.maximum)


@operator("Min")
class Min(_Variadic):
    step = staticmethod(np.minimum)


@operator("Mean")
class Mean(_Variadic):
    step = staticmethod(np.add)

    @classmethod
    def compute(cls, x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        (total,) = super().compute(x, attrs, out)
        return [total / np.asarray(len(x), total.dtype)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=len(x) * out[0].size)
