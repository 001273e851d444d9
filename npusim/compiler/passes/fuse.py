"""Fusion of what follows a node into its epilogue, on data still on chip.

* MatMul + Add of one value per column: the bias input.
* Cube nodes (Conv, MatMul, Gemm): residual Add, ReLU, Clip. FIXP does ReLU only; where a chip has
  it, kernels of both kinds of core take the rest where that pays: behind convolutions residuals
  and activations, behind products of 16 bits activations.
* Elementwise nodes: chains of elementwise operators become one kernel; so do small trees of them,
  where a result is read twice inside, or two results meet.

Clip becomes Max and Min with constant operands, so that every step has one operand at most.
"""

from __future__ import annotations

from collections.abc import Callable

from npusim.compiler.costs import Costs
from npusim.compiler.launches import launch_of
from npusim.compiler.options import CompileContext
from npusim.compiler.passes.growth import Growth, Meetings
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.compiler.select import select_kernel
from npusim.ir import EpilogueStep, Graph, Node
from npusim.ops import attributes, get_operator
from npusim.program.kernel import get_kernel

CUBE_OPS = ("Conv", "MatMul", "Gemm")
MAX_CHAIN = 6  #: steps of a fused chain: longer ones spill more UB than they save
COMMUTATIVE = ("Add", "Mul", "Max", "Min", "Sum")


@graph_pass("MatMulBiasAddFusionPass", Kind.GRAPH_FUSION)
def fuse_bias(graph: Graph, ctx: CompileContext) -> Graph:
    """MatMul(a, b) + constant of N values → MatMul(a, b, bias)."""
    out = graph.copy()
    uses = graph.consumers()
    makers = graph.producers()
    fused: dict[str, Node | None] = {}
    for add in graph.nodes:
        if add.op_type != "Add" or add.epilogue:
            continue
        for at in (0, 1):
            matmul, bias = makers.get(add.inputs[at]), add.inputs[1 - at]
            if matmul is None or matmul.op_type != "MatMul" or len(matmul.inputs) != 2:
                continue
            n = graph.type_of(matmul.outputs[0]).shape[-1]
            alone = len(uses[add.inputs[at]]) == 1 and add.inputs[at] not in graph.outputs
            same = graph.type_of(add.outputs[0]) == graph.type_of(add.inputs[at])
            is_row = bias in graph.constants and graph.type_of(bias).shape in ((n,), (1, n))
            if alone and is_row and same and len(graph.type_of(matmul.outputs[0]).shape) >= 2:
                inputs = (*matmul.inputs, bias)
                fused[add.name] = matmul.with_(op_type="MatMul", inputs=inputs, outputs=add.outputs)
                fused[matmul.name] = None
                break
    new = [fused.get(n.name, n) for n in graph.nodes]
    out.nodes = [n for n in new if n is not None]
    return out


@graph_pass("TbeConvCommonRules0FusionPass", Kind.UB_FUSION)
def fuse_conv_epilogues(graph: Graph, ctx: CompileContext) -> Graph:
    """Convolution + what follows it elementwise, on the tile in L0C or UB."""
    return _Epilogues(graph, ctx, "TbeConvCommonRules0FusionPass").run(
        lambda node: node.op_type == "Conv"
    )


@graph_pass("ATbeMatmulElemwiseFusionPass", Kind.UB_FUSION)
def fuse_matmul_epilogues(graph: Graph, ctx: CompileContext) -> Graph:
    """Matrix product + what follows it elementwise, on the tile in L0C or UB."""
    return _Epilogues(graph, ctx, "ATbeMatmulElemwiseFusionPass").run(
        lambda node: node.op_type in ("MatMul", "Gemm")
    )


@graph_pass("TbeEltwiseFusionPass", Kind.UB_FUSION)
def fuse_elementwise(graph: Graph, ctx: CompileContext) -> Graph:
    """Trees of elementwise operators, then chains, kept in UB."""
    graph = Growth(graph, ctx, "TbeEltwiseFusionPass", "FusedElemwise").run(Meetings(graph))
    return _Epilogues(graph, ctx, "TbeEltwiseFusionPass").run(
        lambda node: get_operator(node.op_type, node.name).elementwise
    )


