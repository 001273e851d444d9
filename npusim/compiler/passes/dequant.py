"""int32 sums made real by one operator: in fp16 a Cast would saturate before the scale is there."""

from __future__ import annotations

from npusim.compiler.options import CompileContext
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import DType, Graph, Node


@graph_pass("AscendDequantFusionPass", Kind.NEEDED)
def fuse_dequant(graph: Graph, ctx: CompileContext) -> Graph:
    """Mul(Cast(sums), scale) → AscendDequant(sums, scale); of a scale that is a product, both."""
    made, uses = graph.producers(), graph.consumers()
    instead: dict[str, Node | None] = {}
    for node in graph.nodes:
        for at in range(2) if node.op_type == "Mul" else ():
            cast = made.get(node.inputs[at])
            if cast is None or not _alone(graph, cast, uses):
                continue
            scales, product = _scales(graph, node.inputs[1 - at], uses)
            instead[cast.name] = None
            if product:
                instead[product] = None
            instead[node.name] = node.with_(
                op_type="AscendDequant",
                inputs=(cast.inputs[0], *scales),
                attrs={"to": graph.type_of(node.outputs[0]).dtype.value},
            )
            break
    if not instead:
        return graph
    out = graph.copy()
    new = [instead.get(n.name, n) for n in graph.nodes]
    out.nodes = [n for n in new if n is not None]
    return out


def _alone(graph: Graph, node: Node, uses: dict[str, list[Node]]) -> bool:
    """A Cast from int32 to a float type that one node reads."""
    if node.op_type != "Cast" or graph.type_of(node.inputs[0]).dtype is not DType.INT32:
        return False
    result = node.outputs[0]
    single = len(uses[result]) == 1 and result not in graph.outputs
    return single and graph.type_of(result).dtype.is_float


def _scales(graph: Graph, scale: str, uses: dict[str, list[Node]]) -> tuple[tuple[str, ...], str]:
    """The factors of a scale, and the name of the Mul that has become needless ('' if none)."""
    maker = graph.producers().get(scale)
    if maker is None or maker.op_type != "Mul":
        return (scale,), ""
    single = len(uses[scale]) == 1 and scale not in graph.outputs
    return maker.inputs, maker.name if single else ""
