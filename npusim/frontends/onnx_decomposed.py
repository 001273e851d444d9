"""Operators that chips have no kernel of their own for, as the kernels that they do have."""

from __future__ import annotations

import numpy as np

from npusim.frontends.onnx_formula import Formula
from npusim.frontends.onnx_opset import NEWEST, Builder, rule
from npusim.ir import DType, Node

MOST_ELEMENTS = 1 << 24  #: elements of the largest matrix that becomes a constant


@rule("CastLike", until=NEWEST)
def _cast_like(node: Node, builder: Builder, opset: int) -> list[Node]:
    to = builder.type(node.inputs[1]).dtype.value
    attrs = {**node.attrs, "to": to}
    return [node.with_(op_type="Cast", inputs=node.inputs[:1], attrs=attrs)]


@rule("LpNormalization", until=NEWEST)
def _lp_normalization(node: Node, builder: Builder, opset: int) -> list[Node]:
    """x / max(norm, the smallest normal number): zeros stay zero."""
    p, x = node.attrs.get("p", 2), node.inputs[0]
    dtype = builder.type(x).dtype
    if p not in (1, 2) or not dtype.is_float:
        return [node]
    f = Formula(node, builder, x)
    norm = f(f"ReduceL{p}", x, f.integers([node.attrs.get("axis", -1)]))
    f(
        "Div",
        x,
        f("Max", norm, f.number(_SMALLEST.get(dtype.value, 2.0**-126))),
        into=node.outputs[0],
    )
    return f.nodes


_SMALLEST = {"float16": 2.0**-14}  #: normal numbers of other types than fp32's range


@rule("MeanVarianceNormalization", until=NEWEST)
def _mean_variance(node: Node, builder: Builder, opset: int) -> list[Node]:
    """(x - mean) / √(variance + 1e-9), of the deviations, so that nothing cancels."""
    f, x = Formula(node, builder, node.inputs[0]), node.inputs[0]
    axes = f.integers(node.attrs.get("axes", (0, 2, 3)))
    off = f("Sub", x, f("ReduceMean", x, axes))
    variance = f("ReduceMean", f("Mul", off, off), axes)
    f("Div", off, f("Sqrt", f("Add", variance, 1e-9)), into=node.outputs[0])
    return f.nodes


@rule("Trilu", until=NEWEST)
def _trilu(node: Node, builder: Builder, opset: int) -> list[Node]:
    """A selection by a constant mask, where the diagonal is known and the mask not huge."""
    x, shape = node.inputs[0], builder.type(node.inputs[0]).shape
    k = builder.known(node.inputs[1]) if len(node.inputs) > 1 else np.array(0)
    if k is None or len(shape) < 2 or shape[-1] * shape[-2] > MOST_ELEMENTS:
        return [node]
    f, ones = Formula(node, builder, x), np.ones(shape[-2:], np.bool_)
    fill = np.triu if node.attrs.get("upper", 1) else np.tril
    f("Where", f.array(fill(ones, int(k.item()))), x, 0.0, into=node.outputs[0])
    return f.nodes


@rule("EyeLike", until=NEWEST)
def _eye_like(node: Node, builder: Builder, opset: int) -> list[Node]:
    """A constant: only the shape of the operand counts."""
    t = builder.type(node.inputs[0])
    dtype = DType.of(node.attrs["dtype"]) if "dtype" in node.attrs else t.dtype
    if len(t.shape) != 2 or t.size > MOST_ELEMENTS:
        return [node]
    f = Formula(node, builder, node.inputs[0])
    eye = np.eye(*t.shape, node.attrs.get("k", 0)).astype(dtype.np)
    f("Identity", f.array(eye), into=node.outputs[0])
    return f.nodes
