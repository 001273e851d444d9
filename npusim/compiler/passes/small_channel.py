"""Small channels: whether a convolution takes its image in blocks of 4 channels (NC1HWC0_C04).

ATC's `--enable_small_channel=1`: an image of at most 4 channels is a quarter of the bytes then,
and a fractal of K holds the channels of four taps instead of one tap's 3 and 13 zeros.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.compiler.costs import Costs
from npusim.compiler.launches import launch_of
from npusim.compiler.options import CompileContext
from npusim.compiler.select import select_kernel
from npusim.ir import Graph, Layout, Node
from npusim.ir.layout import C04
from npusim.ops import attributes
from npusim.program.kernel import KernelArgs, OperandSpec

DECISION = "SmallChannel"


def in_blocks_of_four(
    graph: Graph, node: Node, ctx: CompileContext, costs: Costs, has: frozenset[Layout]
) -> bool:
    """Whether a convolution of few channels is cheaper so, the TransData of its image counted.

    Args:
        has: layouts that the image has been converted to already.
    """
    if not ctx.options.small_channel or graph.tensors[node.inputs[0]].shape[1] > C04:
        return False
    reason = _unfit(graph, node)
    if not reason:
        plain = launch_of(graph, node)
        few = _few(plain)
        kernel, reason = select_kernel(few, ctx.chip)
        if kernel:
            mine, without = (_cycles(a, ctx, costs, has) for a in (few, plain))
            found = f"{mine:.0f} cycles with the TransData, {without:.0f} in NC1HWC0"
            ctx.decide(DECISION, (node.name,), mine < without, found)
            return mine < without
    if ctx.chip.core.fixp is not None:
        ctx.note(f"small channels: npusim has no kernel for them on {ctx.chip.name}")
    ctx.decide(DECISION, (node.name,), False, reason)
    return False


def _unfit(graph: Graph, node: Node) -> str:
    """Why the operands cannot be had in the C04 layouts; '' if they can."""
    if graph.tensors[node.inputs[0]].layout is not Layout.ND:
        return "the image is made in NC1HWC0"
    if node.inputs[1] not in graph.constants:
        return "the weights are not constant"
    return "" if int(attributes(node)["group"]) == 1 else "a convolution in groups"


def _few(plain: KernelArgs) -> KernelArgs:
    """The launch with image and weights in the C04 layouts."""
    image, weights, *others = plain.inputs
    assert image is not None and weights is not None
    image = replace(image, layout=Layout.NC1HWC0_C04)
    weights = replace(weights, layout=Layout.FRACTAL_Z_C04)
    return replace(plain, inputs=(image, weights, *others))


def _cycles(launch: KernelArgs, ctx: CompileContext, costs: Costs, has: frozenset[Layout]) -> float:
    """Estimated cycles of the convolution, and of the TransData of its image."""
    image = launch.operands[0]
    if image.layout in has:
        return costs.launch(launch)
    return costs.launch(launch) + _transdata_cycles(image, ctx, costs)


def _transdata_cycles(image: OperandSpec, ctx: CompileContext, costs: Costs) -> float:
    """Of a TransData to the image's layout, at least as long as HBM takes for its bytes."""
    source = replace(image, layout=Layout.ND)
    trans = KernelArgs("TransData", (source,), (image,))
    return max(costs.launch(trans), (source.nbytes + image.nbytes) / ctx.chip.hbm_rate)
