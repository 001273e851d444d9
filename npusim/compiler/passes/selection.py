"""Positions of extremes for the vector unit: ArgMax, ArgMin, Hardmax, TopK and OneHot.

The kernels take rows, the last dimension, and give positions as int32: what a model wants as int64
is cast. Where a kernel refuses, the operator stays as it is, on the AI CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.compiler.select import kernel_args, select_kernel
from npusim.ir import Constant, DType, Graph, Node, Tensor
from npusim.ops import attributes
from npusim.ops.cann_top_k import assist


@graph_pass("ArgMaxTopKPass", Kind.NEEDED)
def use_row_kernels(graph: Graph, ctx: CompileContext) -> Graph:
    """ArgMax → ArgMaxWithValue, Cast; Hardmax → ArgMaxWithValue, OneHot; TopK → TopKD, Cast."""
    out = graph.copy()
    out.nodes = []
    for node in graph.nodes:
        rewrite = _REWRITES.get(node.op_type)
        if rewrite is not None and not node.epilogue:
            trial = _Trial(out.copy(), ctx, node)
            if rewrite(trial, node, attributes(node)):
                out = trial.graph
                continue
        out.nodes.append(node)
    return out


class _Trial:
    """Nodes in place of one, on a copy of the graph."""

    def __init__(self, graph: Graph, ctx: CompileContext, node: Node) -> None:
        self.graph, self._ctx, self._name = graph, ctx, node.name

    def tensor(self, shape: tuple[int, ...], dtype: DType) -> str:
        """A new one."""
        name = self._ctx.fresh(self._name)
        self.graph.tensors[name] = Tensor(name, shape, dtype)
        return name

    def constant(self, value: np.ndarray) -> str:
        """A new one."""
        name = self.tensor(value.shape, DType.of(value.dtype))
        self.graph.constants[name] = Constant.of(value)
        return name

    def add(self, op_type: str, inputs: tuple[str, ...], outputs: tuple[str, ...],
            hint: str = "", **attrs: Any) -> Node:  # fmt: skip
        """A node, named as the old one or after it."""
        name = self._ctx.fresh(f"{self._name}/{hint}") if hint else self._name
        self.graph.nodes.append(Node(name, op_type, inputs, outputs, attrs))
        return self.graph.nodes[-1]

    def runs(self, node: Node) -> bool:
        """Whether an AI Core kernel takes the node."""
        return bool(select_kernel(kernel_args(self.graph, node), self._ctx.chip)[0])

    def extreme(self, x: str, op_type: str) -> str:
        """Positions (int32) of the extremes along the last dimension; '' if no kernel takes it."""
        t = self.graph.type_of(x)
        index = self.tensor(t.shape[:-1], DType.INT32)
        value = self.tensor(t.shape[:-1], t.dtype)
        made = self.add(op_type, (x,), (index, value), "extreme")
        return index if self.runs(made) else ""

    def rows(self, x: str, axis: int) -> str:
        """`x` with that axis last."""
        t = self.graph.type_of(x)
        perm = [i for i in range(len(t.shape)) if i != axis % len(t.shape)]
        perm.append(axis % len(t.shape))
        if perm[-1] == len(perm) - 1:
            return x
        turned = self.tensor(tuple(t.shape[i] for i in perm), t.dtype)
        self.add("Transpose", (x,), (turned,), "rows", perm=perm)
        return turned


def _last(graph: Graph, node: Node, axis: int) -> bool:
    shape = graph.type_of(node.inputs[0]).shape
    return bool(shape) and axis % len(shape) == len(shape) - 1


def _arg(trial: _Trial, node: Node, attrs: dict[str, Any]) -> bool:
    """The first extreme of each row."""
    x = node.inputs[0]
    if attrs["select_last_index"] or not trial.graph.type_of(x).shape:
        return False
    index = trial.extreme(trial.rows(x, attrs["axis"]), f"{node.op_type}WithValue")
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


def _hardmax(trial: _Trial, node: Node, attrs: dict[str, Any]) -> bool:
    """One where the first largest is."""
    if not _last(trial.graph, node, attrs["axis"]):
        return False
    index = trial.extreme(node.inputs[0], "ArgMaxWithValue")
    t = trial.graph.type_of(node.outputs[0])
    depth = trial.constant(np.array(t.shape[-1], np.int64))
    values = trial.constant(np.array([0, 1]).astype(t.dtype.np))
    return bool(index) and trial.runs(
        trial.add("OneHot", (index, depth, values), node.outputs, axis=-1)
    )


def _top_k(trial: _Trial, node: Node, attrs: dict[str, Any]) -> bool:
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


_REWRITES: dict[str, Callable[[_Trial, Node, dict[str, Any]], bool]] = {
    "ArgMax": _arg,
    "ArgMin": _arg,
    "Hardmax": _hardmax,
    "TopK": _top_k,
}
