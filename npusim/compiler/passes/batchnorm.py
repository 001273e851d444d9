"""BatchNormalization in inference: folded into the convolution before it, or scale and shift."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Constant, EpilogueStep, Graph, Node, Tensor, TensorType
from npusim.ops import attributes


@graph_pass("ConvBatchnormFusionPass", Kind.GRAPH_FUSION)
def fold_batchnorm(graph: Graph, ctx: CompileContext) -> Graph:
    """Conv + BatchNormalization → Conv with scaled weights; a lone one → Mul, then Add.

    Both need constant statistics; others stay.
    """
    out = graph.copy()
    uses = graph.consumers()
    makers = graph.producers()
    replaced: dict[str, Node | None] = {}  # node name → what stands for it; None: gone
    for node in graph.nodes:
        if node.op_type != "BatchNormalization" or len(node.outputs) != 1:
            continue
        if not all(i in out.constants for i in node.inputs[1:]):
            continue
        conv = makers.get(node.inputs[0])
        alone = len(uses.get(node.inputs[0], ())) == 1 and node.inputs[0] not in graph.outputs
        if conv is not None and conv.op_type == "Conv" and alone and constant_conv(out, conv):
            replaced[conv.name] = scaled_conv(out, conv, *_scale(out, node), node.outputs, ctx)
            replaced[node.name] = None
        elif len(graph.type_of(node.inputs[0]).shape) >= 2:
            replaced[node.name] = _scale_shift(out, node, ctx)
    new = [replaced.get(n.name, n) for n in graph.nodes]
    out.nodes = [n for n in new if n is not None]
    return out


def constant_conv(graph: Graph, conv: Node) -> bool:
    """Whether a convolution's weights and bias are constants."""
    return all(not i or i in graph.constants for i in conv.inputs[1:])


def _scale(graph: Graph, bn: Node) -> tuple[Callable[[], np.ndarray], Callable[[], np.ndarray]]:
    """Lazy per-channel (scale, shift) in fp32."""
    gamma, beta, mean, var = (graph.constants[i] for i in bn.inputs[1:5])
    epsilon = attributes(bn)["epsilon"]

    def scale() -> np.ndarray:
        deviation = np.sqrt(var.value().astype(np.float32) + np.float32(epsilon))
        return gamma.value().astype(np.float32) / deviation

    def shift() -> np.ndarray:
        return beta.value().astype(np.float32) - mean.value().astype(np.float32) * scale()

    return scale, shift


def _add_constant(
    graph: Graph, ctx: CompileContext, base: str, type_: TensorType, make: Callable[[], np.ndarray]
) -> str:
    name = ctx.fresh(base)
    graph.constants[name] = Constant(type_, make)
    graph.tensors[name] = Tensor(name, type_.shape, type_.dtype)
    return name


def scaled_conv(
    graph: Graph,
    conv: Node,
    scale: Callable[[], np.ndarray],
    shift: Callable[[], np.ndarray],
    outputs: tuple[str, ...],
    ctx: CompileContext,
) -> Node:
    """A convolution of constant weights with its channels scaled, then shifted (in fp32, lazily).

    Args:
        outputs: what the result is called.
    """
    weights = graph.constants[conv.inputs[1]]
    bias = conv.inputs[2] if len(conv.inputs) > 2 else ""
    old_bias = graph.constants[bias] if bias else None
    w_type = weights.type
    dtype = w_type.dtype.np

    def new_weights() -> np.ndarray:
        per_channel = scale().reshape(-1, *(1,) * (len(w_type.shape) - 1))
        return (weights.value() * per_channel).astype(dtype)

    def new_bias() -> np.ndarray:
        moved = shift()
        if old_bias is not None:
            moved = moved + old_bias.value().astype(np.float32) * scale()
        return moved.astype(dtype)

    w = _add_constant(graph, ctx, conv.inputs[1], w_type, new_weights)
    b_type = TensorType((w_type.shape[0],), w_type.dtype)
    b = _add_constant(graph, ctx, f"{conv.name}_bias", b_type, new_bias)
    return conv.with_(inputs=(conv.inputs[0], w, b), outputs=outputs)


def _scale_shift(graph: Graph, bn: Node, ctx: CompileContext) -> Node:
    scale, shift = _scale(graph, bn)
    x = graph.type_of(bn.inputs[0])
    shape = (x.shape[1], *(1,) * (len(x.shape) - 2))
    if len(x.shape) == 4:
        shape = (1, *shape)
    type_ = TensorType(shape, x.dtype)

    def shaped(make: Callable[[], np.ndarray]) -> Callable[[], np.ndarray]:
        return lambda: make().reshape(shape).astype(x.dtype.np)

    a = _add_constant(graph, ctx, f"{bn.name}_scale", type_, shaped(scale))
    b = _add_constant(graph, ctx, f"{bn.name}_shift", type_, shaped(shift))
    step = EpilogueStep("Add", 2)
    return Node(bn.name, "Mul", (bn.inputs[0], a, b), bn.outputs, {}, (step,))
