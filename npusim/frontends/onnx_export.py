"""Graphs of standard operators to ONNX models, for onnxruntime and every other ONNX tool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from npusim.errors import UnsupportedError
from npusim.frontends.onnx_tensor import ELEMENT_NUMBERS
from npusim.ir import Constant, DType, Graph, Layout, Node, Tensor
from npusim.ops.cann_fused import FusedStep

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

OPSET = 21  #: raised for graphs with operators that are newer
IR_VERSION = 10
INLINE_LIMIT = 1_500_000_000  #: bytes of weights that a single file may hold (protobuf: 2 GiB)
_SMALLEST_EXTERNAL = 1024


def to_onnx(graph: Graph) -> ModelProto:
    """The graph as an ONNX model with inline weights.

    Raises:
        UnsupportedError: compiled form (epilogues, device layouts), an operator that ONNX lacks, or
            more weights than one protobuf message holds.
    """
    total = _weight_bytes(graph)
    if total > INLINE_LIMIT:
        raise UnsupportedError(
            f"{total} bytes of weights in one ONNX message",
            f"at most {INLINE_LIMIT} bytes",
            "use save_onnx, which writes weights to a file of their own",
        )
    return _model(graph, None, "")


def save_onnx(graph: Graph, path: str | Path) -> None:
    """Write the graph as a .onnx file; many weights go to `<path>.data` beside it.

    Raises:
        UnsupportedError: as `to_onnx`.
    """
    path = Path(path)
    if _weight_bytes(graph) <= INLINE_LIMIT:
        model = _model(graph, None, "")
    else:
        data = path.with_name(path.name + ".data")
        with data.open("wb") as sink:
            model = _model(graph, sink, data.name)
    path.write_bytes(model.SerializeToString())


def _weight_bytes(graph: Graph) -> int:
    return sum(c.type.size * c.type.dtype.size for c in graph.constants.values())


def _model(graph: Graph, sink: BinaryIO | None, location: str) -> ModelProto:
    from onnx import helper

    opset = max([OPSET, *(_introduced(n) for n in graph.nodes)])
    proto = helper.make_graph(
        [_node(n) for n in graph.nodes],
        graph.name,
        [_value_info(graph.tensors[i]) for i in graph.inputs],
        [_value_info(graph.tensors[o]) for o in graph.outputs],
        [_weights(name, c, sink, location) for name, c in graph.constants.items()],
    )
    for tensor in graph.tensors.values():
        if tensor.layout is not Layout.ND:
            raise UnsupportedError(
                f"tensor {tensor.name!r} in layout {tensor.layout.value}",
                "ND",
                "export the graph before compiling it",
            )
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(
        proto, producer_name="npusim", opset_imports=imports, ir_version=IR_VERSION
    )


def _introduced(node: Node) -> int:
    """The first opset that has the node's operator.

    Raises:
        UnsupportedError: no opset has it, or the node is in compiled form.
    """
    from onnx import defs

    versions = [s.since_version for s in _schemas(node.op_type)]
    if not versions:
        raise UnsupportedError(
            f"operator {node.op_type!r} at node {node.name!r}",
            f"operators of ONNX (newest opset {defs.onnx_opset_version()})",
            "export the graph before compiling it",
        )
    if node.epilogue:
        raise UnsupportedError(
            f"node {node.name!r} with a fused epilogue",
            "one operator a node",
            "export the graph before compiling it",
        )
    return min(versions)


def _schemas(op_type: str) -> list[Any]:
    """All versions of a standard operator."""
    from onnx import defs

    if not defs.has(op_type):
        return []
    newest = defs.get_schema(op_type)
    found = [newest]
    while found[-1].since_version > 1:
        try:
            found.append(defs.get_schema(op_type, found[-1].since_version - 1))
        except defs.SchemaError:
            break
    return found


def _node(node: Node) -> NodeProto:
    from onnx import helper

    attrs = {k: attribute_of(k, v) for k, v in node.attrs.items() if v is not None}
    return helper.make_node(node.op_type, node.inputs, node.outputs, node.name, **attrs)


def attribute_of(key: str, value: Any) -> Any:
    """An attribute as ONNX's helper takes it."""
    if key in ("to", "dtype"):
        return ELEMENT_NUMBERS[DType.of(value)]
    if isinstance(value, np.ndarray):
        return _weights(key, Constant.of(value), None, "")
    if isinstance(value, tuple):
        return [str(v) if isinstance(v, FusedStep) else v for v in value]
    return value


def _value_info(tensor: Tensor) -> ValueInfoProto:
    from onnx import helper

    return helper.make_tensor_value_info(tensor.name, ELEMENT_NUMBERS[tensor.dtype], tensor.shape)


def _weights(name: str, value: Constant, sink: BinaryIO | None, location: str) -> TensorProto:
    """A tensor with its bytes inline, or appended to `sink`."""
    from onnx import TensorProto

    proto = TensorProto(name=name, dims=value.type.shape)
    proto.data_type = ELEMENT_NUMBERS[value.type.dtype]
    raw = np.ascontiguousarray(value.value()).tobytes()
    if sink is None or len(raw) < _SMALLEST_EXTERNAL:
        proto.raw_data = raw
        return proto
    proto.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": str(sink.tell()), "length": str(len(raw))}
    for key, text in entries.items():
        proto.external_data.add(key=key, value=text)
    sink.write(raw)
    return proto
