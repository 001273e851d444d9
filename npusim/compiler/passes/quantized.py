"""Quantised operators for AI Core kernels: integer products on the cube, scales on the vector unit.

The cube multiplies int8 (or uint8) as stored. Zero points are corrected in the int32 sums, with the
sums of B's columns and A's rows, which are products with ones:

    (A - za) · (B - zb) = A·B - za · colsum(B) - zb · rowsum(A) + K · za · zb

What depends on weights only is folded. Operands of two types, or of one that the cube lacks, are
shifted to int8: x - 128, and so is the zero point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.conv1d import as_row, row_attrs
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.compiler.writing import NodeWriter, names_read
from npusim.ir import DType, Graph, Node
from npusim.ops import attributes
from npusim.ops.common import axis_of

BYTES = (DType.INT8, DType.UINT8)
Lowering = Callable[[NodeWriter, Node, CompileContext], str]


_BECOMES = {
    "MatMulInteger": "MatMulV2",
    "QLinearMatMul": "MatMulV2",
    "ConvInteger": "Conv",
    "QLinearConv": "Conv",
    "QuantizeLinear": "AscendQuant",
    "DequantizeLinear": "AscendAntiQuant",
}


@graph_pass("QuantLoweringPass", Kind.NEEDED, _BECOMES)
def lower_quantized(graph: Graph, ctx: CompileContext) -> Graph:
    """ONNX's quantised operators → MatMulV2 and AscendQuant … AscendRequant."""
    if not any(n.op_type in LOWERINGS for n in graph.nodes):
        return graph
    out, read = graph.copy(), names_read(graph)
    out.nodes = []
    for node in graph.nodes:
        writer = NodeWriter(out, node.name, ctx)
        made = LOWERINGS[node.op_type](writer, node, ctx) if node.op_type in LOWERINGS else ""
        if made:
            writer.finish({made: node.outputs[0]}, read)
        else:
            out.nodes.append(node)
    return out


def _given(node: Node, i: int) -> str:
    """Input i, '' when it is absent."""
    return node.inputs[i] if i < len(node.inputs) else ""


# -- scales ----


def _spread(w: NodeWriter, scale: str, shape: tuple[int, ...], axis: int) -> str:
    """A scale or zero point of one axis in a shape that broadcasts."""
    t = w.type(scale)
    if not t.shape:
        return scale
    if t.size == 1:
        return w.reshape(scale)
    axis = axis_of(axis, len(shape))
    return w.reshape(scale, -1, *(1,) * (len(shape) - axis - 1))


def _scales(w: NodeWriter, node: Node) -> list[str]:
    shape, axis = w.type(node.inputs[0]).shape, attributes(node)["axis"]
    return [_spread(w, i, shape, axis) for i in node.inputs[1:3] if i]


def _quantize(w: NodeWriter, node: Node, ctx: CompileContext) -> str:
    """QuantizeLinear into a byte, without blocks."""
    attrs, x = attributes(node), node.inputs[0]
    to = attrs["output_dtype"] or DType.UINT8.value
    to = w.type(node.inputs[2]).dtype if _given(node, 2) else DType.of(to)
    if attrs["block_size"] or attrs["precision"] or to not in BYTES or not w.type(x).dtype.is_float:
        return ""
    return w.op("AscendQuant", x, *_scales(w, node), attrs={"to": to.value})


def _dequantize(w: NodeWriter, node: Node, ctx: CompileContext) -> str:
    """DequantizeLinear of bytes and of int32 sums, without blocks."""
    attrs, x = attributes(node), w.type(node.inputs[0])
    to = attrs["output_dtype"] or w.type(node.inputs[1]).dtype.value
    zero = _given(node, 2)
    if attrs["block_size"]:
        return ""
    if x.dtype in BYTES:
        return w.op("AscendAntiQuant", node.inputs[0], *_scales(w, node), attrs={"to": to})
    if x.dtype is not DType.INT32 or (zero and not _is_zero(w, zero)):
        return ""
    return w.op("AscendDequant", node.inputs[0], _scales(w, node)[0], attrs={"to": to})


# -- products ----


def _is_zero(w: NodeWriter, zero: str) -> bool:
    """No zero point, or one that is known to be 0."""
    value = w.value(zero) if zero else np.zeros(1)
    return value is not None and not value.any()


