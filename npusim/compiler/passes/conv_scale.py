"""Factors and addends of whole channels behind a convolution go into its weights and bias."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.batchnorm import constant_conv, scaled_conv
from npusim.compiler.passes.patterns import Pattern
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Constant, Graph, Node

Factors = tuple[np.ndarray, np.ndarray]  #: scale and shift of every channel


@dataclass(frozen=True)
class _Step:
    """One of Add, Sub, Mul, Div; `second`: the constant is its second operand."""

    op_type: str
    value: Constant
    second: bool

    def apply(self, scale: np.ndarray, shift: np.ndarray) -> Factors:
        """The scale and shift of this step behind others."""
        c = np.ravel(self.value.value()).astype(np.float32)
        if self.op_type == "Add":
            return scale, shift + c
        if self.op_type == "Sub":
            return (scale, shift - c) if self.second else (-scale, c - shift)
        return (scale * c, shift * c) if self.op_type == "Mul" else (scale / c, shift / c)


@graph_pass("ConvScaleFusionPass", Kind.GRAPH_FUSION)
def fold_scales(graph: Graph, ctx: CompileContext) -> Graph:
    """Conv, then any Add, Sub, Mul, Div of constants per channel, a factor among them → Conv."""
    find, out = Pattern(graph), graph.copy()
    replaced: dict[str, Node] = {}
    gone: set[str] = set()
    for conv in graph.nodes:
        if conv.op_type != "Conv" or conv.epilogue or not constant_conv(graph, conv):
            continue
        if not graph.type_of(conv.inputs[1]).dtype.is_float:
            continue  # bytes have no room for factors
        chain = list(_chain(find, conv))
        if not any(node.op_type in ("Mul", "Div") for node, _ in chain):
            continue  # an addend alone is a bias: the kernel's epilogue
        scale, shift = _factors([s for _, s in chain], graph.type_of(conv.outputs[0]).shape[1])
        replaced[conv.name] = scaled_conv(out, conv, scale, shift, chain[-1][0].outputs, ctx)
        gone |= {node.name for node, _ in chain}
    out.nodes = [replaced.get(n.name, n) for n in graph.nodes if n.name not in gone]
    return out if replaced else graph


def _chain(find: Pattern, conv: Node) -> Iterator[tuple[Node, _Step]]:
    """The nodes behind a convolution that scale or shift whole channels."""
    name = conv.outputs[0]
    while (node := find.reader(name, "Add", "Sub", "Mul", "Div")) is not None:
        step = _step(find.graph, node, name)
        if step is None:
            return
        yield node, step
        name = node.outputs[0]


def _step(graph: Graph, node: Node, name: str) -> _Step | None:
    second = node.inputs[0] == name
    constant = graph.constants.get(node.inputs[int(second)])
    shape = graph.type_of(name).shape
    if constant is None or graph.type_of(node.outputs[0]).shape != shape:
        return None
    given = (1,) * (len(shape) - len(constant.type.shape)) + constant.type.shape
    per_channel = given == (1, shape[1], *(1,) * (len(shape) - 2))
    if not (per_channel or constant.type.size == 1) or (node.op_type == "Div" and not second):
        return None
    return _Step(node.op_type, constant, second)


def _factors(
    steps: Sequence[_Step], channels: int
) -> tuple[Callable[[], np.ndarray], Callable[[], np.ndarray]]:
    """Lazy scale and shift of every channel, in fp32."""

    def both() -> Factors:
        found = np.ones(channels, np.float32), np.zeros(channels, np.float32)
        for step in steps:
            found = step.apply(*found)
        return found

    return lambda: both()[0], lambda: both()[1]
