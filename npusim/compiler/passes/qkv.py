"""Q, K and V of one input become one product, whose heads the attention reads in place.

The weights stand side by side (concatenated when loaded), so the input is read once and two
launches are gone. CANN has it with the normalisation before (AttentionLnQKVFusionPass).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.patterns import Pattern, Times, refusal
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Constant, Graph, Node, Tensor, TensorType
from npusim.ops import attributes

NAME = "AttentionQKVFusionPass"


@graph_pass(NAME, Kind.GRAPH_FUSION)
def fuse_qkv(graph: Graph, ctx: CompileContext) -> Graph:
    """Three MatMuls in front of FlashAttentionScore → one."""
    out, find, times = graph.copy(), Pattern(graph), Times(ctx)
    position = {n.name: i for i, n in enumerate(graph.nodes)}
    instead: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.op_type != "FlashAttentionScore" or attributes(node)["input_layout"] != "BSND":
            continue
        if attributes(node)["first_heads"]:
            continue
        parts = [_projection(find, name) for name in node.inputs[:3]]
        products = [p[1] for p in parts if p is not None]
        if len(products) < 3:
            continue
        reason = _mismatch(graph, products)
        if not reason:
            new = _joint(out, ctx, node, products)
            reason = refusal(out, new[-1], ctx, node.op_type)
            together, apart = times.total(out, new), times.total(graph, (*products, node))
            if not reason and together > apart:
                reason = f"it would cost {together:.0f} cycles, apart {apart:.0f}"
        names = (products[0].name, node.name)
        ctx.decide(NAME, names, not reason, reason or "MatMul makes all three")
        if not reason:
            instead |= {n.name: [] for p in parts if p is not None for n in p}
            last = max(products, key=lambda n: position[n.name])
            instead |= {last.name: new[:-1], node.name: new[-1:]}
    if not instead:
        return graph
    out.nodes = [m for n in graph.nodes for m in instead.get(n.name, [n])]
    return out


def _projection(find: Pattern, name: str) -> tuple[Node, Node] | None:
    """(Reshape into heads, MatMul with constant weights) behind an operand of the attention."""
    reshape = find.inner(name, "Reshape")
    product = find.inner(reshape.inputs[0], "MatMul") if reshape is not None else None
    if reshape is None or product is None:
        return None
    constant = all(i in find.graph.constants for i in product.inputs[1:] if i)
    return (reshape, product) if constant else None


def _mismatch(graph: Graph, products: Sequence[Node]) -> str:
    """Why products cannot be one; '' when they can."""
    if len({p.inputs[0] for p in products}) > 1:
        return "queries, keys and values come of different inputs"
    weights = [graph.type_of(p.inputs[1]) for p in products]
    if any(len(w.shape) != 2 or w.dtype is not weights[0].dtype for w in weights):
        return "weights that are no matrices of one type"
    biased = [len(p.inputs) > 2 and bool(p.inputs[2]) for p in products]
    if any(biased) and not all(biased):
        return "only some of the products have a bias"
    return ""


def _joint(out: Graph, ctx: CompileContext, node: Node, products: Sequence[Node]) -> list[Node]:
    """Product, its heads, attention; their tensors and constants are put into `out`."""
    x, first = products[0].inputs[0], products[0]
    d = out.type_of(node.inputs[0]).shape[-1]
    heads = [out.type_of(name).shape[2] for name in node.inputs[:3]]
    inputs = [x, _beside(out, ctx, [p.inputs[1] for p in products], 2)]
    if len(first.inputs) > 2 and first.inputs[2]:
        inputs.append(_beside(out, ctx, [p.inputs[2] for p in products], 1))
    lead = out.type_of(first.outputs[0]).shape[:-1]
    dtype = out.tensors[first.outputs[0]].dtype
    flat, split = (ctx.fresh(f"{node.name}_{what}") for what in ("qkv", "heads"))
    out.tensors[flat] = Tensor(flat, (*lead, sum(heads) * d), dtype)
    shape = (*out.type_of(node.inputs[0]).shape[:2], sum(heads), d)
    out.tensors[split] = Tensor(split, shape, dtype)
    target = ctx.fresh(f"{split}_shape")
    out.constants[target] = Constant.of(np.array(shape, np.int64))
    out.tensors[target] = Tensor(target, (4,), out.constants[target].type.dtype)
    attrs = {
        **node.attrs,
        "first_heads": (0, heads[0], heads[0] + heads[1]),
        "kv_head_num": heads[1],
    }
    return [
        Node(ctx.fresh(first.name), "MatMul", tuple(inputs), (flat,), dict(first.attrs)),
        Node(split, "Reshape", (flat, target), (split,)),
        node.with_(inputs=(split,) * 3 + node.inputs[3:], attrs=attrs),
    ]


def _beside(out: Graph, ctx: CompileContext, names: Sequence[str], rank: int) -> str:
    """A constant of the given ones, of the last `rank` axes each, side by side along the last."""
    parts = [out.constants[n] for n in names]
    shapes = [p.type.shape[-rank:] for p in parts]
    name = ctx.fresh(names[0])
    kind = TensorType((*shapes[0][:-1], sum(s[-1] for s in shapes)), parts[0].type.dtype)

    def make() -> np.ndarray:
        arrays = (p.value().reshape(s) for p, s in zip(parts, shapes, strict=True))
        return np.concatenate(list(arrays), -1)

    out.constants[name] = Constant(kind, make)
    out.tensors[name] = Tensor(name, kind.shape, kind.dtype)
    return name
