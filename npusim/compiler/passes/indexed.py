"""Indexed operators as their kernels take them: indices of every element along the last axis.

A chunk of a table then holds whole lanes, and a block looks at their indices alone.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.stand_in import StandIn, stand_in
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import DType, Graph, Node

MANY = 512  #: indices that every block looks at in less time than four Transposes take
INDICES = (DType.INT32, DType.INT64)  #: types of the kernels


@graph_pass("IndexedAxisPass", Kind.NEEDED, {"ReverseSequence": "GatherND"})
def arrange_indices(graph: Graph, ctx: CompileContext) -> Graph:
    """Scatters of elements along the last axis; gathers of what indices reach; ReverseSequence."""
    return stand_in(graph, ctx, _REWRITES)


def _scatter_elements(s: StandIn, node: Node, attrs: dict[str, Any]) -> bool:
    """The axis last, where there are many indices; into the corner that they reach."""
    data, index = s.shape(node.inputs[0]), s.graph.type_of(node.inputs[1])
    axis = int(attrs["axis"]) % len(data)
    beside = _short(data, index.shape, axis)
    if not index.size or index.dtype not in INDICES:
        return False
    turned = prod(index.shape[axis + 1 :]) > 1 and index.size >= MANY
    if not beside and not turned:
        return False
    x, rests = node.inputs[0], []
    for a in beside:
        n, end = index.shape[a], data[a]
        rests.append(s.op("Slice", x, s.ints(n), s.ints(end), s.ints(a)))
        x = s.op("Slice", x, s.ints(0), s.ints(n), s.ints(a))
    y = _scattered(s, (x, *node.inputs[1:]), axis, attrs["reduction"], turned)
    for a, rest in zip(reversed(beside), reversed(rests), strict=True):
        y = s.op("Concat", y, rest, axis=a)
    s.op("Identity", y, into=node.outputs[0])
    return True


def _scattered(
    s: StandIn, operands: tuple[str, ...], axis: int, reduction: str, turned: bool
) -> str:
    """Elements along an axis; with `turned`, along the last one between Transposes."""
    if not turned:
        return s.op("ScatterElements", *operands, axis=axis, reduction=reduction)
    rank = len(s.shape(operands[0]))
    perm = [a for a in range(rank) if a != axis] + [axis]
    rows = (s.op("Transpose", i, perm=perm) for i in operands)
    y = s.op("ScatterElements", *rows, axis=-1, reduction=reduction)
    return s.op("Transpose", y, perm=[perm.index(a) for a in range(rank)])


def _short(data: tuple[int, ...], index: tuple[int, ...], axis: int) -> list[int]:
    """The axes beside `axis` of which the indices reach a part only."""
    return [a for a in range(len(data)) if a != axis and index[a] < data[a]]


def _gather_elements(s: StandIn, node: Node, attrs: dict[str, Any]) -> bool:
    """From the corner of the data that the indices reach."""
    data, index = (s.shape(i) for i in node.inputs)
    axis = int(attrs["axis"]) % len(data)
    beside = _short(data, index, axis)
    if not beside or not prod(index):
        return False
    bounds = (s.ints(*(0 for _ in beside)), s.ints(*(index[a] for a in beside)))
    corner = s.op("Slice", node.inputs[0], *bounds, s.ints(*beside))
    s.op("GatherElements", corner, node.inputs[1], into=node.outputs[0], axis=axis)
    return True


def _reverse_sequence(s: StandIn, node: Node, attrs: dict[str, Any]) -> bool:
    """Rows gathered in an order that is known, where the lengths are."""
    lengths, shape = s.known(node.inputs[1]), s.shape(node.inputs[0])
    axes = [int(attrs[f"{a}_axis"]) % len(shape) for a in ("time", "batch")]
    if lengths is None or sorted(axes) != [0, 1] or not prod(shape):
        return False
    time, batch = (shape[a] for a in axes)
    at, which = np.arange(time)[:, None], np.arange(batch)
    order = np.where(at < lengths, lengths - 1 - at, at)
    places = [order, np.broadcast_to(which, order.shape)]
    if axes[0] == 1:
        places = [places[1].T, places[0].T]
    index = s.constant(np.stack(places, -1).astype(np.int64))
    s.op("GatherND", node.inputs[0], index, into=node.outputs[0])
    return True


def _tensor_scatter(s: StandIn, node: Node, attrs: dict[str, Any]) -> bool:
    """From position 0 on, where no other is given."""
    if len(node.inputs) > 2 and node.inputs[2]:
        return False
    starts = s.constant(np.zeros(s.shape(node.inputs[0])[0], np.int64))
    s.op("TensorScatter", *node.inputs[:2], starts, into=node.outputs[0], **attrs)
    return True


_REWRITES = {
    "GatherElements": _gather_elements,
    "ReverseSequence": _reverse_sequence,
    "ScatterElements": _scatter_elements,
    "TensorScatter": _tensor_scatter,
}