def _number(w: NodeWriter, value: int) -> str:
    return w.constant(np.array(value, np.int32))


def _signed(w: NodeWriter, x: str, zero: str, shift: bool) -> tuple[str, str]:
    """An operand as the cube takes it, and its zero point in int32 ('' for 0)."""
    less = 128 if shift and w.type(x).dtype is not DType.INT8 else 0
    known = w.value(zero) if zero else np.zeros((), np.int32)
    if known is not None:
        value = known.astype(np.int32) - less
        wide = w.constant(value) if value.any() else ""
    else:
        wide = w.op("Cast", zero, attrs={"to": "int32"})
        wide = w.op("Sub", wide, _number(w, less)) if less else wide
    if not less:
        return x, wide
    half = w.op("Cast", x, attrs={"to": "float16"})
    half = w.op("Sub", half, w.constant(np.array(less, np.float16)))
    return w.op("Cast", half, attrs={"to": "int8"}), wide


def _cube_takes(ctx: CompileContext, *dtypes: DType) -> bool:
    """Whether the cube multiplies operands of these types as they are."""
    return len(set(dtypes)) == 1 and dtypes[0].value in ctx.chip.core.cube.k


def _ones(w: NodeWriter, x: str) -> str:
    """A row of ones as long as x's rows."""
    t = w.type(x)
    return w.constant(np.ones((1, t.shape[-1]), t.dtype.np))


def _matmul_sums(w: NodeWriter, ctx: CompileContext, a: tuple[str, str], b: tuple[str, str]) -> str:
    """int32 sums of a product of (operand, zero point), '' where the cube cannot make them."""
    types = [w.type(x) for x, _ in (a, b)]
    if "int8" not in ctx.chip.core.cube.k or min(len(t.shape) for t in types) < 2:
        return ""
    shift = not _cube_takes(ctx, *(t.dtype for t in types))
    left, za = _signed(w, *a, shift)
    right, zb = _signed(w, *b, shift)
    rank = len(types[1].shape)
    perm = [*range(rank - 2), rank - 1, rank - 2]
    right = w.op("Transpose", right, attrs={"perm": perm})
    transposed = {"transB": 1}
    if za and w.type(za).size > 1 and len(w.type(za).shape) == 1:  # one per row of A
        za = w.reshape(za, -1, 1)
    bias: list[str] = []
    extra: list[str] = []
    if za:
        n = w.type(right).shape[-2]
        column = w.op("MatMulV2", right, _ones(w, right), attrs=transposed)
        column = w.reshape(column, *types[1].shape[:-2], 1, n)
        term = w.op("Mul", column, w.op("Neg", za))
        if zb:
            k = _number(w, types[0].shape[-1])
            term = w.op("Add", term, w.op("Mul", w.op("Mul", za, zb), k))
        per_column = w.type(term).size == n and rank == 2
        (bias if per_column else extra).append(w.reshape(term, n) if per_column else term)
    sums = w.op("MatMulV2", left, right, *bias, attrs=transposed)
    for term in extra:
        sums = w.op("Add", sums, term)
    if zb:
        rows = w.op("MatMulV2", left, _ones(w, left), attrs=transposed)
        sums = w.op("Sub", sums, w.op("Mul", rows, zb))
    return sums


def _matmul_integer(w: NodeWriter, node: Node, ctx: CompileContext) -> str:
    a, b = node.inputs[:2]
    return _matmul_sums(w, ctx, (a, _given(node, 2)), (b, _given(node, 3)))


def _qlinear_matmul(w: NodeWriter, node: Node, ctx: CompileContext) -> str:
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = node.inputs
    sums = _matmul_sums(w, ctx, (a, a_zero), (b, b_zero))
    if not sums:
        return ""
    if w.type(a_scale).size > 1 and len(w.type(a_scale).shape) == 1:
        a_scale = w.reshape(a_scale, -1, 1)
    operands = [sums, a_scale, b_scale, scale, zero]
    return w.op("AscendRequant", *operands, attrs={"to": w.type(zero).dtype.value})


# -- convolutions ----


