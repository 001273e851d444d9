"""Operators of onnxruntime's `com.microsoft` domain in terms of standard ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.errors import UnsupportedError
from npusim.frontends.onnx_dialect import Dialect, Rewrite
from npusim.frontends.onnx_opset import Builder
from npusim.ir import Node


def _gelu(approximate: str) -> Rewrite:
    """Gelu, FastGelu, BiasGelu: an optional bias, then the activation."""

    def rewrite(node: Node, builder: Builder) -> list[Node]:
        bias, x = _sum(node, builder, [i for i in node.inputs if i], "bias")
        attrs = {"approximate": approximate}
        return [*bias, Node(node.name, "Gelu", (x,), node.outputs, attrs)]

    return rewrite


def _sum(
    node: Node, builder: Builder, terms: list[str], hint: str, result: str = ""
) -> tuple[list[Node], str]:
    """Nodes that add up `terms`, and the name of the sum (`result` if given)."""
    nodes: list[Node] = []
    total = terms[0]
    for i, term in enumerate(terms[1:], 1):
        last = i == len(terms) - 1
        out = result if last and result else builder.fresh(f"{node.name}/{hint}_{i}")
        nodes.append(Node(f"{node.name}/{hint}_{i}", "Add", (total, term), (out,)))
        total = out
    return nodes, total


def _skip_norm(op_type: str) -> Rewrite:
    """Skip(Simplified)LayerNormalization: residual and bias added, then the normalisation."""

    def rewrite(node: Node, builder: Builder) -> list[Node]:
        inputs = (*node.inputs, *[""] * 5)[:5]
        outputs = (*node.outputs, *[""] * 4)[:4]
        if op_type == "LayerNormalization":
            scale, beta, bias = inputs[2:]
        else:
            scale, bias, beta = inputs[2], inputs[3], ""
        if op_type == "RMSNormalization" and any(outputs[1:3]):
            raise UnsupportedError(
                f"statistics outputs of {node.op_type} at node {node.name!r}",
                "its first and last output",
                "drop these outputs",
            )
        terms = [i for i in (*inputs[:2], bias) if i]
        added, x = _sum(node, builder, terms, "skip", outputs[3])
        attrs = {"axis": -1, "epsilon": node.attrs.get("epsilon", 1e-12)}
        operands = (x, scale, beta) if beta else (x, scale)
        kept = outputs[:3] if any(outputs[1:3]) else outputs[:1]
        return [*added, Node(node.name, op_type, operands, kept, attrs)]

    return rewrite


def _dynamic_lstm(node: Node, builder: Builder) -> list[Node]:
    """DynamicQuantizeLSTM: weights [D, I, 4H] made real and turned. The sequence, which onnxruntime
    quantises step by step, stays real."""
    nodes, turned = [], []

    def add(op_type: str, *inputs: str, **attrs: Any) -> str:
        result = builder.fresh(f"{node.name}/{op_type.lower()}")
        nodes.append(Node(result, op_type, inputs, (result,), attrs))
        return result

    scales = (node.inputs[8:10], node.inputs[10:12])
    for weights, (scale, zero) in zip(node.inputs[1:3], scales, strict=True):
        d, *columns = builder.type(scale).shape  # [D] or [D, 4H]
        shape = np.array((d, 1, *(columns or (1,))), np.int64)
        spread = builder.constant(f"{node.name}/shape", shape)
        to = builder.type(scale).dtype.value
        wide, shift = (add("Cast", i, to=to) for i in (weights, zero))
        wide = add("Sub", wide, add("Reshape", shift, spread))
        wide = add("Mul", wide, add("Reshape", scale, spread))
        turned.append(add("Transpose", wide, perm=[0, 2, 1]))
    inputs = (node.inputs[0], *turned, *node.inputs[3:8])
    return [*nodes, node.with_(op_type="LSTM", inputs=inputs)]


def _as(op_type: str, **defaults: float) -> Rewrite:
    """The standard operator of the same meaning."""
    return lambda node, builder: [node.with_(op_type=op_type, attrs={**defaults, **node.attrs})]


_REWRITES: dict[str, Rewrite] = {
    "Gelu": _gelu("none"),
    "BiasGelu": _gelu("none"),
    "FastGelu": _gelu("tanh"),
    "QuickGelu": _as("Swish", alpha=1.702),
    "LayerNormalization": _as("LayerNormalization"),
    "SimplifiedLayerNormalization": _as("RMSNormalization"),
    "DynamicQuantizeLSTM": _dynamic_lstm,
    "SkipLayerNormalization": _skip_norm("LayerNormalization"),
    "SkipSimplifiedLayerNormalization": _skip_norm("RMSNormalization"),
}


DIALECT = Dialect(
    "com.microsoft", _REWRITES, "export the model before onnxruntime's graph optimisation"
)
