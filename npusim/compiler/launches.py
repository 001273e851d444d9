"""The launch of a node as it will be when layouts are assigned, for passes that run before."""

from __future__ import annotations

from dataclasses import replace

from npusim.compiler.select import kernel_args
from npusim.ir import Graph, Layout, Node
from npusim.ir.layout import whole_groups
from npusim.ops import attributes
from npusim.program.kernel import KernelArgs, OperandSpec


def launch_of(graph: Graph, node: Node) -> KernelArgs:
    """The launch of a node in the layouts that it has, or will get."""
    args = kernel_args(graph, node)
    if node.op_type == "Conv" and len(args.outputs[0].shape) == 4:
        return _in_conv_layouts(node, args)
    return args


def _in_conv_layouts(node: Node, args: KernelArgs) -> KernelArgs:
    """The launch with the layouts that `assign_layouts` gives a convolution in NC1HWC0."""
    fused = {s.operand for s in node.epilogue}
    x, weights = args.operands[0], args.operands[1]
    group = int(attributes(node)["group"])
    blocked = whole_groups(x.shape[1], weights.shape[0], group, x.dtype)
    inputs = []
    for i, spec in enumerate(args.inputs):
        if spec is not None and (i == 0 or i in fused) and len(spec.shape) == 4:
            spec = _given(spec, Layout.NC1HWC0)
        elif spec is not None and i == 1 and blocked:
            spec = _given(spec, Layout.FRACTAL_Z)
        inputs.append(spec)
    out = _given(args.outputs[0], Layout.NC1HWC0)
    return replace(args, inputs=tuple(inputs), outputs=(out,))


def _given(spec: OperandSpec, layout: Layout) -> OperandSpec:
    """An operand in a layout, unless it has one already."""
    return replace(spec, layout=layout) if spec.layout is Layout.ND else spec