@dataclass(frozen=True)
class _Image:
    """A convolution's input: tensor, zero point ('' for 0), the convolution's attributes."""

    x: str
    zero: str
    attrs: Mapping[str, Any]

    def sums(self, w: NodeWriter, weights: str, bias: str = "") -> str:
        """int32 sums of (x - zero) with weights that have no zero point, and of a bias.

        A zero point that is known pads the image and is corrected in the bias. Else zeros pad it,
        and a convolution of ones says how often a result has seen the zero point.
        """
        attrs, given = dict(self.attrs), [bias] if bias else []
        if not self.zero:
            return w.op("Conv", self.x, weights, *given, attrs=attrs)
        known = w.value(self.zero)
        if known is not None:
            offset = int(known.reshape(()))
            attrs["offset_x"] = offset
            own = self._bias(w, weights, offset)
            own = w.op("Add", own, bias) if bias else own
            return w.op("Conv", self.x, weights, own, attrs=attrs)
        t = w.type(self.x)
        ones = w.constant(np.ones((1, *t.shape[1:]), t.dtype.np))
        seen = w.op("Mul", w.op("Conv", ones, weights, attrs=attrs), self.zero)
        return w.op("Sub", w.op("Conv", self.x, weights, *given, attrs=attrs), seen)

    def _bias(self, w: NodeWriter, weights: str, offset: int) -> str:
        shape = w.type(weights).shape
        rows = w.reshape(weights, shape[0], prod(shape[1:]))
        column = w.op("MatMulV2", rows, _ones(w, rows), attrs={"transB": 1})
        return w.op("Mul", w.reshape(column, shape[0]), _number(w, -offset))


def _conv_sums(
    w: NodeWriter,
    node: Node,
    ctx: CompileContext,
    x: tuple[str, str],
    weights: tuple[str, str],
    bias: str = "",
) -> str:
    """int32 sums of a convolution of images, '' where the cube cannot make them.

    A line is an image of one row, and so are its sums.
    """
    attrs, rank = attributes(node), len(w.type(x[0]).shape)
    if "int8" not in ctx.chip.core.cube.k or rank not in (3, 4):
        return ""
    if rank == 3:
        attrs = row_attrs(attrs)
        x, weights = (as_row(w, x[0]), x[1]), (as_row(w, weights[0]), weights[1])
    types = [w.type(name) for name, _ in (x, weights)]
    shift = not _cube_takes(ctx, *(t.dtype for t in types))
    filters, zero = _signed(w, *weights, shift)
    image = _Image(*_signed(w, *x, shift), attrs)
    sums = image.sums(w, filters, bias)
    if zero:
        t = w.type(filters)
        count = 1 if attrs["group"] == 1 else t.shape[0]  # a window for all filters, or for each
        windows = image.sums(w, w.constant(np.ones((count, *t.shape[1:]), t.dtype.np)))
        sums = w.op("Sub", sums, w.op("Mul", windows, _per_channel(w, zero)))
    return sums


def _per_channel(w: NodeWriter, x: str) -> str:
    """One value, or one per channel, as it broadcasts to an image."""
    return x if w.type(x).size == 1 else w.reshape(x, -1, 1, 1)


def _as_result(w: NodeWriter, y: str, node: Node) -> str:
    """An image as the node's result, which may be of lines."""
    if not y or len(w.type(node.inputs[0]).shape) == 4:
        return y
    n, c, _, length = w.type(y).shape
    return w.reshape(y, n, c, length)


def _conv_integer(w: NodeWriter, node: Node, ctx: CompileContext) -> str:
    x, weights = node.inputs[:2]
    sums = _conv_sums(w, node, ctx, (x, _given(node, 2)), (weights, _given(node, 3)))
    return _as_result(w, sums, node)


def _qlinear_conv(w: NodeWriter, node: Node, ctx: CompileContext) -> str:
    x, x_scale, x_zero, weights, w_scale, w_zero, scale, zero = node.inputs[:8]
    sums = _conv_sums(w, node, ctx, (x, x_zero), (weights, w_zero), _given(node, 8))
    if not sums:
        return ""
    operands = [sums, *(_per_channel(w, s) for s in (x_scale, w_scale, scale)), zero]
    y = w.op("AscendRequant", *operands, attrs={"to": w.type(zero).dtype.value})
    return _as_result(w, y, node)


LOWERINGS: dict[str, Lowering] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "MatMulInteger": _matmul_integer,
    "QLinearMatMul": _qlinear_matmul,
    "ConvInteger": _conv_integer,
    "QLinearConv": _qlinear_conv,
}
