"""A graph at any stage of compilation as an ONNX file to look at (Netron), without its weights.

Fused nodes and device layouts are no ONNX operators: such nodes are of the domain "npusim", named
after all they do ("Conv+Add+Relu"). Weights of more than a few values become inputs of the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npusim.frontends.onnx_export import OPSET, attribute_of
from npusim.frontends.onnx_tensor import ELEMENT_NUMBERS
from npusim.ir import Graph, Layout, Node, Tensor
from npusim.ops.cann_fused import operators_in

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto

DOMAIN = "npusim"
_SMALL = 16  #: values of a constant that is kept in the file


def dump_onnx(graph: Graph) -> ModelProto:
    """The graph as an ONNX model for viewers; it cannot be run."""
    from onnx import helper, numpy_helper

    small = {n: c for n, c in graph.constants.items() if c.type.size <= _SMALL}
    large = [n for n in graph.constants if n not in small]
    inner = [
        _value_info(graph.tensors[o])
        for node in graph.nodes
        for o in node.outputs
        if o and o not in graph.outputs
    ]
    proto = helper.make_graph(
        [_node(graph, n) for n in graph.nodes],
        graph.name,
        [_value_info(graph.tensors[n]) for n in (*graph.inputs, *large)],
        [_value_info(graph.tensors[o]) for o in graph.outputs],
        [numpy_helper.from_array(np.asarray(c.value()), n) for n, c in small.items()],
        value_info=inner,
    )
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(proto, producer_name="npusim", opset_imports=imports)


def _node(graph: Graph, node: Node) -> NodeProto:
    from onnx import defs, helper

    names = [i for i in (*node.inputs, *node.outputs) if i]
    plain = all(graph.tensors[n].layout is Layout.ND for n in names)
    standard = plain and not node.epilogue and defs.has(node.op_type)
    op_type = "+".join(operators_in(node))
    attrs = {k: attribute_of(k, v) for k, v in node.attrs.items() if v is not None}
    if not plain:
        layouts = sorted({graph.tensors[n].layout.value for n in names})
        attrs["layouts"] = ",".join(layouts)
    domain = "" if standard else DOMAIN
    return helper.make_node(
        op_type, node.inputs, node.outputs, node.name, domain=domain, **attrs
    )  # fmt: skip


def _value_info(tensor: Tensor) -> ValueInfoProto:
    from onnx import helper

    number = ELEMENT_NUMBERS[tensor.dtype]
    layout = "" if tensor.layout is Layout.ND else tensor.layout.value
    return helper.make_tensor_value_info(tensor.name, number, tensor.shape, layout)
