"""Small ONNX models, in a line or two."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

Spec = tuple[str, str, str, dict[str, Any]]


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str]],
    outputs: list[str],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 21,
    elem: int = onnx.TensorProto.FLOAT,
) -> onnx.ModelProto:
    """A model; initializers come from `weights`."""
    infos = [helper.make_tensor_value_info(n, elem, s) for n, s in inputs.items()]
    results = [helper.make_tensor_value_info(o, elem, None) for o in outputs]
    tensors = [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", infos, results, tensors)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def node(op_type: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    """A node; names are separated by blanks, '_' is an absent input."""
    names = ["" if i == "_" else i for i in inputs.split()]
    return helper.make_node(op_type, names, outputs.split(), **attrs)


def onnxruntime(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The model's outputs by onnxruntime, without its graph optimisations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return dict(zip((o.name for o in session.get_outputs()), session.run(None, feeds), strict=True))
