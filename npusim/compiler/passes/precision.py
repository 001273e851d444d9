"""Precision: float32 tensors become fp16 or bf16, with Casts where the model's interface is fp32.

As CANN compiles for inference: weights are converted when loaded, activations are stored in the
narrow type, cube sums and the statistics inside kernels stay fp32.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.compiler.options import CompileContext
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.errors import UnsupportedError
from npusim.ir import Constant, DType, Graph, Node, Tensor, TensorType, convert

#: Inputs that are parameters or statistics, not data: they keep their type.
#: op_type → input indices.
KEEP = {"Resize": (1, 2), "FlashAttentionScoreGrad": (5, 6)}
#: Outputs that are statistics: op_type → output indices.
KEEP_OUTPUTS = {"FlashAttentionScore": (0, 1), "RmsNorm": (1,), "AddRmsNorm": (1,)}


@graph_pass("InsertCastPass", Kind.NEEDED)
def assign_precision(graph: Graph, ctx: CompileContext) -> Graph:
    """Store float32 tensors in the precision's type.

    Raises:
        UnsupportedError: the chip's cube has no such type.
    """
    target = ctx.options.dtype
    if target is DType.FLOAT32:
        return graph
    if target.value not in ctx.chip.core.cube.k:
        usable = [
            p for p, d in (("fp16", "float16"), ("bf16", "bfloat16")) if d in ctx.chip.core.cube.k
        ]
        raise UnsupportedError(
            f"precision {ctx.options.precision} on {ctx.chip.name}: the cube takes "
            + ", ".join(ctx.chip.core.cube.k),
            ", ".join([*usable, "fp32"]),
            f"use --precision {usable[0] if usable else 'fp32'}, or another chip",
        )
    out = graph.copy()
    keep = _kept(graph)
    for name, t in graph.tensors.items():
        if t.dtype is DType.FLOAT32 and name not in keep:
            out.tensors[name] = replace(t, dtype=target)
    for name, c in graph.constants.items():
        if out.tensors[name].dtype is not c.type.dtype:
            out.constants[name] = _converted(c, target)
    out.nodes = [_retarget(n, target) for n in graph.nodes]
    _keep_constant_outputs(graph, out, ctx)
    _cast_inputs(graph, out, ctx)
    _cast_outputs(graph, out, ctx)
    return out


def _kept(graph: Graph) -> set[str]:
    inputs = {
        node.inputs[i]
        for node in graph.nodes
        for i in KEEP.get(node.op_type, ())
        if i < len(node.inputs) and node.inputs[i]
    }
    outputs = {node.outputs[i] for node in graph.nodes for i in KEEP_OUTPUTS.get(node.op_type, ())}
    return inputs | outputs


def _converted(c: Constant, target: DType) -> Constant:
    type_ = TensorType(c.type.shape, target)
    return Constant(type_, lambda: convert(c.value(), target), c.fill)


def _retarget(node: Node, target: DType) -> Node:
    """A Cast to float32 inside the model now casts to the precision's type."""
    if node.op_type == "Cast" and DType.of(node.attrs["to"]) is DType.FLOAT32:
        return node.with_(attrs={**node.attrs, "to": target.value})
    return node


def _keep_constant_outputs(old: Graph, out: Graph, ctx: CompileContext) -> None:
    """A graph output that is a constant keeps its type; nodes read a converted twin."""
    twins: dict[str, str] = {}
    for name in old.outputs:
        if name in old.constants and out.tensors[name].dtype is not old.tensors[name].dtype:
            twins[name] = twin = ctx.fresh(name)
            out.tensors[twin] = replace(out.tensors[name], name=twin)
            out.constants[twin] = out.constants[name]
            out.tensors[name], out.constants[name] = old.tensors[name], old.constants[name]
    out.nodes = [n.with_(inputs=tuple(twins.get(i, i) for i in n.inputs)) for n in out.nodes]


def _cast_inputs(old: Graph, out: Graph, ctx: CompileContext) -> None:
    casts: list[Node] = []
    rename: dict[str, str] = {}
    for name in old.inputs:
        t = old.tensors[name]
        if t.dtype is not DType.FLOAT32 or out.tensors[name].dtype is t.dtype:
            continue
        inner = ctx.fresh(name)
        out.tensors[inner] = replace(out.tensors[name], name=inner)
        out.tensors[name] = t
        attrs = {"to": out.tensors[inner].dtype.value}
        casts.append(Node(ctx.fresh(f"{name}_cast"), "Cast", (name,), (inner,), attrs))
        rename[name] = inner
    if rename:
        out.nodes = [
            *casts,
            *(n.with_(inputs=tuple(rename.get(i, i) for i in n.inputs)) for n in out.nodes),
        ]


def _cast_outputs(old: Graph, out: Graph, ctx: CompileContext) -> None:
    rename: dict[str, str] = {}
    casts: list[Node] = []
    made = {o for n in out.nodes for o in n.outputs}
    for name in old.outputs:
        t = old.tensors[name]
        narrowed = out.tensors[name].dtype is not t.dtype
        if t.dtype is not DType.FLOAT32 or name not in made or not narrowed:
            continue
        inner = ctx.fresh(name)
        out.tensors[inner] = Tensor(inner, t.shape, out.tensors[name].dtype)
        out.tensors[name] = t
        rename[name] = inner
        attrs = {"to": t.dtype.value}
        casts.append(Node(ctx.fresh(f"{name}_cast"), "Cast", (inner,), (name,), attrs))
    if rename:
        out.nodes = [
            *(
                n.with_(
                    inputs=tuple(rename.get(i, i) for i in n.inputs),
                    outputs=tuple(rename.get(o, o) for o in n.outputs),
                )
                for n in out.nodes
            ),
            *casts,
        ]
