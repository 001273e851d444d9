"""CumSum and CumProd as their kernel likes them: long axes in parts, rows turned into columns.

The kernel takes an instruction a step. An axis of length n of few lanes is √n rows of √n elements:
all rows are scanned at once, then what they end with, which is folded onto the rows behind.
"""

from __future__ import annotations

from math import isqrt, prod
from typing import Any

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.stand_in import FLOATS, StandIn, stand_in
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import DType, Graph, Node

#: Steps whose heads take as long as the launches of the parts.
LONG = 1024
BLOCK = 8  #: fp32 elements of a 32 B block, the least that a step works on
_AGAIN = {"CumSum": ("Add", 0), "CumProd": ("Mul", 1)}
TYPES = (*FLOATS, DType.INT32)  #: of the kernel


@graph_pass("CumulativeSplitPass", Kind.NEEDED)
def split_cumulative(graph: Graph, ctx: CompileContext) -> Graph:
    """Long lanes → scans of parts; many lanes of elements apart → columns, by Transposes."""
    cores = ctx.chip.vector_cores()

    def rewrite(s: StandIn, node: Node, attrs: dict[str, Any]) -> bool:
        return _rewrite(s, node, attrs, cores)

    return stand_in(graph, ctx, dict.fromkeys(_AGAIN, rewrite))


def _rewrite(s: StandIn, node: Node, attrs: dict[str, Any], cores: int) -> bool:
    t, given = s.graph.type_of(node.inputs[0]), s.known(node.inputs[1])
    if given is None or t.dtype not in TYPES or not t.size:
        return False
    axis = int(given.reshape(-1)[0]) % len(t.shape)
    outer, length, inner = prod(t.shape[:axis]), t.shape[axis], prod(t.shape[axis + 1 :])
    if inner >= BLOCK:
        return False
    if length >= LONG and outer * inner <= cores:
        x = s.reshape(node.inputs[0], outer, length, inner)
        y = _by_parts(s, node.op_type, _swapped(s, x), attrs)
        s.reshape(_swapped(s, y), *t.shape, into=node.outputs[0])
        return True
    if outer <= cores or length == 1:
        return False
    x = s.op("Transpose", s.reshape(node.inputs[0], outer, length, inner), perm=[1, 0, 2])
    y = s.op(node.op_type, x, s.ints(0), **attrs)
    s.reshape(s.op("Transpose", y, perm=[1, 0, 2]), *t.shape, into=node.outputs[0])
    return True


def _swapped(s: StandIn, x: str) -> str:
    """x (a, b, c) as (a, c, b)."""
    a, b, c = s.shape(x)
    return s.reshape(x, a, c, b) if 1 in (b, c) else s.op("Transpose", x, perm=[0, 2, 1])


def _by_parts(s: StandIn, op_type: str, x: str, attrs: dict[str, Any]) -> str:
    """x (a, b, n) scanned along n, by w rows of its parts.

    An exclusive scan is one of what is moved by an element.
    """
    fold, start = _AGAIN[op_type]
    a, b, n = s.shape(x)
    exclusive, reverse = bool(attrs["exclusive"]), bool(attrs["reverse"])
    width = isqrt(n + exclusive - 1) + 1
    parts = -(-(n + exclusive) // width)
    front = int(exclusive and not reverse)
    fill = s.constant(np.array(start).astype(s.graph.type_of(x).dtype.np))
    pads = s.ints(0, 0, front, 0, 0, parts * width - n - front)
    x = s.reshape(s.op("Pad", x, pads, fill), a * b, parts, width)
    rows = s.op("Transpose", x, perm=[2, 0, 1])  # (width, lanes, parts)
    rows = s.op(op_type, rows, s.ints(0), reverse=int(reverse))
    last = 0 if reverse else width - 1
    ends = s.op("Slice", rows, s.ints(last), s.ints(last + 1), s.ints(0))
    before = s.op(op_type, ends, s.ints(2), exclusive=1, reverse=int(reverse))
    whole = s.reshape(
        s.op("Transpose", s.op(fold, rows, before), perm=[1, 2, 0]), a, b, parts * width
    )
    at = int(exclusive and reverse)
    return s.op("Slice", whole, s.ints(at), s.ints(at + n), s.ints(2))
