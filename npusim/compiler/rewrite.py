"""What a compiler pass is: a named rewrite of the Graph, switchable, with what it changed.

A pass is a function (graph, context) → graph in a file of its own, declared by `@graph_pass`:

    @graph_pass("ConvBatchnormFusionPass", Kind.GRAPH_FUSION)
    def fold_batchnorm(graph, ctx): …

Names are CANN's where CANN has the pass, so that its `fusion_switch.cfg` files work here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest
from time import perf_counter

from npusim.compiler.options import CompileContext, CompileOptions
from npusim.compiler.select import moves_nothing
from npusim.errors import UnsupportedError, nearest
from npusim.ir import Graph, Node, verify

Rewrite = Callable[[Graph, CompileContext], Graph]


class Kind(StrEnum):
    """What a pass is for. The value of the two fusions is their key in CANN's files."""

    NEEDED = "needed"  #: without it the graph cannot be lowered
    CLEAN_UP = "clean-up"
    GRAPH_FUSION = "graph_fusion"
    UB_FUSION = "ub_fusion"


#: The lowest --opt-level at which passes of a kind run.
LEVELS = {Kind.NEEDED: 0, Kind.CLEAN_UP: 1, Kind.GRAPH_FUSION: 2, Kind.UB_FUSION: 2}


@dataclass(frozen=True)
class Pass:
    """A pass: call it as the function that it is.

    `becomes`: operators without a kernel that it rewrites → the one that does most of their work.
    """

    name: str
    kind: Kind
    rewrite: Rewrite
    becomes: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, graph: Graph, ctx: CompileContext) -> Graph:
        """The graph rewritten; the one given stays as it is."""
        return self.rewrite(graph, ctx)


@dataclass(frozen=True)
class PassReport:
    """What a pass did.

    Attributes:
        ran: False: switched off, or above the optimisation level.
        ops_before, ops_after: nodes of the graph.
        effects: nodes that are new or changed; `matches` adds those it looked at and refused.
        saved_bytes: GM traffic that is gone (negative: added), by the operands of all nodes.
        casts, trans_data: how many of them it added (negative: removed).
    """

    name: str
    kind: Kind
    ran: bool
    ops_before: int
    ops_after: int
    effects: int = 0
    matches: int = 0
    saved_bytes: int = 0
    casts: int = 0
    trans_data: int = 0
    seconds: float = 0.0


_PASSES: dict[str, Pass] = {}


def graph_pass(
    name: str, kind: Kind, becomes: Mapping[str, str] | None = None
) -> Callable[[Rewrite], Pass]:
    """Decorator: make a function a pass (`becomes`: see `Pass`).

    Raises:
        ValueError: the name is taken.
    """

    def declare(rewrite: Rewrite) -> Pass:
        if name in _PASSES:
            raise ValueError(f"pass {name!r} is declared twice")
        _PASSES[name] = Pass(name, kind, rewrite, becomes or {})
        return _PASSES[name]

    return declare


def becomes(op_type: str) -> str:
    """The operator that does the work of another once passes have run; the same where none is."""
    for p in _PASSES.values():
        if op_type in p.becomes:
            return becomes(p.becomes[op_type])
    return op_type


def declared_passes() -> list[Pass]:
    """All passes, by name."""
    return [_PASSES[name] for name in sorted(_PASSES)]


def pass_named(name: str) -> Pass:
    """The pass of that name.

    Raises:
        UnsupportedError: there is none.
    """
    if name not in _PASSES:
        near = nearest(name, _PASSES)
        raise UnsupportedError(
            f"compiler pass {name!r}",
            ", ".join(sorted(_PASSES)),
            f"did you mean {near}?" if near else "use one of these",
        )
    return _PASSES[name]


def check_switches(options: CompileOptions) -> None:
    """Check that the passes to switch off exist and can be done without.

    Raises:
        UnsupportedError: one does not, or cannot.
    """
    for name in sorted(options.disabled):
        if pass_named(name).kind is Kind.NEEDED:
            free = sorted(p.name for p in _PASSES.values() if p.kind is not Kind.NEEDED)
            raise UnsupportedError(
                f"compiler pass {name!r} switched off: nothing can be lowered without it",
                ", ".join(free),
                "leave it on",
            )


def runs(p: Pass, ctx: CompileContext) -> bool:
    """Whether the options let a pass run."""
    return ctx.options.level >= LEVELS[p.kind] and p.name not in ctx.options.disabled


def apply(p: Pass, graph: Graph, ctx: CompileContext) -> tuple[Graph, PassReport]:
    """Run a pass, verify what it made, and say what it changed."""
    before = len(graph.nodes)
    if not runs(p, ctx):
        return graph, PassReport(p.name, p.kind, False, before, before)
    refused = len(ctx.decisions)
    started = perf_counter()
    made = p(graph, ctx)
    # A copy with the very same parts needs no second look, here or by the next pass.
    out = graph if made is not graph and _same(graph, made) else verify(made)
    seconds = perf_counter() - started
    effects = _changed(graph, out)
    return out, PassReport(
        name=p.name,
        kind=p.kind,
        ran=True,
        ops_before=before,
        ops_after=len(out.nodes),
        effects=effects,
        matches=effects + sum(not d.taken for d in ctx.decisions[refused:]),
        saved_bytes=_measured(graph, ctx) - _measured(out, ctx),
        casts=_count(out, "Cast") - _count(graph, "Cast"),
        trans_data=_count(out, "TransData") - _count(graph, "TransData"),
        seconds=seconds,
    )


def _same(before: Graph, after: Graph) -> bool:
    """Whether a graph holds the same objects as another, each in its place."""

    def parts(graph: Graph) -> Iterator[object]:
        yield from graph.nodes
        for named in (graph.tensors, graph.constants, graph.assumed):
            for name, part in named.items():
                yield name
                yield part

    ends = before.inputs == after.inputs and before.outputs == after.outputs
    pairs = zip_longest(parts(before), parts(after))
    return ends and before.name == after.name and all(a is b for a, b in pairs)


def _changed(before: Graph, after: Graph) -> int:
    """Nodes that are new or changed, or, where none are, nodes that are gone."""
    old = {n.name: n for n in before.nodes}
    new = sum(old.get(n.name) is not n and old.get(n.name) != n for n in after.nodes)
    return new or max(0, len(before.nodes) - len(after.nodes))


def _count(graph: Graph, op_type: str) -> int:
    return sum(n.op_type == op_type for n in graph.nodes)


def _measured(graph: Graph, ctx: CompileContext) -> int:
    """The traffic of a graph: one pass's result is what the next one gets."""
    if ctx.measured[0] is not graph:
        ctx.measured = (graph, traffic(graph))
    return ctx.measured[1]


def traffic(graph: Graph) -> int:
    """Bytes that the nodes read and write in GM, each operand once."""
    return sum(_operand_bytes(graph, n) for n in graph.nodes if not moves_nothing(graph, n))


def _operand_bytes(graph: Graph, node: Node) -> int:
    names = {*node.inputs, *node.outputs} - {""}
    return sum(graph.tensors[name].nbytes for name in names)
