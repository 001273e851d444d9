"""Fusion of what follows a node into its epilogue, on data still on chip.

* MatMul + Add of one value per column: the bias input.
* Cube nodes (Conv, MatMul, Gemm): residual Add, ReLU, Clip; on chips with FIXP only ReLU.
* Elementwise nodes: chains of elementwise operators become one kernel.

Clip becomes Max and Min with constant operands, so that every step has one operand at most.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.compiler.options import CompileContext
from npusim.compiler.select import kernel_args, select_kernel
from npusim.ir import EpilogueStep, Graph, Layout, Node
from npusim.ops import attributes, get_operator
from npusim.program.kernel import KernelArgs

CUBE_OPS = ("Conv", "MatMul", "Gemm")
MAX_CHAIN = 6  #: steps of a fused chain: longer ones spill more UB than they save
COMMUTATIVE = ("Add", "Mul", "Max", "Min", "Sum")


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


def fuse_epilogues(graph: Graph, ctx: CompileContext) -> Graph:
    """Grow epilogues, in execution order, as long as the node's own kernel takes them."""
    out = graph.copy()
    uses = graph.consumers()
    position = {n.name: i for i, n in enumerate(graph.nodes)}
    slots: list[Node | None] = list(graph.nodes)
    for index in range(len(slots)):
        node = slots[index]
        if node is None or not _can_start(node):
            continue
        at, kernel = index, _kernel(graph, node, ctx)
        while kernel and len(node.epilogue) < MAX_CHAIN:
            result = node.outputs[0]
            if len(uses.get(result, ())) != 1 or result in graph.outputs:
                break
            follower = slots[position[uses[result][0].name]]
            if follower is None or follower.epilogue:
                break
            grown = _append(out, node, follower, ctx)
            if grown is None or _kernel(out, grown, ctx) != kernel:
                break
            slots[at] = None
            at = position[follower.name]
            node = slots[at] = grown
    out.nodes = [n for n in slots if n is not None]
    return out


def _can_start(node: Node) -> bool:
    if len(node.outputs) != 1:
        return False
    return node.op_type in CUBE_OPS or get_operator(node.op_type, node.name).elementwise


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


def _kernel(graph: Graph, node: Node, ctx: CompileContext) -> str:
    """The AI Core kernel of a node in the layouts that it will get, '' when there is none."""
    args = kernel_args(graph, node)
    if node.op_type == "Conv" and len(args.outputs[0].shape) == 4:
        args = _in_conv_layouts(node, args)
    return select_kernel(args, ctx.chip)[0]


def _in_conv_layouts(node: Node, args: KernelArgs) -> KernelArgs:
    """The launch with the layouts that `assign_layouts` gives a convolution."""
    fused = {s.operand for s in node.epilogue}
    depthwise = int(attributes(node)["group"]) != 1
    inputs = []
    for i, spec in enumerate(args.inputs):
        if spec is not None and (i == 0 or i in fused):
            spec = replace(spec, layout=Layout.NC1HWC0)
        elif spec is not None and i == 1 and not depthwise:
            spec = replace(spec, layout=Layout.FRACTAL_Z)
        inputs.append(spec)
    out = replace(args.outputs[0], layout=Layout.NC1HWC0)
    return replace(args, inputs=tuple(inputs), outputs=(out,))
