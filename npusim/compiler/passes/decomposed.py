"""Operators that exporters wrote as several nodes: from what a matcher finds to one node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from npusim.compiler.options import CompileContext
from npusim.compiler.passes.patterns import Pattern, Times
from npusim.compiler.select import kernel_args, select_kernel
from npusim.ir import Constant, Graph, Node, Tensor


@dataclass(frozen=True)
class Found:
    """A pattern in a graph.

    Attributes:
        steps: its nodes in any order; `root` makes the result.
        node: what stands for them, with the root's outputs.
        constants: that the node needs beside the graph's own.
    """

    root: Node
    steps: tuple[Node, ...]
    node: Node
    constants: dict[str, Constant] = field(default_factory=dict)


def collapse(name: str, graph: Graph, ctx: CompileContext, found: Iterable[Found]) -> Graph:
    """Put one node in place of every pattern that nobody looks into, where a kernel takes it.

    Args:
        name: of the pass, for its decisions.
    """
    out, pattern, times = graph.copy(), Pattern(graph), Times(ctx)
    position = {n.name: i for i, n in enumerate(graph.nodes)}
    instead: dict[str, Node | None] = {}
    for match in found:
        steps = {s.name: s for s in match.steps}
        if steps.keys() & instead.keys():
            continue
        first = min(steps.values(), key=lambda n: position[n.name])
        trial = graph.copy()
        for c, constant in match.constants.items():
            trial.constants[c] = constant
            trial.tensors[c] = Tensor(c, constant.type.shape, constant.type.dtype)
        reason = _objection(trial, ctx, pattern, times, match)
        taken = reason or f"{match.node.op_type} stands for {len(steps)} nodes"
        ctx.decide(name, (first.name, match.root.name), not reason, taken)
        if not reason:
            instead |= dict.fromkeys(steps) | {match.root.name: match.node}
            out.constants |= match.constants
            out.tensors |= {c: trial.tensors[c] for c in match.constants}
    if not instead:
        return graph
    new = [instead.get(n.name, n) for n in graph.nodes]
    out.nodes = [n for n in new if n is not None]
    return out


def _objection(
    trial: Graph, ctx: CompileContext, pattern: Pattern, times: Times, match: Found
) -> str:
    """Why the pattern must stay; '' when the node may stand for it."""
    names = {s.name for s in match.steps}
    for step in match.steps:
        for result in step.outputs:
            outside = [n.name for n in pattern.uses.get(result, ()) if n.name not in names]
            if step is not match.root and (outside or result in trial.outputs):
                return f"{step.name}'s result is wanted by {(outside or ['the caller'])[0]}"
    args = kernel_args(trial, match.node)
    kernel, why = select_kernel(args, ctx.chip)
    if not kernel:
        return why
    together, apart = times.of(trial, match.node), times.total(trial, match.steps)
    return f"it would cost {together:.0f} cycles, apart {apart:.0f}" * (together > apart)
