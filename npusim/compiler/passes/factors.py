"""Operators in steps that kernels take.

Gemm with factors, reductions of axes that lie apart, Mod of bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.stand_in import StandIn, stand_in
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Constant, DType, Graph, Node

#: What folds the results of a reduction of some axes along others; L2 is in the end a root.
_AGAIN = {
    "ReduceSum": "ReduceSum",
    "ReduceMean": "ReduceMean",
    "ReduceMax": "ReduceMax",
    "ReduceMin": "ReduceMin",
    "ReduceL1": "ReduceSum",
    "ReduceL2": "ReduceL2",
    "ReduceSumSquare": "ReduceSum",
}


@graph_pass("SplitOperatorPass", Kind.NEEDED)
def split_operators(graph: Graph, ctx: CompileContext) -> Graph:
    """Gemm → product, Mul, Add; ReduceLogSumExp → its steps; reductions → one a group of axes.

    Mod of bytes → x - floor(x / y)·y in fp32, which holds their quotients.
    """
    whole = {"Gemm": _gemm, "ReduceLogSumExp": _log_sum_exp, "Mod": _byte_mod}
    return stand_in(graph, ctx, {**whole, **dict.fromkeys(_AGAIN, _groups)})


def _step(s: StandIn, op_type: str, like: str, *inputs: str) -> str:
    """An elementwise step whose result has the type of the tensor `like`."""
    t = s.graph.type_of(like)
    out = s.tensor(t.shape, t.dtype)
    s.add(op_type, inputs, (out,), op_type)
    return out


def _number(s: StandIn, like: str, value: float) -> str:
    return s.constant(np.array(value, np.float64).astype(s.graph.type_of(like).dtype.np))


def _gemm(s: StandIn, node: Node, attrs: dict[str, Any]) -> bool:
    """alpha·AB + beta·C, where a factor is not 1 or C is not one value a column."""
    a, b, bias = (*node.inputs, "")[:3]
    y = node.outputs[0]
    t = s.graph.type_of(y)
    alpha, beta = float(attrs["alpha"]), float(attrs["beta"]) if bias else 1.0
    shape = s.graph.type_of(bias).shape if bias else (t.shape[1],)
    columns = np.prod(shape, dtype=int) == t.shape[1] and shape[-1:] in ((), t.shape[1:])
    if not t.dtype.is_float or ((alpha, beta) == (1, 1) and columns):
        return False
    turned = {k: attrs[k] for k in ("transA", "transB")}
    total = s.tensor(t.shape, t.dtype)
    if not s.runs(s.add("Gemm", (a, b), (total,), "product", **turned)):
        return False
    if alpha != 1:
        total = _step(s, "Mul", y, total, _number(s, y, alpha))
    if not bias:
        s.add("Identity", (total,), node.outputs)
        return True
    if beta != 1:
        bias = _scaled(s, bias, beta)
    s.add("Add", (total, bias), node.outputs)
    return True


def _scaled(s: StandIn, x: str, factor: float) -> str:
    """A factor times a tensor; a constant stays one."""
    constant = s.graph.constants.get(x)
    if constant is None:
        return _step(s, "Mul", x, x, _number(s, x, factor))
    kind, name = constant.type, s.tensor(constant.type.shape, constant.type.dtype)
    s.graph.constants[name] = Constant(
        kind,
        lambda: (constant.value().astype(np.float32) * np.float32(factor)).astype(kind.dtype.np),
    )
    return name


def _axes(s: StandIn, node: Node, rank: int, attrs: dict[str, Any]) -> list[int] | None:
    """Those to reduce; None when they are computed."""
    name = node.inputs[1] if len(node.inputs) > 1 else ""
    if name and name not in s.graph.constants:
        return None
    given = s.graph.constants[name].value().reshape(-1).tolist() if name else []
    if not given:
        return [] if attrs["noop_with_empty_axes"] else list(range(rank))
    return sorted(int(a) % rank for a in given)


def _neighbours(shape: tuple[int, ...], axes: list[int]) -> list[list[int]]:
    """The axes in groups that a kernel takes at a time."""
    groups: list[list[int]] = []
    for axis in axes:
        between = shape[groups[-1][-1] + 1 : axis] if groups else ()
        if groups and all(n == 1 for n in between):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    first = all(n == 1 for n in shape[: axes[0]]) if axes else False
    return [axes] if len(groups) == 2 and first else groups


def _reduced(s: StandIn, op_type: str, x: str, axes: list[int]) -> str:
    """`x` reduced along the axes, which stay as extents of 1."""
    again = _AGAIN[op_type]
    for group in reversed(_neighbours(s.graph.type_of(x).shape, axes)):
        x, op_type = _reduced_once(s, op_type, x, group), again
    return x


def _reduced_once(s: StandIn, op_type: str, x: str, axes: list[int]) -> str:
    t = s.graph.type_of(x)
    out = s.tensor(tuple(1 if i in axes else n for i, n in enumerate(t.shape)), t.dtype)
    which = s.constant(np.array(axes, np.int64))
    s.add(op_type, (x, which), (out,), op_type, keepdims=1)
    return out


def _finish(s: StandIn, node: Node, result: str) -> bool:
    """The node's output from one that kept the reduced axes."""
    shape = s.graph.type_of(node.outputs[0]).shape
    s.add("Reshape", (result, s.constant(np.array(shape, np.int64))), node.outputs, allowzero=1)
    return True


