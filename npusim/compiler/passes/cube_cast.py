"""A Cast to fp32 behind a cube node becomes the node's own output type: sums are fp32 in L0C."""

from __future__ import annotations

from npusim.compiler.costs import Costs
from npusim.compiler.launches import launch_of
from npusim.compiler.options import CompileContext
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.compiler.select import select_kernel
from npusim.ir import DType, Graph, Node


@graph_pass("MatmulCastFusionPass", Kind.GRAPH_FUSION)
def fuse_matmul_cast(graph: Graph, ctx: CompileContext) -> Graph:
    """MatMul or Gemm + Cast to fp32 → the product in fp32."""
    return _fused(graph, ctx, "MatmulCastFusionPass", ("MatMul", "Gemm"))


@graph_pass("ConvCastFusionPass", Kind.GRAPH_FUSION)
def fuse_conv_cast(graph: Graph, ctx: CompileContext) -> Graph:
    """Convolution + Cast to fp32 → the convolution's result in fp32."""
    return _fused(graph, ctx, "ConvCastFusionPass", ("Conv",))


def _fused(graph: Graph, ctx: CompileContext, name: str, op_types: tuple[str, ...]) -> Graph:
    uses, makers = graph.consumers(), graph.producers()
    replaced: dict[str, Node] = {}
    gone: set[str] = set()
    for cast in graph.nodes:
        cube = makers.get(cast.inputs[0]) if cast.op_type == "Cast" else None
        if cube is None or cube.op_type not in op_types or cast.epilogue:
            continue
        if graph.type_of(cast.outputs[0]).dtype is not DType.FLOAT32:
            continue
        reason = _objection(graph, ctx, cube, cast, len(uses[cube.outputs[0]]))
        ctx.decide(name, (cube.name, cast.name), not reason, reason or "L0C holds fp32")
        if not reason:
            replaced[cube.name] = cube.with_(outputs=cast.outputs)
            gone.add(cast.name)
    out = graph.copy()
    out.nodes = [replaced.get(n.name, n) for n in graph.nodes if n.name not in gone]
    return out


def _objection(graph: Graph, ctx: CompileContext, cube: Node, cast: Node, readers: int) -> str:
    """Why the Cast stays; '' when it goes."""
    result = cube.outputs[0]
    if readers > 1 or result in graph.outputs:
        return f"its result is wanted in {graph.type_of(result).dtype.value} too"
    wide = cube.with_(outputs=cast.outputs)
    kernel, _ = select_kernel(launch_of(graph, cube), ctx.chip)
    found, why = select_kernel(launch_of(graph, wide), ctx.chip)
    if not kernel or found != kernel:
        return f"no kernel of the cube writes it: {why}" if why else f"it would need {found}"
    costs = Costs(ctx)
    together = costs.launch(launch_of(graph, wide))
    apart = sum(costs.launch(launch_of(graph, node)) for node in (cube, cast))
    if together > apart:
        return f"it would cost {together:.0f} cycles, apart {apart:.0f}"
    return ""
