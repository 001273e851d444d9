"""Transposes of images (NCHW ↔ NHWC) sink through the nodes behind them until two meet.

Exporters of NHWC frameworks put one before and one behind every convolution. What works element by
element between them does so on NCHW as well, with its constants turned; so do Pad, Concat and
reductions, with their axes renumbered.
"""

from __future__ import annotations

import numpy as np

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.cleanup import remove_dead
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.ir import Constant, Graph, Node, Tensor, TensorType
from npusim.ops import attributes, get_operator

TO_NHWC = (0, 2, 3, 1)
TO_NCHW = (0, 3, 1, 2)


@graph_pass("TransposeMotionPass", Kind.GRAPH_FUSION)
def sink_transposes(graph: Graph, ctx: CompileContext) -> Graph:
    """The graph with its image transposes as late as can be, where that leaves less to move."""
    found = remove_dead(_Sink(graph, ctx).run(), ctx)
    return found if _moved(found) < _moved(graph) else graph


def _moved(graph: Graph) -> int:
    """Bytes that go through transposes of four axes."""
    return sum(
        graph.tensors[n.outputs[0]].nbytes
        for n in graph.nodes
        if n.op_type == "Transpose" and len(graph.type_of(n.outputs[0]).shape) == 4
    )


def _turned(shape: tuple[int, ...]) -> tuple[int, ...]:
    """NHWC → NCHW."""
    return tuple(shape[i] for i in TO_NCHW)


class _Sink:
    def __init__(self, graph: Graph, ctx: CompileContext) -> None:
        self.graph, self.ctx = graph, ctx
        self.out = graph.copy()
        self.out.nodes = []
        self.twins: dict[str, str] = {}  #: tensor in NHWC → the same in NCHW
        self.same: dict[str, str] = {}  #: result of a transpose back → what it gives back
        self.constants: dict[str, str] = {}

    def run(self) -> Graph:
        for node in self.graph.nodes:
            self._place(node.with_(inputs=tuple(self.same.get(i, i) for i in node.inputs)))
        return self.out

    def _place(self, node: Node) -> None:
        if node.op_type == "Transpose" and not node.epilogue:
            perm, source = tuple(attributes(node)["perm"] or ()), node.inputs[0]
            result = node.outputs[0]
            if perm == TO_NCHW and source in self.twins and result not in self.graph.outputs:
                self.same[result] = self.twins[source]
                del self.out.tensors[result]
                return
            if perm == TO_NHWC:
                self.twins[result] = source
            self.out.nodes.append(node)
            return
        turned = None if node.epilogue or len(node.outputs) != 1 else self._turned_node(node)
        if turned is None:
            self.out.nodes.append(node)
        elif len(self._shape(node.outputs[0])) != 4:  # of a reduction: no image any more
            self.out.nodes.append(turned)
        else:
            self._emit(node, turned)

    def _emit(self, node: Node, turned: Node) -> None:
        """The node on NCHW, and its result in NHWC for those who want that."""
        old = node.outputs[0]
        new = self.twins[old] = self.ctx.fresh(old)
        t = self.out.tensors[old]
        self.out.tensors[new] = Tensor(new, _turned(t.shape), t.dtype)
        name = self.ctx.fresh(f"{node.name}_transpose")
        back = Node(name, "Transpose", (new,), (old,), {"perm": [*TO_NHWC]})
        self.out.nodes += [turned.with_(outputs=(new,)), back]

    def _turned_node(self, node: Node) -> Node | None:
        """The node with its operands in NCHW; None where it cannot do with them."""
        first = self.twins.get(node.inputs[0], "") if node.inputs else ""
        if get_operator(node.op_type, node.name).elementwise:
            inputs = [self._operand(i) for i in node.inputs]
            whole = len(self._shape(node.outputs[0])) == 4
            if not whole or None in inputs or not any(i in self.twins for i in node.inputs):
                return None
            return node.with_(inputs=tuple(i or "" for i in inputs))
        if node.op_type == "Concat" and all(i in self.twins for i in node.inputs):
            axis = TO_NHWC[int(attributes(node)["axis"]) % 4]
            inputs = [self.twins[i] for i in node.inputs]
            return node.with_(inputs=tuple(inputs), attrs={**node.attrs, "axis": axis})
        if node.op_type == "Pad" and first:
            return self._turned_pad(node, first)
        if node.op_type.startswith("Reduce") and first:
            return self._turned_reduction(node, first)
        return None

    def _turned_pad(self, node: Node, first: str) -> Node | None:
        pads = self.out.constants.get(node.inputs[1])
        if pads is None or pads.type.size != 8 or len(node.inputs) > 3:
            return None
        turned = pads.value().reshape(2, 4)[:, TO_NCHW].ravel()
        return node.with_(inputs=(first, self._add(node.inputs[1], turned), *node.inputs[2:]))

    def _turned_reduction(self, node: Node, first: str) -> Node | None:
        axes = self.out.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
        if axes is None:
            return None
        turned = np.array([TO_NHWC[int(a) % 4] for a in axes.value().ravel()], np.int64)
        kept = [a for a in TO_NHWC if a not in turned]
        if not attributes(node)["keepdims"] and kept != sorted(kept):
            return None
        return node.with_(inputs=(first, self._add(node.inputs[1], turned)))

    def _operand(self, name: str) -> str | None:
        """An operand of an elementwise node, in NCHW; None where it is not to be had."""
        if not name or name in self.twins:
            return self.twins.get(name, "")
        constant = self.out.constants.get(name)
        if self.out.tensors[name].type.size == 1:
            return name
        if constant is None or len(constant.type.shape) > 4:
            return None
        if name not in self.constants:
            four = (1,) * (4 - len(constant.type.shape)) + constant.type.shape
            kind = TensorType(_turned(four), constant.type.dtype)
            made = constant.map(lambda a: a.reshape(four).transpose(TO_NCHW), kind)
            self.constants[name] = self._constant(name, made)
        return self.constants[name]

    def _add(self, base: str, value: np.ndarray) -> str:
        return self._constant(base, Constant.of(value))

    def _constant(self, base: str, constant: Constant) -> str:
        name = self.ctx.fresh(base)
        self.out.constants[name] = constant
        self.out.tensors[name] = Tensor(name, constant.type.shape, constant.type.dtype)
        return name

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.graph.type_of(name).shape
