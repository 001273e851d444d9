"""Whether a graph says what its operators do: types re-inferred, layouts that go together.

`ir.verify` checks the graph's own rules and knows no operator. This runs every shape rule again,
which is too slow to be done between all passes of every compilation: tests do it.
"""

from __future__ import annotations

import numpy as np

from npusim.errors import GraphError
from npusim.ir import DType, Graph, Layout, Node, TensorType
from npusim.ops import get_operator, infer_node

CUBE = ("Conv", "MatMul", "Gemm")
#: Operators that work on NC1HWC0, beside the elementwise ones.
BLOCKED = (
    *("Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
    *("Concat", "Split", "Resize"),
)
FRACTALS = {
    "Conv": (Layout.NC1HWC0, Layout.FRACTAL_Z, Layout.NC1HWC0_C04, Layout.FRACTAL_Z_C04),
    "ConvConv": (Layout.NC1HWC0, Layout.FRACTAL_Z),
    "MatMul": (Layout.FRACTAL_NZ,),
    "Gemm": (Layout.FRACTAL_NZ,),
}
SMALL = 64  #: elements of constants whose values the shape rules get


def check_graph(graph: Graph) -> Graph:
    """Check the type and the layout of every node's results, and return the graph.

    Raises:
        GraphError: a shape or element type is not what the operator gives, or layouts do not
            meet the operator's needs.
    """
    for node in graph.nodes:
        _check_types(graph, node)
        _check_layouts(graph, node)
    return graph


def _check_types(graph: Graph, node: Node) -> None:
    found = inferred(graph, node)
    for name, want in zip(node.outputs, found, strict=True):
        has = graph.type_of(name) if name else want
        # L0C holds fp32: a cube node may write its sums as they are.
        summed = node.op_type in CUBE and has.dtype is DType.FLOAT32 and want.dtype.is_float
        if has.shape != want.shape or not (has.dtype is want.dtype or summed):
            raise GraphError(
                f"tensor {name!r} of node {node.name!r} ({node.op_type}) is {has.dtype.value} "
                f"{has.shape}",
                f"{want.dtype.value} {want.shape}, which the operator gives",
                "correct the pass that wrote it",
            )


def inferred(graph: Graph, node: Node) -> list[TensorType]:
    """Types of a node's results by the rules of its operator and of its epilogue."""
    fused = {s.operand for s in node.epilogue if s.operand is not None}
    main = [i for at, i in enumerate(node.inputs) if at not in fused]
    plain = node.with_(inputs=tuple(main), epilogue=())
    types = [graph.type_of(i) if i else None for i in main]
    found = infer_node(plain, types, [_value(graph, i) for i in main])
    for at, step in enumerate(node.epilogue):
        others = [] if step.operand is None else [graph.type_of(node.inputs[step.operand])]
        names = (node.outputs[0], *(f"operand {i}" for i in range(len(others))))
        one = Node(f"{node.name}+{at}", step.op_type, names, ("",), dict(step.attrs))
        found = [infer_node(one, [found[0], *others], [None] * len(names))[0], *found[1:]]
    return found


def _value(graph: Graph, name: str) -> np.ndarray | None:
    constant = graph.constants.get(name)
    small = constant is not None and constant.type.size <= SMALL
    return constant.value() if constant is not None and small else None


def _check_layouts(graph: Graph, node: Node) -> None:
    tensors = [graph.tensors[i] for i in (*node.inputs, *node.outputs) if i]
    if node.op_type == "TransData":
        source, result = tensors
        if source.layout is result.layout or source.type.size != result.type.size:
            raise _layout_error(graph, node, "another layout of the same tensor")
        return
    layouts = {t.layout for t in tensors if t.type.size > 1}
    if get_operator(node.op_type, node.name).elementwise:
        if len(layouts) > 1:
            raise _layout_error(graph, node, "one layout for all operands of an elementwise node")
        return
    allowed = {Layout.ND, *FRACTALS.get(node.op_type, ())}
    if node.op_type in BLOCKED:
        allowed.add(Layout.NC1HWC0)
    if not layouts <= allowed:
        names = ", ".join(sorted(layout.value for layout in allowed))
        raise _layout_error(graph, node, names)


def _layout_error(graph: Graph, node: Node, allowed: str) -> GraphError:
    seen = ", ".join(
        f"{i} in {graph.tensors[i].layout.value}" for i in (*node.inputs, *node.outputs) if i
    )
    return GraphError(
        f"layouts of node {node.name!r} ({node.op_type}): {seen}",
        allowed,
        "insert a TransData, or correct the pass that wrote it",
    )
