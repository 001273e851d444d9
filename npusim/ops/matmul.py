"""Matrix products."""

from __future__ import annotations

from math import prod

import numpy as np

from npusim.ir import TensorType
from npusim.ops.common import check, supported
from npusim.ops.registry import (
    Arrays,
    Attrs,
    Inputs,
    Operator,
    Types,
    Work,
    broadcast,
    operator,
    schema,
)


def matmul_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a numpy-style matrix product: 1-D operands are a row and a column."""
    check(bool(a) and bool(b), f"a matrix product of shapes {a} and {b}", "rank 1 and more")
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    inner = b[-2] if len(b) > 1 else b[0]
    check(a[-1] == inner, f"a matrix product of {a} and {b}", "equal inner dimensions")
    return (*broadcast(a[:-2], b[:-2]), *rows, *columns)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`a @ b` by BLAS, also for views that numpy would multiply by its slow loop."""
    return np.matmul(_blas_ready(a), _blas_ready(b))


def _blas_ready(a: np.ndarray) -> np.ndarray:
    """`a`, copied when its matrices have no unit-stride dimension (broadcast or strided views)."""
    strides = a.strides[-2:]
    return a if a.itemsize in strides and 0 not in strides else np.ascontiguousarray(a)


@operator("MatMul")
class MatMul(Operator):
    """numpy's matmul: batch dimensions broadcast. A third input, one value per column, is added
    (as in CANN's MatMulV2; the compiler makes it from a following Add)."""

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        a, b = x.type(0), x.type(1)
        return [TensorType(matmul_shape(a.shape, b.shape), a.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        y = product(x[0], x[1])
        if len(x) > 2 and x[2] is not None:
            y += x[2]
        return [y]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(macs=out[0].size * x[0].shape[-1])


@operator("Gemm")
class Gemm(Operator):
    """alpha · A' B' + beta · C, where ' is an optional transpose."""

    attrs = schema(alpha=1.0, beta=1.0, transA=0, transB=0)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        a, b = x.type(0).shape, x.type(1).shape
        check(len(a) == len(b) == 2, f"Gemm of shapes {a} and {b}", "two matrices")
        a = a[::-1] if attrs["transA"] else a
        b = b[::-1] if attrs["transB"] else b
        shape = matmul_shape(a, b)
        if x.has(2):
            c = x.type(2).shape
            fits = len(c) <= 2 and broadcast(c, shape) == shape
            check(fits, f"C of shape {c} for a result {shape}", "a shape that broadcasts to it")
        return [TensorType(shape, x.type(0).dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        a = x[0].T if attrs["transA"] else x[0]
        b = x[1].T if attrs["transB"] else x[1]
        y = product(a, b)
        if attrs["alpha"] != 1:
            y *= y.dtype.type(attrs["alpha"])
        if len(x) > 2 and x[2] is not None and attrs["beta"]:
            y += x[2] if attrs["beta"] == 1 else x[2] * x[2].dtype.type(attrs["beta"])
        return [y]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        inner = x[0].shape[0 if attrs["transA"] else 1]
        return Work(macs=out[0].size * inner)


@operator("Einsum")
class Einsum(Operator):
    """Einstein summation, with an optional ellipsis."""

    attrs = schema(equation=...)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        shapes = [x.type(i).shape for i in range(len(x.types))]
        sizes, batch, result = _einsum_sizes(attrs["equation"], shapes)
        dims: list[int] = []
        for letter in result.replace("...", "*"):
            dims += batch if letter == "*" else (sizes[letter],)
        return [TensorType(tuple(dims), x.type(0).dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        y = np.einsum(attrs["equation"].replace(" ", ""), *x, optimize=True)
        return [np.asarray(y)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        sizes, batch, _ = _einsum_sizes(attrs["equation"], [t.shape for t in x])
        points = prod(sizes.values()) * prod(batch)
        return Work(macs=points) if len(x) > 1 else Work(vector_ops=points)


def _einsum_sizes(
    equation: str, shapes: list[tuple[int, ...]]
) -> tuple[dict[str, int], tuple[int, ...], str]:
    """Extent of each letter, extents of the ellipsis, and the terms of the result."""
    terms, arrow, result = equation.replace(" ", "").partition("->")
    operands = terms.split(",")
    supported(
        len(operands) == len(shapes), f"equation {equation!r} for {len(shapes)} operands", "as many"
    )
    sizes: dict[str, int] = {}
    batch: tuple[int, ...] = ()
    for term, shape in zip(operands, shapes, strict=True):
        front, dots, back = term.partition("...")
        check(
            len(front + back) == len(shape) or (bool(dots) and len(front + back) < len(shape)),
            f"term {term!r} for shape {shape}",
            "one letter per dimension",
        )
        split = len(shape) - len(back)
        if dots:
            batch = broadcast(batch, shape[len(front) : split])
        named = zip(front + back, shape[: len(front)] + shape[split:], strict=True)
        for letter, extent in named:
            known = sizes.setdefault(letter, extent)
            check(
                known == extent or 1 in (known, extent),
                f"index {letter!r} of {equation!r} is {known} and {extent}",
                "one extent per index",
            )
            sizes[letter] = max(known, extent)
    if not arrow:
        letters = terms.replace(",", "").replace(".", "")
        result = "..." * ("..." in terms) + "".join(
            c for c in sorted(sizes) if letters.count(c) == 1
        )
    return sizes, batch, result
