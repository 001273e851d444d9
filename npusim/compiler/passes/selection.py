"""Positions of extremes for the vector unit: ArgMax, ArgMin, Hardmax, TopK and OneHot.

The kernels take rows, the last dimension, and give positions as int32: what a model wants as int64
is cast. Where a kernel refuses, the operator stays as it is, on the AI CPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.stand_in import Rewrite, StandIn, stand_in
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import DType, Graph, Node
from npusim.ops.cann_top_k import assist


@graph_pass("ArgMaxTopKPass", Kind.NEEDED)
def use_row_kernels(graph: Graph, ctx: CompileContext) -> Graph:
    """ArgMax → ArgMaxWithValue, Cast; Hardmax → ArgMaxWithValue, OneHot; TopK → TopKD, Cast."""
    return stand_in(graph, ctx, _REWRITES)


def _extreme(trial: StandIn, x: str, op_type: str) -> str:
    """Positions (int32) of the extremes along the last dimension; '' if no kernel takes it."""
    t = trial.graph.type_of(x)
    index = trial.tensor(t.shape[:-1], DType.INT32)
    value = trial.tensor(t.shape[:-1], t.dtype)
    made = trial.add(op_type, (x,), (index, value), "extreme")
    return index if trial.runs(made) else ""


def _rows(trial: StandIn, x: str, axis: int) -> str:
    """`x` with that axis last."""
    t = trial.graph.type_of(x)
    perm = [i for i in range(len(t.shape)) if i != axis % len(t.shape)]
    perm.append(axis % len(t.shape))
    if perm[-1] == len(perm) - 1:
        return x
    turned = trial.tensor(tuple(t.shape[i] for i in perm), t.dtype)
    trial.add("Transpose", (x,), (turned,), "rows", perm=perm)
    return turned


def _last(graph: Graph, node: Node, axis: int) -> bool:
    shape = graph.type_of(node.inputs[0]).shape
    return bool(shape) and axis % len(shape) == len(shape) - 1


def _arg(trial: StandIn, node: Node, attrs: dict[str, Any]) -> bool:
    """The first extreme of each row."""
    x = node.inputs[0]
    if attrs["select_last_index"] or not trial.graph.type_of(x).shape:
        return False
    index = _extreme(trial, _rows(trial, x, attrs["axis"]), f"{node.op_type}WithValue")
    if not index:
        return False
    result = trial.graph.type_of(node.outputs[0])
    if attrs["keepdims"]:
        column = trial.tensor(result.shape, DType.INT32)
        shape = trial.constant(np.array(result.shape, np.int64))
        trial.add("Reshape", (index, shape), (column,), "column")
        index = column
    trial.add("Cast", (index,), node.outputs, to=result.dtype.value)
    return True


def _hardmax(trial: StandIn, node: Node, attrs: dict[str, Any]) -> bool:
    """One where the first largest is."""
    if not _last(trial.graph, node, attrs["axis"]):
        return False
    index = _extreme(trial, node.inputs[0], "ArgMaxWithValue")
    t = trial.graph.type_of(node.outputs[0])
    depth = trial.constant(np.array(t.shape[-1], np.int64))
    values = trial.constant(np.array([0, 1]).astype(t.dtype.np))
    return bool(index) and trial.runs(
        trial.add("OneHot", (index, depth, values), node.outputs, axis=-1)
    )


def _top_k(trial: StandIn, node: Node, attrs: dict[str, Any]) -> bool:
    """The largest of fp16 rows."""
    graph, x = trial.graph, node.inputs[0]
    if not attrs["largest"] or not _last(graph, node, attrs["axis"]):
        return False
    out = graph.type_of(node.outputs[0])
    if graph.type_of(x).dtype is not DType.FLOAT16 or not out.size:
        return False
    index = trial.tensor(out.shape, DType.INT32)
    operands = (x, trial.constant(assist()))
    made = trial.add("TopKD", operands, (node.outputs[0], index), k=out.shape[-1])
    if not trial.runs(made):
        return False
    if len(node.outputs) > 1:
        trial.add("Cast", (index,), node.outputs[1:], "places", to=DType.INT64.value)
    return True


_REWRITES: dict[str, Rewrite] = {
    "ArgMax": _arg,
    "ArgMin": _arg,
    "Hardmax": _hardmax,
    "TopK": _top_k,
}