class _Epilogues:
    """Grows epilogues, in execution order, as long as the kernel takes them and it pays."""

    def __init__(self, graph: Graph, ctx: CompileContext, name: str) -> None:
        self._graph, self._ctx, self._name = graph, ctx, name
        self._out = graph.copy()
        self._uses = graph.consumers()
        self._position = {n.name: i for i, n in enumerate(graph.nodes)}
        self._slots: list[Node | None] = list(graph.nodes)
        self._costs = Costs(ctx)

    def run(self, starts: Callable[[Node], bool]) -> Graph:
        for index in range(len(self._slots)):
            node = self._slots[index]
            if node is not None and len(node.outputs) == 1 and starts(node):
                self._grow(index, node)
        self._out.nodes = [n for n in self._slots if n is not None]
        return self._out

    def _grow(self, at: int, node: Node) -> None:
        kernel = _kernel(self._graph, node, self._ctx)[0]
        while kernel and len(node.epilogue) < MAX_CHAIN:
            follower = self._follower(node)
            if follower is None:
                return
            grown = _append(self._out, node, follower, self._ctx)
            if grown is None:
                return
            kernel, reason = self._weigh(kernel, node, follower, grown)
            self._ctx.decide(self._name, (node.name, follower.name), bool(kernel), reason)
            if not kernel:
                return
            self._slots[at] = None
            at = self._position[follower.name]
            node = self._slots[at] = grown

    def _follower(self, node: Node) -> Node | None:
        """The only reader of the node's result, where it is elementwise and unfused."""
        result = node.outputs[0]
        readers = self._uses.get(result, ())
        found = [self._slots[self._position[r.name]] for r in readers]
        follower = found[0] if found else None
        if follower is None or follower.epilogue:
            return None
        if not get_operator(follower.op_type, follower.name).elementwise:
            return None
        if len(found) > 1 or result in self._graph.outputs:
            others = f"{len(found)} nodes" + (" and the caller" * (result in self._graph.outputs))
            reason = f"its result is wanted by {others}"
            self._ctx.decide(self._name, (node.name, follower.name), False, reason)
            return None
        return follower

    def _weigh(self, kernel: str, node: Node, follower: Node, grown: Node) -> tuple[str, str]:
        """The kernel of both and why; '' and why not, where that is not legal or does not pay.

        Another kernel than the node's own may take them, but only one of both kinds of core.
        """
        found, why = _kernel(self._out, grown, self._ctx)
        if not found:
            return "", f"{kernel} does not take it: {why}"
        both = get_kernel(found).core_type == "MIX"
        if found != kernel and not both:
            return "", f"it would need {found}"
        together = self._time(grown)
        apart = self._time(node) + self._time(follower)
        if together > apart:
            return "", f"{found} would take {together:.0f} cycles, apart {apart:.0f}"
        return found, f"{found} takes it" + f": {together:.0f} cycles, apart {apart:.0f}" * both

    def _time(self, node: Node) -> float:
        """Estimated cycles of a node as a task; inf on the AI CPU."""
        return self._costs.launch(launch_of(self._out, node))


def _append(graph: Graph, node: Node, follower: Node, ctx: CompileContext) -> Node | None:
    """`node` with `follower` as one or two more epilogue steps; None when it does not fit."""
    if len(follower.outputs) != 1 or not get_operator(follower.op_type).elementwise:
        return None
    result = node.outputs[0]
    if follower.op_type == "Cast" and node.op_type in CUBE_OPS:
        return None
    if graph.tensors[follower.outputs[0]].shape != graph.tensors[result].shape:
        return None
    if follower.op_type == "Clip":
        return _append_clip(graph, node, follower)
    others = [i for i in follower.inputs if i]
    if others.count(result) != 1 or len(others) > 2:
        return None
    attrs = tuple(sorted((k, v) for k, v in attributes(follower).items() if v is not None))
    if len(others) == 1:
        step = EpilogueStep(follower.op_type, None, attrs)
        return node.with_(epilogue=(*node.epilogue, step), outputs=follower.outputs)
    if follower.inputs[0] != result and follower.op_type not in COMMUTATIVE:
        return None
    other = others[1] if others[0] == result else others[0]
    inputs = (*_padded(node), other)
    step = EpilogueStep(follower.op_type, len(inputs) - 1, attrs)
    return node.with_(inputs=inputs, epilogue=(*node.epilogue, step), outputs=follower.outputs)


def _padded(node: Node) -> tuple[str, ...]:
    """Inputs with an absent bias made explicit, so that operand indices stay put."""
    if node.op_type in CUBE_OPS and len(node.inputs) == 2:
        return (*node.inputs, "")
    return node.inputs


def _append_clip(graph: Graph, node: Node, clip: Node) -> Node | None:
    inputs, steps = _padded(node), list(node.epilogue)
    if clip.inputs[0] != node.outputs[0]:
        return None
    for op_type, name in zip(("Max", "Min"), clip.inputs[1:], strict=False):
        if not name:
            continue
        if name not in graph.constants:
            return None
        inputs = (*inputs, name)
        steps.append(EpilogueStep(op_type, len(inputs) - 1, ()))
    return node.with_(inputs=inputs, epilogue=tuple(steps), outputs=clip.outputs)


def _kernel(graph: Graph, node: Node, ctx: CompileContext) -> tuple[str, str]:
    """The kernel of a node in the layouts that it will get; '' and why, where there is none."""
    return select_kernel(launch_of(graph, node), ctx.chip)