def _groups(s: StandIn, node: Node, attrs: dict[str, Any]) -> bool:
    """Neighbouring axes at a time, where a kernel takes those only."""
    x = node.inputs[0]
    t = s.graph.type_of(x)
    axes = _axes(s, node, len(t.shape), attrs)
    if axes is None or not t.dtype.is_float or not t.size:
        return False
    if len(_neighbours(t.shape, axes)) < 2:
        return False
    return _finish(s, node, _reduced(s, node.op_type, x, axes))


def _log_sum_exp(s: StandIn, node: Node, attrs: dict[str, Any]) -> bool:
    """ln Σ e^(x - m) + m, with m the largest finite value."""
    x = node.inputs[0]
    t = s.graph.type_of(x)
    axes = _axes(s, node, len(t.shape), attrs)
    if not axes or not t.dtype.is_float or not t.size:
        return False
    top = _reduced(s, "ReduceMax", x, axes)
    if not s.runs(s.graph.nodes[-1]):
        return False
    limit = 65504.0 if t.dtype.value == "float16" else 3e38
    finite = _step(s, "Max", top, top, _number(s, x, -limit))
    finite = _step(s, "Min", top, finite, _number(s, x, limit))
    powers = _step(s, "Exp", x, _step(s, "Sub", x, x, finite))
    logs = _step(s, "Log", top, _reduced(s, "ReduceSum", powers, axes))
    return _finish(s, node, _step(s, "Add", top, logs, finite))


def _byte_mod(s: StandIn, node: Node, attrs: dict[str, Any]) -> bool:
    """With the divisor's sign; with fmod the dividend's, by way of absolute values.

    A quotient of bytes that is not whole lies 1/255 and more from one: rounding keeps its floor.
    """
    t = s.graph.type_of(node.outputs[0])
    if t.dtype not in (DType.INT8, DType.UINT8) or not t.size:
        return False
    x, y = (s.op("Cast", i, to="float32") for i in node.inputs)
    signed = attrs["fmod"] and t.dtype is DType.INT8
    a, b = (s.op("Abs", i) for i in (x, y)) if signed else (x, y)
    whole = s.op("Floor", s.op("Div", a, b))
    rest = s.op("Sub", a, s.op("Mul", whole, b))
    rest = s.op("Mul", rest, s.op("Sign", x)) if signed else rest
    s.op("Cast", rest, into=node.outputs[0], to=t.dtype.value)
    return True
