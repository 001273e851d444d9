"""Sums of bytes leave the cube's kernel quantised: AscendDequant and AscendRequant join it.

Scales are constants then: their product is one value, or one per column, computed here as the
operator computes it, so that results stay what they are, bit for bit. For the same reason a
dequantised value in 16 bits that an elementwise operator goes on with stays with that: their kernel
rounds once, at its end. A Cast to fp32 behind it joins too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from math import prod

import numpy as np

from npusim.compiler.costs import Costs
from npusim.compiler.launches import launch_of
from npusim.compiler.options import CompileContext
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.compiler.select import select_kernel
from npusim.ir import Constant, DType, EpilogueStep, Graph, Node, Tensor
from npusim.kernels.requant import DEQUANT, REQUANT, STEPS, fits_fixp
from npusim.ops import get_operator


@graph_pass("TbeConvDequantFusionPass", Kind.UB_FUSION)
def fuse_conv_quant(graph: Graph, ctx: CompileContext) -> Graph:
    """Conv of bytes + AscendDequant or AscendRequant → the convolution alone."""
    return _fused(graph, ctx, "TbeConvDequantFusionPass", "Conv")


@graph_pass("BatchMatMulDequantElemwiseFusionPass", Kind.UB_FUSION)
def fuse_matmul_quant(graph: Graph, ctx: CompileContext) -> Graph:
    """MatMulV2 + AscendDequant or AscendRequant → the product alone."""
    return _fused(graph, ctx, "BatchMatMulDequantElemwiseFusionPass", "MatMulV2")


def _fused(graph: Graph, ctx: CompileContext, name: str, op_type: str) -> Graph:
    out = graph.copy()
    makers, uses = graph.producers(), graph.consumers()
    instead: dict[str, Node | None] = {}
    for node in graph.nodes:
        cube = makers.get(node.inputs[0]) if node.op_type in STEPS else None
        if cube is None or cube.op_type != op_type or cube.epilogue or node.epilogue:
            continue
        cast = _widened(graph, node, uses)
        alone = len(uses[cube.outputs[0]]) == 1 and cube.outputs[0] not in graph.outputs
        reason = _goes_on(graph, node, uses) if cast is None else ""
        reason = reason if alone else "its sums are wanted elsewhere too"
        joined = None
        if not reason:
            whole = node if cast is None else node.with_(outputs=cast.outputs)
            joined, reason = _joined(out, ctx, cube, whole)
        ctx.decide(name, (cube.name, node.name), not reason, reason or "scaled on the way out")
        if joined is not None:
            instead[cube.name], instead[node.name] = None, joined
            if cast is not None:
                instead[cast.name] = None
    if not instead:
        return graph
    new = [instead.get(n.name, n) for n in graph.nodes]
    out.nodes = [n for n in new if n is not None]
    return out


def _reader(graph: Graph, node: Node, uses: Mapping[str, list[Node]]) -> Node | None:
    """The elementwise operator that alone goes on with a dequantised value of 16 bits."""
    result = node.outputs[0]
    readers = uses.get(result, [])
    narrow = node.op_type == DEQUANT and graph.type_of(result).dtype.size == 2
    if not narrow or len(readers) != 1 or result in graph.outputs:
        return None
    return readers[0] if get_operator(readers[0].op_type).elementwise else None


def _widened(graph: Graph, node: Node, uses: Mapping[str, list[Node]]) -> Node | None:
    """A Cast to fp32 that alone reads the result."""
    reader = _reader(graph, node, uses)
    if reader is None or reader.op_type != "Cast" or reader.epilogue:
        return None
    return reader if graph.type_of(reader.outputs[0]).dtype is DType.FLOAT32 else None


def _goes_on(graph: Graph, node: Node, uses: Mapping[str, list[Node]]) -> str:
    """Why the node stays with its reader; '' where it need not."""
    reader = _reader(graph, node, uses)
    return "" if reader is None else f"{reader.op_type} takes it before it is rounded"


def _joined(graph: Graph, ctx: CompileContext, cube: Node, node: Node) -> tuple[Node | None, str]:
    """Both as one node; None and why not."""
    if any(i not in graph.constants for i in node.inputs[1:]):
        return None, "scales that are not constants"
    values = [graph.constants[i].value() for i in node.inputs[1:]]
    scale, offset = _scale(node, values)
    result = graph.type_of(node.outputs[0])
    axis = 1 if cube.op_type == "Conv" else len(result.shape) - 1
    if scale is None or offset.size != 1 or not _per_column(scale.shape, result.shape, axis):
        return None, "scales that vary along other axes than the columns"
    if ctx.chip.core.fixp is not None and not fits_fixp(scale, int(offset.reshape(()))):
        return None, "FIXP keeps 19 bits of a scale: results would differ"
    name = ctx.fresh(f"{node.name}/scale")
    constant = Constant.of(scale.reshape(()) if scale.size == 1 else scale)
    graph.constants[name] = constant
    graph.tensors[name] = Tensor(name, constant.type.shape, DType.FLOAT32)
    attrs: dict[str, object] = {"to": result.dtype.value}
    if node.op_type == REQUANT:
        attrs["offset"] = int(offset.reshape(()))
    step = EpilogueStep(node.op_type, len(cube.inputs), tuple(sorted(attrs.items())))
    inputs = (*cube.inputs, name)
    joined = node.with_(op_type=cube.op_type, attrs=cube.attrs, inputs=inputs, epilogue=(step,))
    found, why = select_kernel(launch_of(graph, joined), ctx.chip)
    if not found:
        return None, why
    return _cheaper(graph, ctx, joined, (cube, node))


def _cheaper(
    graph: Graph, ctx: CompileContext, joined: Node, apart: tuple[Node, Node]
) -> tuple[Node | None, str]:
    """The joined node where it takes no longer than the two."""
    costs = Costs(ctx)
    together = costs.launch(launch_of(graph, joined))
    single = sum(costs.launch(launch_of(graph, n)) for n in apart)
    if together > single:
        return None, f"it would take {together:.0f} cycles, apart {single:.0f}"
    return joined, ""


def _scale(node: Node, values: list[np.ndarray]) -> tuple[np.ndarray | None, np.ndarray]:
    """The one scale of sums in fp32, and the offset."""
    wide = [v.astype(np.float32) for v in values]
    try:
        if node.op_type == REQUANT:
            left, right, scale = wide[:3]
            return left * right / scale, values[3] if len(values) > 3 else np.zeros(1)
        return np.asarray(reduce(np.multiply, wide)), np.zeros(1)
    except ValueError:
        return None, np.zeros(1)


def _per_column(shape: tuple[int, ...], result: tuple[int, ...], axis: int) -> bool:
    """Whether values of that shape are one, or one per index of the result's axis."""
    if prod(shape) == 1:
        return True
    whole = (1,) * (len(result) - len(shape)) + shape
    return whole[axis] == result[axis] and all(n == 1 for i, n in enumerate(whole) if i != axis)
