"""Text form of a Graph, one node a line."""

from __future__ import annotations

from npusim.ir.graph import Graph, Node, Tensor


def _tensor(t: Tensor) -> str:
    layout = "" if t.layout.value == "ND" else f":{t.layout.value}"
    return f"{t.name}:{t.dtype.value}[{','.join(map(str, t.shape))}]{layout}"


def format_node(graph: Graph, node: Node) -> str:
    """`outputs = OpType(inputs) {attrs} + Epilogue …`."""
    outs = ", ".join(_tensor(graph.tensors[o]) for o in node.outputs if o)
    attrs = "".join(f" {k}={v}" for k, v in sorted(node.attrs.items()))
    epi = "".join(f" + {s.op_type}" for s in node.epilogue)
    return f"{outs} = {node.op_type}({', '.join(node.inputs)}){attrs}{epi}"


def format_graph(graph: Graph) -> str:
    """The whole graph as text."""
    head = [f"graph {graph.name}"]
    head += [f"  input  {_tensor(graph.tensors[i])}" for i in graph.inputs]
    head += [f"  const  {_tensor(graph.tensors[c])}" for c in graph.constants]
    body = [f"  {format_node(graph, n)}" for n in graph.nodes]
    return "\n".join([*head, *body, f"  output {', '.join(graph.outputs)}"])
