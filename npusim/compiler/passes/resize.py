"""Resize in steps that kernels take: interpolation is separable, an axis at a time.

Linear and cubic interpolation is a product with a constant matrix, nearest a Gather of constant
indices. What repeats elements a whole number of times stays, and is copied.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.stand_in import FLOATS, StandIn, stand_in
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Graph, Node
from npusim.ops.common import ints
from npusim.ops.resize import repeats, steps

ROW = 8  #: elements that make a row worth two Transposes


@graph_pass("ResizeStepsPass", Kind.NEEDED)
def split_resize(graph: Graph, ctx: CompileContext) -> Graph:
    """Resize of constant sizes → products or Gathers, one an axis."""
    return stand_in(graph, ctx, {"Resize": _resize})


def _resize(s: StandIn, node: Node, attrs: dict[str, Any]) -> bool:
    x = node.inputs[0]
    t, out = (s.graph.type_of(i) for i in (x, node.outputs[0]))
    _, scale_values, size_values = (
        s.known(i) if i else None for i in (*node.inputs[1:], "", "", "")[:3]
    )
    scales = sizes = None
    if scale_values is not None and scale_values.size:
        scales = scale_values.astype(np.float64)
    elif size_values is not None:
        sizes = ints(size_values)
    if (scales is None and sizes is None) or not t.size or not out.size:
        return False
    if attrs["coordinate_transformation_mode"] == "tf_crop_and_resize":
        return False
    given = (t.shape, scales, sizes, attrs)
    nearest = attrs["mode"] == "nearest"
    if repeats(*given) is not None or not (nearest or t.dtype in FLOATS):
        return False
    found = sorted(steps(*given), key=lambda step: len(step[1]) / t.shape[step[0]])
    # What shrinks comes first: less to do for the others.
    if nearest:
        x = _picked(s, x, dict(found))
    else:
        for axis, weights in found:
            x = _interpolated(s, x, axis, weights.astype(t.dtype.np))
    s.op("Identity", x, into=node.outputs[0])
    return True


def _picked(s: StandIn, x: str, indices: dict[int, np.ndarray]) -> str:
    """Gathers of rows; those of single elements become rows of what stays, by Transposes."""
    shape = s.shape(x)
    perm = [a for a in range(len(shape)) if a in indices]
    perm += [a for a in range(len(shape)) if a not in indices]
    rows = len(shape) - 1 in indices and prod(shape[a] for a in perm[len(indices) :]) >= ROW
    if rows:
        x = s.op("Transpose", x, perm=perm)
    for axis, index in indices.items():
        x = s.op("Gather", x, s.constant(index), axis=perm.index(axis) if rows else axis)
    return s.op("Transpose", x, perm=[perm.index(a) for a in range(len(perm))]) if rows else x


def _interpolated(s: StandIn, x: str, axis: int, weights: np.ndarray) -> str:
    """`x` times the weights [outputs, inputs] along an axis."""
    shape = s.shape(x)
    outer, n, inner = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    if inner == 1:
        y = s.op("MatMul", s.reshape(x, outer, n), s.constant(np.ascontiguousarray(weights.T)))
    else:
        y = s.op("MatMul", s.constant(weights), s.reshape(x, outer, n, inner))
    return s.reshape(y, *shape[:axis], len(weights), *shape[axis + 1 :])
