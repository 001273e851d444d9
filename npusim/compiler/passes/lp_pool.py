"""LpPool as a mean of powers, which the pooling kernels take."""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.pool_rank import TYPES
from npusim.compiler.passes.stand_in import StandIn, stand_in
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import DType, Graph, Node
from npusim.ops.pool import pool_window
from npusim.ops.window import WINDOW_ATTRS, Window


@graph_pass("LpPoolPass", Kind.NEEDED, {"LpPool": "AveragePool"})
def pool_powers(graph: Graph, ctx: CompileContext) -> Graph:
    """LpPool → powers, AveragePool over padding too, times the window's elements, the root."""
    return stand_in(graph, ctx, {"LpPool": _lp_pool})


def _lp_pool(s: StandIn, node: Node, attrs: dict[str, Any]) -> bool:
    """Where all windows have as many elements: none ends beyond the padding."""
    x, p = node.inputs[0], int(attrs["p"])
    t = s.graph.type_of(x)
    window = pool_window(t, attrs)
    floor = Window.of(t.shape[2:], window.kernel, {**attrs, "ceil_mode": 0})
    if t.dtype not in TYPES or not t.size or window.out != floor.out:
        return False
    power = _number(s, t.dtype, p)
    x = s.op("Mul", x, x) if p == 2 else s.op("Abs", x)
    x = s.op("Pow", x, power) if p > 2 else x
    window_attrs = {key: attrs[key] for key in WINDOW_ATTRS}
    kept = {**window_attrs, "kernel_shape": list(window.kernel), "count_include_pad": 1}
    total = s.op("Mul", s.op("AveragePool", x, **kept), _number(s, t.dtype, window.taps))
    if p == 1:
        s.op("Identity", total, into=node.outputs[0])
    elif p == 2:
        s.op("Sqrt", total, into=node.outputs[0])
    else:
        s.op("Pow", total, _number(s, t.dtype, 1 / p), into=node.outputs[0])
    return True


def _number(s: StandIn, dtype: DType, value: float) -> str:
    return s.constant(np.array(value, np.float64).astype(dtype.np))
